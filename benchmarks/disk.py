"""What fetching and writing back a row costs on a cold disk: the disk store against the mapped one that was before it.

A log is planned (lookahead, cache of 5 % of the touched rows), two epochs of it, in two orders. Every row of the tables
was written before and lies in the base. The first epoch brings rows where a run has them; the second is measured: both
sides fetch and write back exactly what the plan says, step by step in turn, and the system forgets the mapped files
after every step, as it has to when tables are far larger than memory. Next uses are those of the whole log.

    cpu_over_before       processor time of the process a row, ours over the mapped store's, median over the logs
    read_amplification    bytes read from the disk / bytes of the rows fetched (rows still in memory need none)
    write_amplification   bytes written to the disk / bytes of the rows written back, without the fold at the end

Logs: Criteo's table sizes (a tenth; `--full` all of them, 8.9 GB), Avazu and Criteo from $FORESEE_DATA or
../shared/data. The memory in which our store collects rows is that of the cache, at most its 32 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from foresee.data import Avazu, Criteo, PrepareOptions, criteo_table_sizes, prepare, synthetic_rows
from foresee.io.direct import Way
from foresee.io.files import Files
from foresee.plan import make_planner, plan
from foresee.plan.record import NOT_KNOWN, Accesses, Record
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore, log
from foresee.store.disk.base import Base
from foresee.store.layout import Layout, Table
from foresee.testing.traces import header_for, largest_batch
from sides.mapped_rows import MappedRows

DATA = Path(os.environ.get("FORESEE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
CACHE_SHARE, RECENT_SHARE = 0.05, 0.05
STEPS_MAX = 1 << 20


@dataclass
class Log:
    """Two epochs of accesses."""

    name: str
    num_rows: int
    trace: list[Accesses]
    records: list[Record] = field(default_factory=list)

    @property
    def epoch_steps(self) -> int:
        return len(self.trace) // 2


@dataclass
class Cost:
    """What one side took for the second epoch."""

    cpu_seconds: float = 0.0
    seconds: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    fetched: int = 0
    evicted: int = 0

    def per_row(self) -> float:
        return 1e6 * self.cpu_seconds / (self.fetched + self.evicted)


def two_epochs(name: str, samples: NDArray[np.int64], batch_size: int, num_rows: int) -> Log:
    """Samples [samples, lookups] in two orders."""
    rng = np.random.default_rng(0)
    num_steps = len(samples) // batch_size
    offsets = np.arange(0, batch_size * samples.shape[1] + 1, samples.shape[1], dtype=np.int32)
    trace = []
    for _ in range(2):
        order = rng.permutation(len(samples))[: num_steps * batch_size].reshape(num_steps, batch_size)
        trace += [Accesses(samples[some].reshape(-1), offsets) for some in order]
    return Log(name, num_rows, trace)


def logs(folder: Path, *, full: bool) -> Iterator[Log]:
    scale, steps, batch_size = (1.0, 320, 2048) if full else (0.1, 100, 512)
    sizes = criteo_table_sizes(scale)
    rows = np.concatenate(list(synthetic_rows(batch_size=batch_size, num_batches=steps, table_sizes=sizes)))
    yield two_epochs(f"criteo-shaped x{scale}", rows, batch_size, sum(sizes))
    for name, source, batch_size in (
        ("avazu", Avazu(files=(DATA / "avazu/avazu_union_sorted.csv",)), 256),
        ("criteo", Criteo(files=(DATA / "criteo/criteo_kaggle_union.tsv",)), 256),
    ):
        if not Path(source.files[0]).exists():
            print(f"{name}: {source.files[0]} is not there; set FORESEE_DATA to the folder of the real logs")
            continue
        found = prepare(source, folder / name, PrepareOptions(split="random", valid_share=0.0)).log
        batches = found.batches(batch_size=batch_size).batches()
        samples = np.concatenate([batch.rows.reshape(len(batch.labels), -1) for batch in batches])
        yield two_epochs(name, samples, batch_size, found.num_rows)


def planned(log: Log) -> tuple[Log, int]:
    """The plan of a log, with the next uses of the whole of it; rows that it touches."""
    pairs = np.concatenate([np.unique(accesses.rows) * STEPS_MAX + step for step, accesses in enumerate(log.trace)])
    pairs.sort()
    touched = len(np.unique(pairs // STEPS_MAX))
    capacity = max(int(CACHE_SHARE * touched), 2 * largest_batch(log.trace))
    header = header_for("lookahead", log.trace, capacity_rows=capacity, num_rows=log.num_rows, fetch_ahead_steps=1,
                        window_bytes=1 << 26, remember_versions=False)  # fmt: skip
    for record in plan(make_planner(header, lambda steps: log.trace[:steps]), log.trace):
        after = np.searchsorted(pairs, record.evict.row.astype(np.int64) * STEPS_MAX + record.step, "right")
        following = np.append(pairs, -1)[after]
        next_use = np.where(following // STEPS_MAX == record.evict.row, following % STEPS_MAX, NOT_KNOWN)
        log.records.append(replace(record, evict=replace(record.evict, next_use=next_use.astype(np.int32))))
    return log, touched


def disk_bytes() -> tuple[int, int]:
    """Bytes that this process has read from and written to disks."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"]), int(lines["write_bytes"])


class Side:
    """A store, and what it took."""

    def __init__(self, store: DiskStore | MappedRows, layout: Layout, rows_max: int) -> None:
        self._store, self.cost = store, Cost()
        self._fetched, self._evicted = Rows.empty(rows_max, layout), Rows.empty(rows_max, layout)
        self._evicted.values.fill(1.0)
        self._evicted.state.fill(1.0)

    def step(self, record: Record, *, counted: bool) -> None:
        fetch, evict = record.fetch.row.astype(np.int64), record.evict.row.astype(np.int64)
        source = self._evicted.first(len(evict))
        source.versions.fill(record.step + 1)
        before, begun, cpu = disk_bytes(), time.perf_counter(), time.process_time()
        self._store.read(fetch, self._fetched.first(len(fetch)))
        if isinstance(self._store, DiskStore):
            self._store.write(evict, source, record.evict.next_use)
        else:
            self._store.write(evict, source)
        cpu, seconds = time.process_time() - cpu, time.perf_counter() - begun
        self._store.forget_pages()  # also writes what is dirty, which counts as written
        after = disk_bytes()
        if counted:
            cost = self.cost
            cost.cpu_seconds += cpu
            cost.seconds += seconds
            cost.read_bytes += after[0] - before[0]
            cost.written_bytes += after[1] - before[1]
            cost.fetched += len(fetch)
            cost.evicted += len(evict)


def measure(log_: Log, touched: int, folder: Path) -> tuple[Cost, Cost]:
    """Ours, and the mapped store."""
    layout = Layout(tables=(Table("all", log_.num_rows),), width=64, state_width=1, optimizer="rowwise_adagrad")
    rows_max = max(max(len(record.fetch), len(record.evict)) for record in log_.records)
    for name in ("ours", "before"):
        with mock.patch.dict(os.environ, FORESEE_DISK="io_uring"):  # nothing of it is left in the page cache
            store = DiskStore.create(folder / name, layout)
        store.initialise_all()
        store.close()
    recent = min(log.RECENT_BYTES, int(RECENT_SHARE * touched * layout.row_bytes))
    with mock.patch.object(log, "RECENT_BYTES", recent), mock.patch.dict(os.environ, FORESEE_DISK="io_uring"):
        store = DiskStore.open(folder / "ours")
    print(f"{log_.name}: {layout.num_rows * layout.row_bytes / 1e9:.2f} GB, {touched:,} rows touched, {store.way}")
    base = Base(folder / "before", layout, Files(), Way("mapped"))
    mapped = MappedRows(base, layout, folder / "overlay.bin", touched)
    ours, before = Side(store, layout, rows_max), Side(mapped, layout, rows_max)
    for record in log_.records:
        counted = record.step >= log_.epoch_steps
        if record.step == log_.epoch_steps:
            mapped.fold()
            mapped.forget_pages()
        for side in (ours, before) if record.step % 2 else (before, ours):
            side.step(record, counted=counted)
    store._journal.fold = lambda: None  # type: ignore[method-assign] # nothing was committed
    store.close()
    mapped.close()
    base.close()
    shutil.rmtree(folder / "ours")
    shutil.rmtree(folder / "before")
    return ours.cost, before.cost


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="Criteo's whole tables: 8.9 GB, and as much beside them")
    full = parser.parse_args().full
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("FORESEE_BENCH_DIR", ".")) as place:
        rng = np.random.default_rng(1)
        measure(*planned(two_epochs("compiling", rng.integers(0, 5000, (6400, 4)), 64, 5000)), Path(place))
        for each in logs(Path(place), full=full):
            log_, touched = planned(each)
            ours, before = measure(log_, touched, Path(place))
            figures[each.name] = compared(ours, before)
            print(f"  {figures[each.name]}")
    names = ("cpu_over_before", "read_amplification", "write_amplification")
    medians = {name: round(statistics.median(each[name] for each in figures.values()), 4) for name in names}
    print(json.dumps({**medians, "logs": figures}))


def compared(ours: Cost, before: Cost) -> dict[str, float]:
    row_bytes = 264
    return {
        "cpu_over_before": round(ours.per_row() / before.per_row(), 4),
        "read_amplification": round(ours.read_bytes / (ours.fetched * row_bytes), 3),
        "write_amplification": round(ours.written_bytes / (ours.evicted * row_bytes), 3),
        "cpu_us_a_row": round(ours.per_row(), 3),
        "cpu_us_a_row_before": round(before.per_row(), 3),
        "read_amplification_before": round(before.read_bytes / (before.fetched * row_bytes), 3),
        "write_amplification_before": round(before.written_bytes / (before.evicted * row_bytes), 3),
        "seconds_over_before": round(ours.seconds / before.seconds, 4),
    }


if __name__ == "__main__":
    main()
