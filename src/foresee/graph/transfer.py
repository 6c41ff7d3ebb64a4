"""Rows or partitions: what a row costs that is read alone, and one that comes with its partition, measured here.

In: the kind of store of a run, how its rows look, and where they will lie; two plans of the same steps, one that moves
rows and one that moves whole partitions. Out: which of them costs less to read, and a sentence that says why. The
probe writes a few megabytes into a temporary folder beside the tables (or to servers of this process), reads some rows
in no order and a run of as many, in turn, and takes it all away again. Nothing that is learned depends on it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from foresee.engine.planned_step import planned_records
from foresee.errors import PlanError
from foresee.io.folders import hidden_folder
from foresee.plan.record import Header
from foresee.store.contract import Rows, Store
from foresee.store.layout import Layout, Table
from foresee.store.registry import StoreKind
from foresee.store.remote.named import local_servers, open_trainer

READ_STEPS = 256
"""Of an epoch's first steps: enough to tell which reads less."""
PROBE_BYTES = 8 << 20
LONE_SHARE = 32
"""One row of so many is read in the probe."""
ROUNDS = 5
_measured: dict[tuple[str, int, int], Costs] = {}
"""By kind of store, bytes of a row and device: asked once a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of reading one row."""

    alone: float
    in_run: float

    @property
    def ratio(self) -> float:
        return self.alone / max(self.in_run, 1e-12)


def unit_of(
    stream: Any, rows: Header, partitions: Header, costs: Callable[[], Costs]
) -> tuple[Header, str]:  # fmt: skip
    """The plan that costs less to read, and why."""
    if len(stream.traversal(0).states) == 1 or rows.capacity_rows >= rows.num_rows:
        return rows, "moving rows: everything is in one state of the buffer, or fits into the cache"
    num_steps = min(READ_STEPS, rows.num_steps)
    by_rows, by_partitions = (_num_fetched(stream, header, num_steps) for header in (rows, partitions))
    if by_partitions is None:
        return rows, "moving rows: whole partitions do not fit into the cache"
    if by_rows is None:
        return partitions, "moving partitions: the rows of a step do not fit into the cache one by one"
    found = costs()
    chosen = partitions if by_partitions * found.in_run < by_rows * found.alone else rows
    return chosen, (
        f"moving {'rows' if chosen is rows else 'partitions'}: the first {num_steps:,} steps read {by_rows:,} rows, or "
        f"{by_partitions:,} in partitions; one alone costs {found.ratio:.1f} times one of a partition here "
        f"({1e6 * found.alone:.2f} and {1e6 * found.in_run:.2f} µs)"
    )


def _num_fetched(stream: Any, header: Header, num_steps: int) -> int | None:
    """Rows that the first steps read; None: the cache is too small."""
    try:
        records = planned_records(stream, replace(header, num_steps=num_steps))
        return sum(len(record.fetch) for record in islice(records, num_steps))
    except PlanError:
        return None


def measured(kind: StoreKind, layout: Layout, folder: Path) -> Costs:
    """What reading costs with tables of this kind at this place."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    key = kind.name, layout.row_bytes, place.stat().st_dev
    if key not in _measured:
        _measured[key] = _probe(kind, layout, place)
    return _measured[key]


def _probe(kind: StoreKind, layout: Layout, place: Path) -> Costs:
    num_rows = max(2 * LONE_SHARE, min(layout.num_rows, PROBE_BYTES // layout.row_bytes))
    with _scratch(kind, replace(layout, tables=(Table("probe", num_rows),)), place) as store:
        ids = np.arange(num_rows)
        rows = Rows.empty(num_rows, store.layout)
        store.read(ids, rows)
        rows.versions[:] = 1
        store.write(ids, rows)
        store.commit(1)
        rng, number = np.random.Generator(np.random.PCG64(0)), num_rows // LONE_SHARE
        seconds: list[tuple[float, float]] = []
        for _ in range(ROUNDS + 1):  # the first one warms up
            begin = int(rng.integers(num_rows - number))
            lone = np.sort(rng.choice(num_rows, number, replace=False))
            seconds.append((_seconds(store, lone), _seconds(store, ids[begin : begin + number])))
    alone, in_run = (min(times) / number for times in zip(*seconds[1:], strict=True))  # others may be at work, too
    return Costs(alone=alone, in_run=in_run)


def _seconds(store: Store, ids: Any) -> float:
    out, begun = Rows.empty(len(ids), store.layout), time.perf_counter()
    store.read(ids, out)
    return time.perf_counter() - begun


@contextmanager
def _scratch(kind: StoreKind, layout: Layout, place: Path) -> Iterator[Store]:
    """A store of this kind with few rows, gone afterwards."""
    with ExitStack() as stack:
        if kind.open_newest is not None:
            store: Store = open_trainer(stack.enter_context(local_servers(layout, 1)), layout)
        else:
            store = kind.open(stack.enter_context(_folder(place)) / "tables", layout)
        stack.callback(store.close)
        yield store


@contextmanager
def _folder(place: Path) -> Iterator[Path]:
    """A temporary folder there, or where the system has them."""
    with ExitStack() as stack:
        found = None
        with suppress(OSError):
            found = stack.enter_context(hidden_folder(place / "foresee", "probe"))
        yield found or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foresee-probe-")))
