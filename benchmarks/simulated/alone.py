"""One process with its rows in memory or on disk: measured, and predicted from what was timed without them.

Calibrated on other configurations: the compute of a step on a run whose cache holds every row and has been filled,
right before and after each measurement; the rest on a store and a cache that are timed by themselves. Predicted: caches
of several sizes, LRU, no cache. Plans are made before the clock starts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.store.contract import Rows, Store
from foresee.store.disk import DiskStore
from foresee.store.memory import MemoryStore
from foresee.tools.cost import RowBytes, Speeds, predict
from simulated.scene import (
    OPTIMIZER,
    Part,
    Scene,
    Trainee,
    cache_row_seconds,
    make_model,
    plan_part,
    store_speeds,
    time_steps,
)

BATCH_SIZE = 512
WARMUP_STEPS, TIMED_STEPS, TAIL_STEPS = 8, 16, 4
PART_STEPS = WARMUP_STEPS + TIMED_STEPS + TAIL_STEPS
FILLING_STEPS = 6
"""Different batches of the run that everything is cached for."""
CORES = 2


@dataclass(frozen=True, kw_only=True)
class LocalExchange:
    """One configuration."""

    where: str
    planner: str
    cache_share: float

    @property
    def name(self) -> str:
        return f"one process, rows in {self.where}: {self.planner}, cache of {self.cache_share:.0%}"


CONFIGURATIONS = [
    LocalExchange(where=where, planner=planner, cache_share=share)
    for where in ("memory", "disk")
    for planner, share in (("lookahead", 0.1), ("lookahead", 0.4), ("lru", 0.1), ("none", 0.1))
]
Turn = dict[str, tuple[float, float]]
"""(predicted, measured) seconds of each configuration."""


class OneProcess:
    """Stores that stay from turn to turn; every run begins where the last one of its store ended."""

    def __init__(self, folder: Path, num_turns: int) -> None:
        num_steps = num_turns * len(CONFIGURATIONS) // 2 * (WARMUP_STEPS + TIMED_STEPS) + TAIL_STEPS
        self.scene = Scene.make(batch_size=BATCH_SIZE, num_steps=num_steps, table_scale=0.005)
        self.stores: dict[str, Store] = {
            "memory": self._written(MemoryStore(self.scene.layout)),
            "disk": self._written(DiskStore.create(folder / "tables", self.scene.layout)),
        }
        self.again = Scene.make(batch_size=BATCH_SIZE, num_steps=FILLING_STEPS, table_scale=0.005, repeated=5)
        num_again = len(self.again.batches)
        self.cached = plan_part(self.again, planner="lookahead", cache_share=1.0, first_step=0, num_steps=num_again)

    def close(self) -> None:
        for store in self.stores.values():
            store.close()

    def turn(self) -> Turn:
        found = {}
        speeds = {where: self._speeds(store) for where, store in self.stores.items()}
        before = self._compute_seconds()
        for some in CONFIGURATIONS:
            store = self.stores[some.where]
            part = plan_part(
                self.scene, planner=some.planner, cache_share=some.cache_share, first_step=store.committed_step,
                num_steps=PART_STEPS,
            )  # fmt: skip
            measured = self._measure(self.scene, store, part, WARMUP_STEPS)
            after = self._compute_seconds()
            known = replace(speeds[some.where], compute_seconds=(before + after) / 2)
            found[some.name], before = (self._predict(part, known), measured), after
        return found

    def _written(self, store: Store) -> Store:
        """Every row written once: none is still to be made, no memory still to be found."""
        rows = Rows.empty(len(self.scene.touched), store.layout)
        store.read(self.scene.touched, rows)
        store.write(self.scene.touched, rows)
        store.commit(0)
        return store

    def _compute_seconds(self) -> float:
        """A step whose rows are all in the cache already."""
        store = MemoryStore(self.again.layout)
        return self._measure(self.again, store, self.cached, FILLING_STEPS + 2)

    def _measure(self, scene: Scene, store: Store, part: Part, warmup: int) -> float:
        trainee = Trainee(make_model(scene))
        run = Run(scene.stream, Tables(store, OPTIMIZER), part.header, scene.pooling, records=part.records)

        def steps() -> Iterator[None]:
            for step in run:
                trainee.step(step.dense, step.embeddings, step.labels)
                step.update()
                yield

        running = steps()
        seconds = time_steps(running, warmup, TIMED_STEPS).seconds
        running.close()  # type: ignore[attr-defined]
        return seconds

    def _speeds(self, store: Store) -> Speeds:
        request, read_row, write_row = store_speeds(store, self.scene.shuffled)
        return Speeds(
            compute_seconds=0.0, cores=CORES, request_seconds=request, read_row_seconds=read_row,
            write_row_seconds=write_row, cache_row_seconds=cache_row_seconds(self.scene),
        )  # fmt: skip

    def _predict(self, part: Part, speeds: Speeds) -> float:
        values = 4 * self.scene.layout.width
        row = RowBytes(stored=self.scene.layout.row_bytes, value=values, gradient=values)
        trained = part.volumes.until_step(WARMUP_STEPS + TIMED_STEPS)
        return predict(trained, row, speeds, first_step=WARMUP_STEPS).step_seconds


def turns(count: int) -> Iterator[Turn]:
    """Turn after turn of all configurations."""
    with tempfile.TemporaryDirectory(prefix="foresee-simulator-") as folder:
        process = OneProcess(Path(folder), count)
        try:
            for _ in range(count):
                yield process.turn()
        finally:
            process.close()
