"""Exactness, the promise itself: any plan, any store, any cache size leaves the bytes of training without a cache.

Every cell trains once with its plan, store and capacity and compares every byte of values, optimiser state, versions
and dense weights with the same model, optimiser and seed trained without a cache (planner `none`, rows in memory). The
cells are a design in which every two values of two axes meet; a test counts them, so they cannot quietly become fewer.
"""

from __future__ import annotations

from dataclasses import fields
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from foresee.data.batch import BatchStream
from foresee.data.click_log import ClickLog
from foresee.data.synthetic import tiny
from foresee.engine.header import make_header
from foresee.engine.optimizers import OPTIMIZERS, Optimizer, make_optimizer
from foresee.engine.planned_step import Pooling, planned
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.models import MODELS
from foresee.plan import trainable
from foresee.plan.record import Header
from foresee.run.by_name import row_width
from whole_run import NO_DIFFERENCE, Outcome, differing_bytes, train

DIM = 4
BATCH_SIZE = 8
NUM_CELLS_MIN = 200
STORES = ("memory", "disk")
CAPACITIES = ("tight", "small", "all")
SEEDS = (0, 1, 2, 3)  # even: one id a feature; odd: bags, summed and averaged, some empty
WINDOW = "lookahead, window 2"


class Cell(NamedTuple):
    """One way to train."""

    model: str
    optimizer: str
    store: str
    capacity: str
    planner: str
    seed: int

    def __str__(self) -> str:
        return "-".join(str(value).replace(", ", "_") for value in self)


AXES: dict[str, tuple[object, ...]] = {
    "model": tuple(MODELS),
    "optimizer": tuple(OPTIMIZERS),
    "store": STORES,
    "capacity": CAPACITIES,
    "planner": (*trainable(), WINDOW),
    "seed": SEEDS,
}


def cells() -> list[Cell]:
    """Every model with every optimiser and planner, twice; the other axes turn at speeds that never fall in step."""
    chosen = []
    for turn, (model, optimizer, planner) in enumerate(product(MODELS, OPTIMIZERS, AXES["planner"])):
        for half in (0, 1):
            store, seed = STORES[(turn + half) % 2], SEEDS[(turn // 2 + 2 * half + turn // 7) % 4]
            chosen.append(Cell(model, optimizer, store, CAPACITIES[(turn + half + turn // 21) % 3], str(planner), seed))
    return chosen


CELLS = cells()


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, ClickLog]:
    folder = tmp_path_factory.mktemp("logs")
    return {seed: tiny(folder / str(seed), seed=seed, num_samples=300, multi_valued=seed % 2 == 1) for seed in SEEDS}


@pytest.fixture(scope="session")
def uncached(logs: dict[int, ClickLog]) -> dict[tuple[str, str, int], Outcome]:
    """Filled as cells ask: what training without a cache leaves."""
    return {}


def optimizer_of(name: str) -> Optimizer:
    return make_optimizer(name, {"lr": 0.1})


def model_of(cell: Cell, log: ClickLog) -> nn.Module:
    torch.manual_seed(cell.seed)
    parts = ("bottom", "top") if cell.model == "dlrm" else ("deep",)
    return MODELS[cell.model](log, DIM, **dict.fromkeys(parts, (5,)))


def tables_of(cell: Cell, log: ClickLog, folder: Path) -> Tables:
    kind = {"dim": row_width(cell.model, DIM), "optimizer": optimizer_of(cell.optimizer), "seed": cell.seed}
    if cell.store == "memory":
        return Tables.in_memory(log, **kind)  # type: ignore[arg-type]
    return Tables.on_disk(folder / "tables", log, **kind)  # type: ignore[arg-type]


def distinct_rows(stream: BatchStream, num_steps: int) -> int:
    """Most distinct rows of so many consecutive steps."""
    batches = [batch.rows for batch in stream.batches()]
    return max(len(np.unique(np.concatenate(batches[i : i + num_steps]))) for i in range(len(batches)))


def header_of(cell: Cell, stream: BatchStream) -> Header:
    least = distinct_rows(stream, 3 if cell.planner == WINDOW else 1)
    rows = {"tight": least, "small": least + (stream.num_rows - least) // 4, "all": stream.num_rows}[cell.capacity]
    return make_header(
        stream, planner=cell.planner.split(",")[0], cache_rows=rows, window_steps=2 if cell.planner == WINDOW else None,
        fetch_ahead_steps=3, remember_versions=True,
    )  # fmt: skip


def trained(cell: Cell, log: ClickLog, folder: Path, *, num_threads: int = 1, keep_plan: bool = False) -> Outcome:
    stream = log.batches(batch_size=BATCH_SIZE, seed=cell.seed)
    header, pooling = header_of(cell, stream), Pooling.of(log.mean_features)
    records = [work.record for work in planned(stream, header, pooling)] if keep_plan else None
    with tables_of(cell, log, folder) as tables:
        run = Run(stream, tables, header, pooling, records=records, num_threads=num_threads)
        return train(run, model_of(cell, log))


def reference_of(cell: Cell, log: ClickLog, folder: Path, kept: dict[tuple[str, str, int], Outcome]) -> Outcome:
    key = (cell.model, cell.optimizer, cell.seed)
    if key not in kept:
        kept[key] = trained(cell._replace(store="memory", capacity="tight", planner="none"), log, folder)
    return kept[key]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_not_one_byte_differs(
    cell: Cell, logs: dict[int, ClickLog], uncached: dict[tuple[str, str, int], Outcome], tmp_path: Path
) -> None:
    log = logs[cell.seed]
    reference = reference_of(cell, log, tmp_path, uncached)
    outcome = trained(cell, log, tmp_path)
    assert differing_bytes(reference, outcome) == NO_DIFFERENCE
    assert outcome.losses == reference.losses
    assert outcome.committed_step == len(outcome.losses) == 30


def test_there_are_enough_cells_and_every_two_values_meet() -> None:
    assert len(set(CELLS)) == len(CELLS) >= NUM_CELLS_MIN
    for one, other in combinations(AXES, 2):
        met = {(getattr(cell, one), getattr(cell, other)) for cell in CELLS}
        assert met == set(product(AXES[one], AXES[other])), f"not every {one} meets every {other}"


@pytest.mark.parametrize("seed", SEEDS)
def test_training_did_something(
    seed: int, logs: dict[int, ClickLog], uncached: dict[tuple[str, str, int], Outcome], tmp_path: Path
) -> None:
    """Equal bytes prove nothing if nothing was trained: the rows touched, and they alone, are new, in their versions.

    The model's wide weights always have a gradient, so a row that was touched has moved.
    """
    log = logs[seed]
    cell = Cell("wide_and_deep", "adagrad", "memory", "tight", "none", seed)
    outcome = reference_of(cell, log, tmp_path, uncached)
    versions = np.zeros(log.num_rows, np.int32)
    for batch in log.batches(batch_size=BATCH_SIZE, seed=seed).batches():
        versions[batch.rows] = batch.step + 1
    assert np.array_equal(outcome.rows.versions, versions)
    assert ((outcome.rows.state != 0).any(axis=1) == (versions > 0)).all()
    with tables_of(cell, log, tmp_path) as fresh:
        before = np.concatenate([fresh.values(table.name) for table in log.tables])
    assert ((outcome.rows.values != before).any(axis=1) == (versions > 0)).all()
    assert outcome.dense != b"".join(value.numpy().tobytes() for value in model_of(cell, log).state_dict().values())


@pytest.mark.parametrize("part", ["values", "state", "versions", "dense"])
def test_the_comparison_sees_a_single_bit(part: str, logs: dict[int, ClickLog], tmp_path: Path) -> None:
    cell = Cell("dlrm", "adagrad", "memory", "tight", "none", 0)
    one, other = trained(cell, logs[0], tmp_path), trained(cell, logs[0], tmp_path)
    if part == "dense":
        changed = bytes([other.dense[0] ^ 1]) + other.dense[1:]
        other = Outcome(**{**{f.name: getattr(other, f.name) for f in fields(other)}, "dense": changed})
    else:
        getattr(other.rows, part).reshape(-1).view(np.uint8)[7] ^= 1
    assert differing_bytes(one, other) == {**NO_DIFFERENCE, part: 1}


@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_of_the_kernels_change_no_byte(num_threads: int, logs: dict[int, ClickLog], tmp_path: Path) -> None:
    for seed in (0, 1):
        cell = Cell("deepfm", "lazy_adam", "memory", "small", "lookahead", seed)
        one = trained(cell, logs[seed], tmp_path)
        several = trained(cell, logs[seed], tmp_path, num_threads=num_threads)
        assert differing_bytes(one, several) == NO_DIFFERENCE


@pytest.mark.parametrize("planner", ["lookahead", "lru", WINDOW])
def test_a_kept_plan_gives_the_same_bytes_as_planning_beside_training(
    planner: str, logs: dict[int, ClickLog], tmp_path: Path
) -> None:
    cell = Cell("ncf", "rowwise_adagrad", "memory", "small", planner, 1)
    beside, kept = trained(cell, logs[1], tmp_path), trained(cell, logs[1], tmp_path, keep_plan=True)
    assert differing_bytes(beside, kept) == NO_DIFFERENCE
