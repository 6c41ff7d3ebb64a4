"""How a run begins at its servers: they belong together, go to one commit, and give up everything after it.

In: the addresses of all servers, the layout of the run, a name for this start of all trainers, and the steps whose
dense half is there. Out: the step at which all servers are now, or a sentence that names the servers, what they say and
what to do. A server that is not up yet is waited for, a while. One that holds rows of an interrupted run rolls them
back, and one that has only prepared the commit settles it. Worker 0 does this before any trainer joins. `ask_status`
gives the numbers of one server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from pyarrow import flight

from foresee.errors import StoreError
from foresee.io import bounded_json
from foresee.store.commits import OpenAt, Part, loses_everything, step_to_open
from foresee.store.layout import Layout, layout_from_dict
from foresee.store.remote import protocol
from foresee.store.remote.protocol import PROTOCOL_VERSION
from foresee.store.rpc.endpoint import PAUSE_SECONDS, TRANSPORT_ERRORS, Endpoint, ask_once, ask_patiently, cause_of


def ask_status(
    address: str,
    *,
    token: str | None = None,
    tls_root_certificate: bytes | None = None,
    timeout_seconds: float = 5.0,
) -> dict[str, Any]:
    endpoint = Endpoint.parse(address, token, tls_root_certificate)
    return ask_once(endpoint, protocol.STATUS, {}, time.monotonic() + timeout_seconds)


_logger = logging.getLogger(__name__)

OPEN_SECONDS = 600.0
"""A server may have to fold a commit first."""
LOAD_SECONDS = 6 * 3600.0
"""A server may have to load all of its rows from the storage."""
START_SECONDS = 120.0
"""How long servers that are started beside their trainers may take until they listen."""


def await_servers(
    endpoints: Sequence[Endpoint], say: Callable[[str], None], *, patience_seconds: float = START_SECONDS
) -> None:
    """Returns when all servers answer. Each that is not up yet is named, and waited for until all patience is gone."""
    deadline = time.monotonic() + patience_seconds
    for endpoint in endpoints:
        told = False
        while (cause := _absence(endpoint, deadline)) is not None:
            if time.monotonic() + PAUSE_SECONDS > deadline:
                raise StoreError(
                    f"server {endpoint.address} did not come up within {patience_seconds:.0f} s ({cause}); start it "
                    "with `foresee serve`, see that address and port are its own, then start the workers again"
                )
            if not told:
                _logger.info("server %s is away (%s), waiting", endpoint.address, cause)
                say(f"waiting for server {endpoint.address}, up to {deadline - time.monotonic():.0f} s")
                told = True
            time.sleep(PAUSE_SECONDS)


def _absence(endpoint: Endpoint, deadline: float) -> str | None:
    """Why the server cannot be reached yet; None if it answers."""
    try:
        client, begun = endpoint.client(), time.monotonic()
    except OSError as error:  # a server that has not written its address down yet
        return str(error)
    try:
        endpoint.ask(client, protocol.DESCRIBE, {}, deadline)
    except flight.FlightUnavailableError as error:
        return cause_of(error)
    except TRANSPORT_ERRORS as error:
        raise endpoint.sentence(error, "the first question", time.monotonic() - begun) from error
    finally:
        client.close()
    return None


def open_run(
    endpoints: Sequence[Endpoint],
    layout: Layout,
    *,
    run: str,
    num_workers: int,
    manifests: Collection[int],
    started: int = 0,
    fresh: bool = False,
    deadline_seconds: float = 60.0,
) -> int:
    """Opens all servers at the newest commit whose dense half is there and that all of them have.

    manifests: the steps whose dense half is there; with a 0 among them the run may begin again where that is no use.
    started: when this process was, in milliseconds: one that was given up is older than the one that replaced it.
    fresh: a new run, which refuses servers that hold the commits of another.
    """
    deadline = time.monotonic() + deadline_seconds
    parts: list[tuple[Endpoint, Part]] = []
    for group in layout.groups:
        servers = [about(it, group.width if layout.widths else None) for it in endpoints]
        described = {it.address: ask_once(it, protocol.DESCRIBE, {}, deadline) for it in servers}
        check_belonging(described, group)
        parts += [(it, protocol.part_from_dict(described[it.address])) for it in servers]
    held = max(max(part.newest, *part.openable) for _, part in parts)
    if fresh and held:
        raise StoreError(
            f"the servers hold the state after step {held}, but this run begins anew; "
            "go on with --resume, or start servers with new folders"
        )
    step = step_to_open(manifests, [part.openable for _, part in parts])
    if step is None or (0 not in manifests and loses_everything(step, [part for _, part in parts])):
        kept = "; ".join(f"{endpoint.address}: {_listed(part.openable)}" for endpoint, part in parts)
        raise StoreError(
            f"no commit is complete: the dense half is kept of step {_listed(manifests) or '0'}, the servers have "
            f"{kept}; start the servers with the folders of this run, or start anew"
        )
    open_one = partial(open_server, run=run, step=step, started=started, num_workers=num_workers)
    with ThreadPoolExecutor(len(parts)) as pool:  # some may have to load their rows
        list(pool.map(lambda pair: open_one(*pair), parts))
    _logger.info("%d servers opened at the commit of step %d", len(endpoints), step)
    return step


def about(endpoint: Endpoint, width: int | None) -> Endpoint:
    """The server, asked about its rows of this width; None: it has those of one."""
    return endpoint if width is None else replace(endpoint, about=((protocol.WIDTH, width),))


def held_step(endpoints: Sequence[Endpoint], *, deadline_seconds: float = 60.0) -> int:
    """The newest commit that any of these servers has, decided or not; 0: none."""
    deadline = time.monotonic() + deadline_seconds
    descriptions = [ask_once(endpoint, protocol.DESCRIBE, {}, deadline) for endpoint in endpoints]
    return max(protocol.part_from_dict(description).newest for description in descriptions)


def open_server(endpoint: Endpoint, part: Part, *, run: str, step: int, started: int = 0, num_workers: int = 1) -> None:
    """Opens one server, which is as `part` says, at one of its commits, for a run that begins there."""
    message = OpenAt(run=run, incarnation=part.incarnation, epoch=part.epoch, step=step, started=started)
    content = {**asdict(message), "num_workers": num_workers}
    seconds = OPEN_SECONDS if step in part.here else LOAD_SECONDS
    ask_patiently(endpoint, protocol.OPEN_AT, content, seconds, f"the opening at step {step}")


def _listed(steps: Collection[int]) -> str:
    return ", ".join(map(str, sorted(steps)))


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
    for name in ("width", "dtype", "rounding", "state_width", "optimizer", "seed", "init_scale"):
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
            f"server {address} has the tables {theirs}; {who} {ours}; start it with the layout of this log"
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
        return bounded_json.whole(description, key)
    except ValueError as error:
        raise _not_understood(address, error) from None


def _not_understood(address: str, error: ValueError) -> StoreError:
    return StoreError(
        f"server {address} describes itself in a way that cannot be understood ({error}); "
        "use the same version of Foresee everywhere"
    )
