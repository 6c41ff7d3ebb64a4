"""One shard of the rows: an ordinary store that holds every n-th row, and gives each its initial value by global id.

The store inside numbers its rows densely (global id // number of shards), so a shard takes its share of memory or disk
and no more. It would make initial values from those dense ids, though, and shards of any number must start with the
same bytes as one store. So versions are kept one higher inside: 0 there means that nobody has written the row, and its
initial value is made here from the global id. With one shard the store inside is the tables themselves, unchanged.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numba
import numpy as np

from foresee.arrays import Float32, Int32, Int64
from foresee.errors import ConfigError, StoreError
from foresee.io import bounded_json
from foresee.io.files import Files
from foresee.store.contract import PartStore, Rows, takes_next_use, write_with_hint, written_rows
from foresee.store.disk import DiskStore
from foresee.store.disk.backup import empty_folder
from foresee.store.kernels import Initial, fill_initial_row, initial_of
from foresee.store.layout import Layout, Table, layout_from_dict, layout_to_dict
from foresee.store.parts import PartWrapper
from foresee.store.registry import DISK, MEMORY, StoreKind
from foresee.store.row_groups import group_folder, group_folders
from foresee.store.sharding import num_local_rows

RUN_ID_FILE = "run-id"
"""Of a shard whose run has a storage: whose it is."""
SHARD_FILE = "shard.json"


@dataclass(frozen=True, slots=True)
class Share:
    """Which rows a shard has: those whose id modulo `num_shards` is `shard`."""

    shard: int = 0
    num_shards: int = 1

    def check(self, layout: Layout) -> None:
        if not 0 <= self.shard < self.num_shards <= layout.num_rows:
            raise StoreError(
                f"there is no shard {self.shard} of {self.num_shards} shards of {layout.num_rows} rows; "
                "shards count from 0, and each needs a row"
            )


class Shard(PartWrapper):
    """The contract of a store for the rows of one share; other rows are refused."""

    def __init__(self, store: PartStore, layout: Layout, share: Share) -> None:
        super().__init__(store)
        self._layout, self.share = layout, share
        self._initial = initial_of(layout)

    @property
    def layout(self) -> Layout:
        """The layout of all rows, not only of these."""
        return self._layout

    @property
    def num_rows(self) -> int:
        return num_local_rows(self._layout, self.share.shard, self.share.num_shards)

    def read(self, rows: Int64, out: Rows) -> None:
        if self.share.num_shards == 1:
            self.inner.read(rows, out)
            return
        self.inner.read(self._local(rows), out)
        _settle_versions(self._initial, rows, out.values, out.versions)

    @property
    def takes_next_use(self) -> bool:
        return takes_next_use(self.inner)

    def write(self, rows: Int64, source: Rows, next_use: Int32 | None = None) -> None:
        if self.share.num_shards == 1:
            write_with_hint(self.inner, rows, source, next_use)
            return
        # A negative version is lower than every stored one; inside, -1 would look like an unwritten row's.
        keep = source.versions >= 0
        if not keep.all():
            rows, source = rows[keep], source.part(keep)
            next_use = None if next_use is None else next_use[keep]
        inside = replace(source, versions=source.versions + np.int32(1))
        write_with_hint(self.inner, self._local(rows), inside, next_use)

    def written(self, begin: int, end: int) -> Int64:
        """The global ids of this shard's rows in a range that somebody has written, ascending."""
        shard, num_shards = self.share.shard, self.share.num_shards
        first, last = ((bound - shard + num_shards - 1) // num_shards for bound in (begin, end))
        return written_rows(self.inner, first, last) * num_shards + shard

    def _local(self, rows: Int64) -> Int64:
        """Ids inside; a row of another shard is refused before anything is touched."""
        local = np.empty(len(rows), np.int64)
        wrong = _localise(rows, self._layout.num_rows, self.share.shard, self.share.num_shards, local)
        if wrong >= 0:
            raise StoreError(
                f"row {rows[wrong]} is not on shard {self.share.shard} of {self.share.num_shards} "
                f"({self._layout.num_rows} rows in all); give the client the servers of this run"
            )
        return local


@numba.njit(nogil=True, cache=True)
def _localise(rows: Int64, num_rows: int, shard: int, num_shards: int, local: Int64) -> int:
    """Fills `local`; returns the position of the first row that is not on this shard, or -1."""
    for k in range(len(rows)):
        row = rows[k]
        if row < 0 or row >= num_rows or row % num_shards != shard:
            return k
        local[k] = row // num_shards
    return -1


@numba.njit(nogil=True, cache=True)
def _settle_versions(initial: Initial, rows: Int64, values: Float32, versions: Int32) -> None:
    """Initial values for rows nobody has written (the state is zero already), true versions for the others."""
    for k in range(len(rows)):
        if versions[k] == 0:
            fill_initial_row(initial, rows[k], values, k)
        else:
            versions[k] -= 1


def memory_shard(layout: Layout, share: Share) -> Shard:
    """A shard in memory; gone with its process."""
    return _plain_shard(MEMORY, Path(), layout, share)


def open_shards(kind: StoreKind, folder: Path | None, layout: Layout | None, share: Share) -> list[Shard]:
    """The shard of each row group; of tables of one width there is one."""
    if layout is not None and layout.widths:
        groups = [(None if folder is None else group_folder(folder, group), group) for group in layout.groups]
    elif layout is None and folder is not None and group_folders(folder):
        return [open_shard(kind, below, None, share) for below in group_folders(folder)]
    else:
        return [open_shard(kind, folder, layout, share)]
    return [open_shard(kind, below, group, share) for below, group in groups]


def open_shard(kind: StoreKind, folder: Path | None, layout: Layout | None, share: Share) -> Shard:
    """A shard of any kind of store, in this folder if it has one; made if it is not there, which needs `layout`."""
    if kind.in_folder and folder is not None:
        return disk_shard(folder, layout, share, kind=kind)
    if layout is None or kind.in_folder:
        missing = "--folder" if kind.in_folder else "--layout"
        raise ConfigError(f"a server of the store {kind.name!r} has to know its tables: give {missing}")
    return _plain_shard(kind, folder or Path(), layout, share)


def _plain_shard(kind: StoreKind, folder: Path, layout: Layout, share: Share) -> Shard:
    share.check(layout)
    return Shard((kind.open_server or kind.open)(folder, inner_layout(layout, share)), layout, share)


def disk_shard(folder: Path, layout: Layout | None, share: Share, *, kind: StoreKind = DISK) -> Shard:
    """A shard in a folder, made if it is not there; then `layout` is needed."""
    found = read_shard_file(folder)
    open_part = kind.open_server or kind.open
    if found is None and share.num_shards == 1 and (layout is not None or kind.checked):
        store = DiskStore.open(folder) if layout is None else open_part(folder, layout)
        return Shard(store, store.layout, share)
    if found is not None and (found["shard"], found["num_shards"]) != (share.shard, share.num_shards):
        raise StoreError(
            f"{folder} holds shard {found['shard']} of {found['num_shards']}, this server is to be shard {share.shard} "
            f"of {share.num_shards}; start it with the folder of its own shard"
        )
    known = None if found is None else layout_from_dict(found["layout"])
    if layout is None and known is None:
        raise StoreError(f"{folder} holds no shard yet, so the tables have to be described; give a layout file")
    if layout is not None and known is not None and layout != known:
        raise StoreError(f"{folder} holds other tables ({known}) than the layout file says ({layout}); use another")
    described = layout or known
    assert described is not None
    share.check(described)
    store = open_part(folder, inner_layout(described, share))
    if found is None:
        content = {"shard": share.shard, "num_shards": share.num_shards, "layout": layout_to_dict(described)}
        Files().publish(folder / SHARD_FILE, (json.dumps(content, indent=2) + "\n").encode())
    return Shard(store, described, share)


def read_shard(folder: Path, layout: Layout, share: Share, *, kind: StoreKind = DISK) -> Shard:
    """A shard in a folder, for reading only."""
    return Shard((kind.open_reader or kind.open)(folder, inner_layout(layout, share)), layout, share)


def inner_layout(layout: Layout, share: Share) -> Layout:
    """How the store inside a shard looks."""
    if share.num_shards == 1:
        return layout
    name = f"shard {share.shard} of {share.num_shards}"
    return replace(layout, tables=(Table(name, num_local_rows(layout, share.shard, share.num_shards)),))


def forget_other_share(folder: Path, share: Share, run_id: str = "") -> None:
    """Takes away what a folder has of another shard, of another number of them, or of another run that this node has
    once had a part of: a storage has what is right."""
    mark = folder / RUN_ID_FILE
    other_run = bool(run_id) and mark.exists() and mark.read_text("utf-8", errors="replace") != run_id
    for below in (folder, *group_folders(folder)):
        found = read_shard_file(below)
        other = found is not None and (found["shard"], found["num_shards"]) != (share.shard, share.num_shards)
        if other or other_run:
            empty_folder(below)
            (below / SHARD_FILE).unlink(missing_ok=True)
    if run_id:
        folder.mkdir(parents=True, exist_ok=True)
        Files().publish(mark, run_id.encode())


def read_shard_file(folder: Path) -> dict[str, Any] | None:
    path = folder / SHARD_FILE
    try:
        content = bounded_json.parse_object(path.read_bytes())
        layout_from_dict(content.get("layout"))
        numbers = {name: bounded_json.whole(content, name) for name in ("shard", "num_shards")}
        return {**numbers, "layout": content["layout"]}
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read ({error}); restore it from a copy") from error
