"""Servers that are used together have to belong together.

In: what each server says of itself, and the layout a run wants. Out: the layout and the committed step of all of them,
or a sentence that names the servers, both values, and what to do.
"""

from __future__ import annotations

from typing import Any

from foresee import documents
from foresee.errors import StoreError
from foresee.store.contract import Layout
from foresee.store.layouts import layout_from_dict
from foresee.store.remote.protocol import PROTOCOL_VERSION

SHOWN_CHARACTERS = 40


def check_agreement(descriptions: dict[str, dict[str, Any]], wanted: Layout | None) -> tuple[Layout, int]:
    """Layout and step. Each description by its server's address."""
    return check_belonging(descriptions, wanted), _check_steps(descriptions)


def check_belonging(descriptions: dict[str, dict[str, Any]], wanted: Layout | None) -> Layout:
    """All shards of the same tables, each once, whatever step they are at."""
    for address, description in descriptions.items():
        if description.get("protocol") != PROTOCOL_VERSION:
            raise StoreError(
                f"server {address} speaks protocol {str(description.get('protocol'))[:SHOWN_CHARACTERS]}, this program "
                f"{PROTOCOL_VERSION}; "
                "use the same version of Foresee everywhere"
            )
    _check_shards(descriptions)
    layouts = {address: _layout(address, description) for address, description in descriptions.items()}
    first = next(iter(layouts))
    for address, layout in layouts.items():
        _check_layout(address, layout, layouts[first], f"server {first} has")
        if wanted is not None:
            _check_layout(address, layout, wanted, "this run wants")
    return layouts[first]


def _check_shards(descriptions: dict[str, dict[str, Any]]) -> None:
    """Every shard exactly once."""
    owners: dict[int, str] = {}
    for address, description in descriptions.items():
        shard, num_shards = _number(address, description, "shard"), _number(address, description, "num_shards")
        if num_shards != len(descriptions):
            raise StoreError(
                f"server {address} is shard {shard} of {num_shards}, but {len(descriptions)} servers were given; "
                "give the addresses of all servers of these tables"
            )
        if shard in owners:
            raise StoreError(f"servers {owners[shard]} and {address} are both shard {shard}; start one for each shard")
        owners[shard] = address


def _check_layout(address: str, found: Layout, wanted: Layout, who: str) -> None:
    for name in ("width", "state_width", "optimizer", "seed", "init_scale"):
        theirs, ours = getattr(found, name), getattr(wanted, name)
        if theirs != ours:
            shown = repr(theirs)[:SHOWN_CHARACTERS]
            raise StoreError(f"server {address} has {name} {shown}, {who} {ours!r}; start it with the same layout")
    if found.tables != wanted.tables:
        theirs, ours = (
            ", ".join(f"{table.name} ({table.num_rows})" for table in layout.tables)[: 20 * SHOWN_CHARACTERS]
            for layout in (found, wanted)
        )
        raise StoreError(
            f"server {address} has the tables {theirs}; {who} {ours}; "
            "start it with the layout of this log"
        )


def _check_steps(descriptions: dict[str, dict[str, Any]]) -> int:
    steps = {address: _number(address, description, "committed_step") for address, description in descriptions.items()}
    if len(set(steps.values())) > 1:
        listed = ", ".join(f"{address}: {step}" for address, step in steps.items())
        raise StoreError(
            f"the servers have committed different steps ({listed}): a commit was interrupted between them; "
            "resume the run, which brings all of them to one step"
        )
    return next(iter(steps.values()))


def _layout(address: str, description: dict[str, Any]) -> Layout:
    try:
        return layout_from_dict(description.get("layout"))
    except ValueError as error:
        raise _not_understood(address, error) from None


def _number(address: str, description: dict[str, Any], key: str) -> int:
    try:
        return documents.whole(description, key)
    except ValueError as error:
        raise _not_understood(address, error) from None


def _not_understood(address: str, error: ValueError) -> StoreError:
    return StoreError(
        f"server {address} describes itself in a way that cannot be understood ({error}); "
        "use the same version of Foresee everywhere"
    )
