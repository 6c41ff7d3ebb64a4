"""A cluster that does not exist: the real planner over some steps of a log, and a cost model for the machines.

In: steps of a log (or of `SyntheticStream`, a log of any size without a file), a policy, a cache, and the speeds of a
cluster; `time_rows` measures on this machine what a row costs a processor. Out: how long a step would take, what would
limit it, what memory trainers, servers and planner need, and how long planning took here. Caches are empty at the first
step, so a short sample has more fetches than a long run: predictions err on the slow side, the more the larger the
tables. Nothing is trained and no table is opened.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from foresee.data.batch import Batch
from foresee.data.synthetic import CRITEO_TABLE_SIZES, criteo_table_sizes, synthetic_rows
from foresee.engine.cache import SlotCache
from foresee.engine.header import FETCH_AHEAD_STEPS
from foresee.engine.kernels import Threads
from foresee.engine.optimizers import OPTIMIZERS
from foresee.engine.pipeline import WRITES_IN_FLIGHT
from foresee.errors import DataError
from foresee.plan.count import CRITICAL, RECEIVED, Measuring, Volumes
from foresee.plan.policy import Policy
from foresee.plan.record import Evict, Fetch, Header, Record
from foresee.plan.upcoming import ROW_TABLE_BYTES, WINDOW_BYTES, WINDOW_STEPS, bytes_in_window
from foresee.run.memory import SLOT_TABLE_BYTES, planner_slot_bytes
from foresee.store.contract import Rows
from foresee.store.layout import Layout, Table
from foresee.store.memory import MemoryStore
from foresee.tools.comparison import CacheSize, Candidate, Sample, bytes_of, header_of, planner_for
from foresee.tools.cost import Prediction, Speeds, predict, transfer_bytes

NUM_ROWS, NUM_TIMED, TURNS = 100_000, 10_000, 5
WARM_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimes:
    """Seconds a row."""

    read: float
    write: float
    cache: float
    """Into a slot or out of one."""


def time_rows(layout: Layout) -> RowTimes:
    """Medians of a few turns."""
    small, rng = replace(layout, tables=(Table("probe", NUM_ROWS),)), np.random.default_rng(0)
    store, rows = MemoryStore(small), Rows.empty(NUM_TIMED, small)
    every = np.arange(NUM_ROWS)
    filled = Rows.empty(NUM_ROWS, small)
    store.read(every, filled)
    store.write(every, filled)

    def some() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return rng.permutation(NUM_ROWS)[:NUM_TIMED]

    read = _median(lambda chosen: store.read(chosen, rows), some)
    write = _median(lambda chosen: store.write(chosen, rows), some)
    optimizer = OPTIMIZERS[layout.optimizer](lr=0.01)
    with Threads(1) as threads:
        cache = SlotCache(small, optimizer, capacity_rows=NUM_ROWS, threads=threads)
        copied = _median(lambda chosen: _in_and_out(cache, chosen, rows), some)
    return RowTimes(read=read, write=write, cache=copied / 2)


def _in_and_out(cache: SlotCache, chosen: np.ndarray[tuple[int], np.dtype[np.int64]], rows: Rows) -> None:
    slots = chosen.astype(np.int32)
    cache.fill(Fetch(chosen, slots, rows.versions), rows)
    cache.take(Evict(slots, chosen, rows.versions))


def _median(act: Callable[..., None], some: Callable[[], np.ndarray[tuple[int], np.dtype[np.int64]]]) -> float:
    seconds = []
    for _ in range(TURNS + 1):
        chosen = some()
        begun = time.thread_time()
        act(chosen)
        seconds.append((time.thread_time() - begun) / NUM_TIMED)
    return statistics.median(seconds[1:])


TABLE_ROWS_MAX = (1 << 31) - 1
ROWS_MIN, ROWS_MAX = 10_000, 10**12


class SyntheticStream:
    """A `BatchStream` of as many steps as are asked for."""

    def __init__(self, num_rows: float, *, batch_size: int, num_steps: int, seed: int = 0) -> None:
        if not ROWS_MIN <= num_rows <= ROWS_MAX:
            raise DataError(f"a synthetic log of {num_rows:g} rows cannot be made; give {ROWS_MIN:,} to {ROWS_MAX:,}")
        copies = 1
        while max(criteo_table_sizes(num_rows / copies / sum(CRITEO_TABLE_SIZES))) > TABLE_ROWS_MAX:
            copies += 1
        self.table_sizes = criteo_table_sizes(num_rows / copies / sum(CRITEO_TABLE_SIZES)) * copies
        self.batch_size = batch_size
        self.num_steps = num_steps
        self.seed = seed

    @property
    def num_rows(self) -> int:
        return sum(self.table_sizes)

    @property
    def tables(self) -> list[Table]:
        return [Table(f"C{number + 1}", size) for number, size in enumerate(self.table_sizes)]

    @property
    def digest(self) -> str:
        identity = (self.table_sizes, self.batch_size, self.num_steps, self.seed)
        return hashlib.sha256(repr(identity).encode()).hexdigest()

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        nothing, labels = np.empty((self.batch_size, 0), np.float32), np.zeros(self.batch_size, np.float32)
        drawn = synthetic_rows(
            batch_size=self.batch_size,
            num_batches=self.num_steps - first_step,
            seed=self.seed,
            table_sizes=self.table_sizes,
            first_batch=first_step,
        )
        for step, rows in enumerate(drawn, start=first_step):
            yield Batch(step, nothing, labels, rows.reshape(-1), None, len(self.table_sizes))


WIRE_BYTES = 12
"""What goes with a row between a trainer and a server: its id and its version."""
IN_FLIGHT_STEPS = 2 * FETCH_AHEAD_STEPS + 4 + WRITES_IN_FLIGHT + 2
"""Steps whose rows or records a trainer holds beside its cache, at most."""
PLANNER_LOOKUP_BYTES = 16
"""What it keeps for a lookup of its window: row, position, next use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What there would be."""

    speeds: Speeds
    """Without a planner; that one is timed."""
    num_planners: int
    """Cores that planning is spread over; 0: the plan was made before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What came out for so many trainers."""

    num_trainers: int
    num_servers: int
    cache_rows: int
    num_steps: int
    batch_size: int
    """Of all trainers together."""
    num_unique: float
    """Distinct rows of a global batch."""
    hit_rate: float
    fetched_rows: float
    """Of a trainer in a step, as all that follow."""
    critical_bytes: float
    """Received from other trainers, due at the next step."""
    critical_bytes_most: float
    """Of the busiest trainer, sent or received."""
    plan_bytes: float
    prediction: Prediction
    planner_seconds: float
    """Processor time of planning one step for all trainers, on this machine."""
    trainer_bytes: float
    server_bytes: float
    planner_bytes: float

    @property
    def samples_per_second(self) -> float:
        return self.batch_size / self.prediction.step_seconds

    @property
    def planner_cores(self) -> float:
        """Cores like one of this machine that planning as fast as training needs."""
        return self.planner_seconds / self.prediction.step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Steps of a log, planned for so many trainers: the same on any machines."""

    sample: Sample
    header: Header
    layout: Layout
    volumes: Volumes
    """Without the last step, which writes everything back."""
    planner_seconds: float


def plan_sample(
    sample: Sample, candidate: Candidate, cache: CacheSize, layout: Layout, advance: Callable[[], None] | None = None
) -> Planned:
    """Plans the sample's steps, and times that."""
    header = header_of(sample, sample.rows_of(cache), candidate)
    timed = _Timed()
    measuring = Measuring(sample.num_workers)
    for record in timed.records(candidate.policy, header, sample, advance or (lambda: None)):
        measuring.add(record)
    volumes = measuring.volumes()
    return Planned(
        sample=sample,
        header=header,
        layout=layout,
        volumes=volumes.until_step(max(1, volumes.num_steps - 1)),
        planner_seconds=timed.seconds / len(sample.steps),
    )


def simulate(planned: Planned, cluster: ClusterSpec) -> Simulated:
    """Predicts the second half of the planned steps on these machines."""
    sample, header, layout, trained = planned.sample, planned.header, planned.layout, planned.volumes
    bound = planned.planner_seconds / cluster.num_planners if cluster.num_planners else 0.0
    row_bytes = bytes_of(layout)
    on_wire = replace(row_bytes, stored=row_bytes.stored + WIRE_BYTES)
    speeds = replace(cluster.speeds, planner_seconds=bound)
    prediction = predict(trained, on_wire, speeds, first_step=trained.num_steps // 2)
    steady = trained.from_step(trained.num_steps // 2)
    critical = transfer_bytes(steady, on_wire)[..., CRITICAL]  # [steps, workers, directions]
    return Simulated(
        num_trainers=sample.num_workers,
        num_servers=speeds.num_servers,
        cache_rows=header.capacity_rows,
        num_steps=len(sample.steps),
        batch_size=sample.steps[0].num_samples,
        num_unique=sample.num_unique,
        hit_rate=steady.hit_rate,
        fetched_rows=float(steady.fetched.mean()),
        critical_bytes=float(critical[:, :, RECEIVED].mean()),
        critical_bytes_most=float(critical.max(axis=(1, 2)).mean()),
        plan_bytes=float(steady.plan_bytes.mean()),
        prediction=prediction,
        planner_seconds=planned.planner_seconds,
        trainer_bytes=trainer_bytes(header, steady, layout),
        server_bytes=sample.num_rows * layout.row_bytes / speeds.num_servers,
        planner_bytes=planner_bytes(header, sample),
    )


def trainer_bytes(header: Header, volumes: Volumes, layout: Layout) -> float:
    """Slots, rows on their way, and records; beside the model and torch."""
    slots = header.capacity_rows * (layout.row_bytes + SLOT_TABLE_BYTES)
    staging = IN_FLIGHT_STEPS * int(volumes.fetched.max(initial=0)) * layout.row_bytes
    return slots + staging + IN_FLIGHT_STEPS * float(volumes.plan_bytes.mean())


def planner_bytes(header: Header, sample: Sample) -> float:
    """Slots of all trainers, the window's lookups, and the rows the planner knows: never more than the window holds."""
    lookups = len(sample.steps[0].rows)
    window = min(WINDOW_STEPS, WINDOW_BYTES // max(1, bytes_in_window(lookups, round(sample.num_unique))) + 1)
    known = min(header.num_rows, header.num_workers * header.capacity_rows + window * sample.num_unique)
    slots = header.num_workers * header.capacity_rows * planner_slot_bytes(header.num_workers)
    return slots + window * lookups * PLANNER_LOOKUP_BYTES + known * ROW_TABLE_BYTES


class _Timed:
    """Plans, and adds up the processor time that takes; what whoever takes the records does is not in it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def records(self, policy: Policy, header: Header, sample: Sample, advance: Callable[[], None]) -> Iterator[Record]:
        self._compile(policy, header, sample)
        planner = planner_for(policy, header, sample)
        for accesses in sample.steps:
            begun = time.thread_time()
            records = planner.push(accesses)
            self.seconds += time.thread_time() - begun
            advance()
            yield from records
        begun = time.thread_time()
        records = planner.finish()
        self.seconds += time.thread_time() - begun
        yield from records

    def _compile(self, policy: Policy, header: Header, sample: Sample) -> None:
        """A few steps planned and forgotten, so that compiling and loading kernels is not in the time."""
        planner = planner_for(policy, header, sample)
        for accesses in sample.steps[:WARM_STEPS]:
            planner.push(accesses)
        planner.finish()
