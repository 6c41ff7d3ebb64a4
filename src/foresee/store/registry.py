"""The kinds of stores: what each can do, and how it is opened.

In: a name, as in `tables.store` of a run file. Out: a `StoreKind`, whose capabilities decide what a run may promise:
whether it can be resumed, whether its rows take memory, whether a folder holds them. Nobody else asks for a name.
A store of your own is made known by `register_store(StoreKind(...))`, or by an entry point of the group
`foresee.stores`; `foresee.testing` has the suites that it has to pass. Addresses of servers are a kind, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from foresee.errors import ConfigError
from foresee.registry import Registry
from foresee.store.contract import PartStore, TwoPhaseStore
from foresee.store.disk import DiskReader, DiskStore
from foresee.store.disk.log import log_buffer_bytes, log_memory_bytes
from foresee.store.disk.manifest import MANIFEST_FILE
from foresee.store.layout import Layout
from foresee.store.memory import MemoryStore

Open = Callable[[Path, Layout], PartStore]
"""Opens the tables that belong to a path, or makes them; refuses those of another layout."""


def holds_files(folder: Path) -> bool:
    """Whether there is anything in a folder."""
    return folder.is_dir() and any(folder.iterdir())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKind:
    """A kind of store, by its name.

    Attributes:
        name: What run files call it.
        open: Opens the tables that belong to a path of the run, or makes them: `open(folder, layout)`.
        durable: Commits outlive the process, so a run can be resumed, evaluated and exported.
        rows_in_memory: All rows take memory of the process that opens it.
        memory_bytes: What an open store takes of memory at most, beside rows that are in memory.
        buffer_bytes: What of it is taken only while rows are read or written.
        in_folder: The rows are files below the path, and go when it is removed.
        open_server: As `open`, for a shard of a server, which has to keep its last commits openable. None: `open`.
        open_reader: As `open`, for who only reads, beside a process that trains. None: `open`.
        open_newest: Opens the tables of a run at the newest of some commits that all of their parts have. None: `open`
            gives one part, which whoever calls brings to that commit.
        holds: Whether tables of this kind are at a path.
        checked: The files are those of docs/formats-tables.md, which `foresee check` reads.
        takes_next_use: It lays rows out by their next use, so a run looks far ahead for those.
    """

    name: str
    open: Open
    durable: bool
    rows_in_memory: bool
    in_folder: bool
    open_server: Open | None = None
    open_reader: Callable[[Path, Layout], Any] | None = None
    open_newest: Callable[[Layout, Collection[int]], TwoPhaseStore] | None = None
    holds: Callable[[Path], bool] = holds_files
    checked: bool = False
    takes_next_use: bool = False
    memory_bytes: Callable[[Layout], int] = lambda layout: 0
    buffer_bytes: Callable[[Layout], int] = lambda layout: 0


def _check_kind(name: str, kind: object) -> None:
    if not isinstance(kind, StoreKind):
        raise ConfigError(f"the store {name!r} is {kind!r}; give a foresee.StoreKind")
    if kind.name != name:
        raise ConfigError(f"the store {name!r} calls itself {kind.name!r}; use one name")


MEMORY = StoreKind(
    name="memory",
    open=lambda folder, layout: MemoryStore(layout),
    open_server=lambda folder, layout: MemoryStore(layout, undoable=True),
    durable=False,
    rows_in_memory=True,
    in_folder=False,
    holds=lambda folder: False,
)
DISK = StoreKind(
    name="disk",
    open=DiskStore.open_or_create,
    open_reader=DiskReader.open,
    durable=True,
    rows_in_memory=False,
    in_folder=True,
    holds=lambda folder: (folder / MANIFEST_FILE).exists(),
    checked=True,
    takes_next_use=getattr(DiskStore, "takes_next_use", False),
    memory_bytes=log_memory_bytes,
    buffer_bytes=log_buffer_bytes,
)

STORES: Registry[StoreKind] = Registry("store", "foresee.stores", _check_kind)
"""Kinds by their names."""
for _ours in (DISK, MEMORY):
    STORES.add(_ours.name, _ours)


def register_store(kind: StoreKind) -> None:
    """Makes a kind of store known in this process, by its name.

    Args:
        kind: How it is opened and what it can do.
    """
    STORES.add(getattr(kind, "name", ""), kind)


SERVERS = "servers"
"""The kind of all addresses."""


def kind_name(store: str) -> str:
    """The kind that `tables.store` names: addresses may change while a run stays where it is."""
    return SERVERS if "://" in store else store


def store_kind(name: str) -> StoreKind:
    """The kind that `tables.store` names."""
    return _servers(name) if kind_name(name) == SERVERS else STORES.find(name, "tables.store")


def _servers(addresses: str) -> StoreKind:
    """Rows on servers that are there already."""
    from foresee.store.remote import named

    named.addresses_of(addresses)
    return StoreKind(
        name=SERVERS,
        open=lambda folder, layout: cast("PartStore", named.open_trainer(addresses, layout)),
        open_reader=lambda folder, layout: named.CommittedRows(addresses, layout),
        open_newest=lambda layout, commits: named.open_trainer(addresses, layout, commits),
        durable=True,
        rows_in_memory=False,
        in_folder=False,
        holds=lambda folder: named.committed_step(addresses) > 0,
    )
