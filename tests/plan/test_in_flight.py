"""Batches in flight: planned by any policy, proved by the one checker, counted, and trained as the definition says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foresee.engine.optimizers import SGD
from foresee.errors import PlanError
from foresee.plan import make_planner, plan, trainable
from foresee.plan.check import check
from foresee.plan.format.file import write_plan
from foresee.plan.in_flight import MissedUpdates
from foresee.plan.record import Accesses, Header, Record
from foresee.testing.traces import header_for, traces
from trace_stream import header_of, random_stream, run_of, store_for

Case = tuple[int, list[Accesses]]


def drained(trace: list[Accesses], rng: np.random.Generator) -> list[Accesses]:
    """The same with some places where nothing is in flight."""
    return [replace(accesses, drained=bool(rng.random() < 0.2)) for accesses in trace]


def records_of(header: Header, trace: list[Accesses]) -> list[Record]:
    return list(plan(make_planner(header, lambda steps: trace[:steps]), trace))


def flights(trace: list[Accesses], staleness: int, size: int) -> int:
    """Rows of the largest flight, in whole partitions: what the cache has to hold."""
    most = 1
    for first in range(len(trace)):
        rows: set[int] = set()
        for number, accesses in enumerate(trace[first : first + staleness + 1]):
            if number and accesses.drained:
                break
            rows |= set((accesses.rows // size).tolist())
        most = max(most, len(rows))
    return most * size


def stale(header: Header, staleness: int) -> Header:
    return replace(header, options=replace(header.options, staleness=staleness))


@pytest.mark.parametrize("name", sorted(trainable()))
@given(
    case=traces(num_rows_max=30), staleness=st.integers(1, 4), size=st.sampled_from([1, 4]), more=st.integers(0, 9),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_every_planner_reads_as_late_as_may_be_and_no_later(
    name: str, case: Case, staleness: int, size: int, more: int, seed: int
) -> None:
    num_rows, trace = case[0], drained(case[1], np.random.default_rng(seed))
    header = stale(
        header_for(
            name, trace, capacity_rows=flights(trace, staleness, size) + more, num_rows=num_rows, fetch_ahead_steps=2,
            partition_rows=size,
        ),
        staleness,
    )  # fmt: skip
    records = records_of(header, trace)
    verdict = check(header, trace, records, None)
    verdict.require()
    missed = MissedUpdates(staleness)
    for accesses in trace:
        missed.add(accesses)
    found = (verdict.stale_reads, verdict.missing_updates, verdict.missing_updates_max)
    assert found == (missed.stale_reads, missed.missing_updates, missed.missing_updates_max)
    assert missed.missing_updates_max <= staleness
    late = check(stale(header, staleness - 1), trace, records, None)
    assert late.right == all(ahead.step - it.step < staleness for it in records for ahead in it.read_ahead)


def test_reads_that_miss_too_much_or_are_of_other_rows_are_found() -> None:
    trace = [Accesses(np.array([step, step + 1]), np.array([0, 1, 2], np.int32)) for step in range(5)]
    header = stale(header_for("lookahead", trace, capacity_rows=9, num_rows=9), 2)
    records = records_of(header, trace)
    assert [[ahead.step for ahead in record.read_ahead] for record in records] == [[1, 2], [3], [4], [], []]
    first = records[0].read_ahead[0]
    swapped = replace(records[0], read_ahead=(replace(first, slot=first.slot[::-1]), *records[0].read_ahead[1:]))
    assert "read other rows than it trains" in check(header, trace, [swapped, *records[1:]], None).violations[0]
    twice = replace(records[0], read_ahead=(*records[0].read_ahead, first))
    assert "has read its rows before" in check(header, trace, [twice, *records[1:]], None).violations[0]


def test_what_is_too_large_together_is_a_sentence(tmp_path: Any) -> None:
    trace = [Accesses(np.array([step]), np.array([0, 1], np.int32)) for step in range(5)]
    header = stale(header_for("lookahead", trace, capacity_rows=2, num_rows=9), 2)
    with pytest.raises(PlanError, match=r"steps 0 to 2 are in flight together and touch 3 distinct rows.*lower"):
        records_of(header, trace)
    header = stale(header_for("lookahead", trace, capacity_rows=3, num_rows=9), 2)
    with pytest.raises(PlanError, match="batches in flight cannot be kept"):
        write_plan(tmp_path / "plan.arrow", header, records_of(header, trace))
    with pytest.raises(PlanError, match="planned for one worker"):
        make_planner(replace(header, num_workers=2), lambda steps: trace)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_training_is_what_the_definition_says(staleness: int) -> None:
    """Half of the square of every lookup as the loss: a gradient is what was read, so late reads show."""
    stream, optimizer = random_stream(3, num_steps=12, num_rows=9), SGD(lr=0.125)
    header = stale(header_of(stream, cache_rows=9), staleness)
    run = run_of(stream, header, store_for(stream, optimizer), optimizer=optimizer)
    table = run.tables.values("rows")
    states = [table]
    for step in run:
        read = states[max(0, step.index - staleness)]
        rows = stream.accesses[step.index].rows
        assert np.array_equal(step.embeddings.detach().numpy().reshape(len(rows), -1), read[rows])
        (0.5 * torch.square(step.embeddings)).sum().backward()  # type: ignore[no-untyped-call]
        step.update()
        gradient = np.zeros_like(table)
        np.add.at(gradient, rows, read[rows])
        states.append(states[-1] - np.float32(0.125) * gradient)
    assert np.allclose(run.tables.values("rows"), states[-1], rtol=1e-6)
