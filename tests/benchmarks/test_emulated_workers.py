"""The emulation of workers is true to the protocols: exact ones end with the bytes of training without workers.

Gradients here are whole numbers that depend on what was read, and the learning rate is one: every sum is exact in
float32, in whatever order it is taken, and a single stale read changes the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from emulated.protocols import hot_last
from emulated.workers import EmulatedWorkers
from foresee.data.batch import Batch
from foresee.engine.planned_step import accesses_of
from foresee.plan import check_plan, find, plan
from foresee.plan.baselines.fae import hot_rows
from foresee.plan.record import Fetch, Header, PlannerOptions, Push, Record

NUM_ROWS, WIDTH, NUM_FEATURES, NUM_STEPS, SAMPLES = 60, 3, 2, 40, 16
CAPACITY = 50
ADDITIVE = ("het", "herald")


def whole_numbers(dense: Tensor, embeddings: Tensor, labels: Tensor) -> Tensor:
    """A gradient of -2 to 2 that depends on every value of the sample's own rows, and on its label."""
    mixed = embeddings.sum(dim=(1, 2), keepdim=True) * 3 + embeddings * 7 + labels[:, None, None] * 2
    return mixed.remainder(5) - 2


def batches_of(seed: int) -> list[Batch]:
    """Skewed, so that some rows are used by all workers at once and others are given up."""
    rng = np.random.default_rng(seed)
    rows = (rng.random((NUM_STEPS, SAMPLES, NUM_FEATURES)) ** 3 * NUM_ROWS).astype(np.int64)
    labels = rng.integers(0, 2, (NUM_STEPS, SAMPLES)).astype(np.float32)
    dense = np.zeros((SAMPLES, 0), np.float32)
    return [Batch(step, dense, labels[step], rows[step].reshape(-1), None, NUM_FEATURES) for step in range(NUM_STEPS)]


def first_rows() -> Tensor:
    return torch.from_numpy(np.random.default_rng(9).integers(-8, 9, (NUM_ROWS, WIDTH)).astype(np.float32))


def without_workers(batches: Sequence[Batch]) -> Tensor:
    """Synchronous training: one table, one gradient for each row and step."""
    rows = first_rows()
    for batch in batches:
        ids = torch.from_numpy(batch.rows)
        embeddings = rows[ids].view(batch.num_samples, NUM_FEATURES, WIDTH)
        gradient = whole_numbers(torch.from_numpy(batch.dense), embeddings, torch.from_numpy(batch.labels))
        rows.index_add_(0, ids, -gradient.reshape(-1, WIDTH))
    return rows


def header_of(planner: str, num_workers: int, staleness: int = 0) -> Header:
    return Header(
        planner=planner, options=PlannerOptions(staleness=staleness), num_workers=num_workers, capacity_rows=CAPACITY,
        num_rows=NUM_ROWS, first_step=0, num_steps=NUM_STEPS, fetch_ahead_steps=8, stream_digest="test",
    )  # fmt: skip


def planned(header: Header, batches: Sequence[Batch]) -> list[Any]:
    trace = [accesses_of(batch) for batch in batches]
    return list(plan(find(header.planner).planner_to_compare(header, lambda num_steps: trace[:4]), trace))


def emulated(header: Header, batches: Sequence[Batch], records: Sequence[Record]) -> EmulatedWorkers:
    workers = EmulatedWorkers(header, first_rows(), lr=1.0, additive=header.planner in ADDITIVE)
    for step, batch in enumerate(batches):
        mine = records[step * header.num_workers : (step + 1) * header.num_workers]
        workers.step(batch, mine, whole_numbers)
    return workers


def ordered(planner: str, batches: list[Batch]) -> list[Batch]:
    """FAE trains in an order of its own."""
    if planner != "fae":
        return batches
    hot = hot_rows([accesses_of(batch) for batch in batches[:4]], CAPACITY)
    batches, num_hot = hot_last(batches, hot)
    assert num_hot > SAMPLES, "some steps are hot"
    return batches


@pytest.mark.parametrize("num_workers", [1, 2, 8])
@pytest.mark.parametrize("planner", ["lookahead", "owner", "none", "replicated", "herald", "het", "fae"])
def test_exact_protocols_end_with_the_bytes_of_training_without_workers(planner: str, num_workers: int) -> None:
    batches = ordered(planner, batches_of(seed=num_workers))
    header = header_of(planner, num_workers)
    workers = emulated(header, batches, planned(header, batches))
    expected = without_workers(batches)
    assert not torch.equal(expected, first_rows())
    assert torch.equal(workers.store, expected), "everything has reached the store at the end"
    assert torch.equal(workers.all_rows(), expected)
    assert workers.staleness.num_stale_reads == 0


@pytest.mark.parametrize("planner", ["lookahead", "het", "fae"])
def test_every_update_is_in_the_rows_at_any_time(planner: str) -> None:
    batches = ordered(planner, batches_of(seed=5))
    header = header_of(planner, 4)
    records = planned(header, batches)
    for num_steps in (1, 7, 20, 33):
        workers = emulated(header, batches[:num_steps], records)
        assert torch.equal(workers.all_rows(), without_workers(batches[:num_steps]))


@pytest.mark.parametrize("staleness", [1, 3, 10])
def test_stale_reads_are_read_and_counted(staleness: int) -> None:
    batches = batches_of(seed=2)
    header = header_of("het", 8, staleness)
    records = planned(header, batches)
    workers = emulated(header, batches, records)
    verdict = check_plan(header, [accesses_of(batch) for batch in batches], records, None)
    verdict.require()
    assert verdict.stale_reads > 0
    found = workers.staleness
    assert (found.num_stale_reads, found.num_missing_updates) == (verdict.stale_reads, verdict.missing_updates)
    assert found.num_reads == verdict.counters.num_unique
    assert found.num_lookups == verdict.counters.num_lookups
    assert not torch.equal(workers.store, without_workers(batches)), "a stale read changes the result"


def test_no_update_is_lost_however_stale() -> None:
    """With gradients that do not depend on what is read, staleness changes when updates arrive and not which."""

    def same_for_all(dense: Tensor, embeddings: Tensor, labels: Tensor) -> Tensor:
        return (labels[:, None, None] * 2 - 1).expand_as(embeddings)

    batches = batches_of(seed=3)
    header = header_of("het", 8, 1000)
    workers = EmulatedWorkers(header, first_rows(), lr=1.0, additive=True)
    expected = first_rows()
    for batch, together in zip(batches, zip(*[iter(planned(header, batches))] * 8, strict=True), strict=True):
        workers.step(batch, together, same_for_all)
        signs = torch.from_numpy(np.repeat(batch.labels * 2 - 1, NUM_FEATURES))[:, None].expand(-1, WIDTH)
        expected.index_add_(0, torch.from_numpy(batch.rows), -signs)
    assert workers.staleness.num_stale_reads > 0
    assert torch.equal(workers.store, expected)


@pytest.mark.parametrize("left_out", ["push", "refresh"])
def test_a_plan_that_forgets_something_ends_differently(left_out: str) -> None:
    batches = batches_of(seed=4)
    header = header_of("het", 4)
    records = planned(header, batches)
    if left_out == "push":
        records = [replace(record, push=Push()) for record in records]
    else:
        records = [replace(record, refresh=Fetch()) for record in records]
    assert not torch.equal(emulated(header, batches, records).store, without_workers(batches))
