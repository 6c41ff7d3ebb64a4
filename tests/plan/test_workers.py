"""Plans for many workers are proved by the same checker; placements are balanced and cost what they claim."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.plan import plan
from foresee.plan.check import check
from foresee.plan.count import count
from foresee.plan.ownership import Ownership
from foresee.plan.placement import PLACEMENTS
from foresee.plan.record import Accesses, Header, Kind, Record, Transfers
from foresee.testing.traces import accesses_of, skewed_trace


def header_of(num_workers: int, capacity_rows: int, num_rows: int, num_steps: int, ahead: int = 100) -> Header:
    return Header(
        planner="ownership",
        num_workers=num_workers,
        capacity_rows=capacity_rows,
        num_rows=num_rows,
        first_step=0,
        num_steps=num_steps,
        fetch_ahead_steps=ahead,
        stream_digest="test",
    )


@st.composite
def balanced_traces(draw: st.DrawFn) -> tuple[int, int, list[Accesses]]:
    """(workers, rows, trace) where every worker gets a sample of every batch; most do not divide."""
    num_workers = draw(st.integers(1, 4))
    num_rows = draw(st.integers(1, 14))
    sample = st.lists(st.integers(0, num_rows - 1), min_size=0, max_size=3)
    batch = st.lists(sample, min_size=num_workers, max_size=3 * num_workers)
    return num_workers, num_rows, [accesses_of(samples) for samples in draw(st.lists(batch, min_size=1, max_size=12))]


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@given(case=balanced_traces(), slack=st.integers(0, 6), window=st.integers(0, 8), ahead=st.integers(0, 4))
def test_many_workers_are_proved_right(
    placement: str, case: tuple[int, int, list[Accesses]], slack: int, window: int, ahead: int
) -> None:
    num_workers, num_rows, trace = case
    capacity = max(len(np.unique(accesses.rows)) for accesses in trace) + slack or 1
    header = header_of(num_workers, capacity, num_rows, len(trace), ahead)
    planner = Ownership(header, PLACEMENTS[placement], window_steps=window, remember_versions=True)
    records = list(plan(planner, trace))
    verdict = check(header, trace, records, count(records))
    assert verdict.right, verdict.violations


@given(case=balanced_traces())
def test_many_workers_without_a_cache_are_proved_right(case: tuple[int, int, list[Accesses]]) -> None:
    num_workers, num_rows, trace = case
    header = header_of(num_workers, num_rows, num_rows, len(trace))
    records = list(plan(Ownership(header, PLACEMENTS["contiguous"], eager=True, remember_versions=True), trace))
    verdict = check(header, trace, records, count(records))
    assert verdict.right, verdict.violations
    assert verdict.counters.num_fetched == verdict.counters.num_unique


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_a_longer_trace_is_proved_right(num_workers: int) -> None:
    trace = skewed_trace(seed=num_workers, num_rows=2000, num_steps=40, num_samples=32, num_lookups=5)
    header = header_of(num_workers, 150, 2000, len(trace), ahead=3)
    for placement in PLACEMENTS.values():
        records = list(plan(Ownership(header, placement, window_steps=6), trace))
        assert check(header, trace, records, count(records)).right


@pytest.fixture(scope="module")
def trace() -> list[Accesses]:
    return skewed_trace(seed=3, num_rows=300, num_steps=20, num_samples=16, num_lookups=4)


@pytest.fixture(scope="module")
def records(trace: list[Accesses]) -> list[Record]:
    header = header_of(4, 80, 300, len(trace))
    return list(plan(Ownership(header, PLACEMENTS["contiguous"], remember_versions=True), trace))


def violations(trace: list[Accesses], records: list[Record]) -> list[str]:
    return check(header_of(4, 80, 300, len(trace)), trace, records, None).violations


def with_transfer(
    records: list[Record], sender: Record, receiver: Record, place: int, into: int, **fields: int
) -> list[Record]:
    """The plan with one line of a send and of its receive changed."""

    def edited(transfers: Transfers, position: int) -> Transfers:
        columns = {name: getattr(transfers, name).copy() for name in fields}
        for name, value in fields.items():
            columns[name][position] = value
        return replace(transfers, **columns)

    sent = replace(sender, send=edited(sender.send, place))
    received = replace(receiver, recv=edited(receiver.recv, into))
    return [sent if record is sender else received if record is receiver else record for record in records]


def pairs(records: list[Record], kind: Kind) -> list[tuple[Record, Record, int, int]]:
    """(sender, receiver, line of the send, line of the receive) of everything of one kind."""
    found = []
    for sender in records:
        for receiver in (record for record in records if record.step == sender.step):
            out = np.flatnonzero(sender.send.peer == receiver.worker)
            into = np.flatnonzero(receiver.recv.peer == sender.worker)
            matched = [(sender, receiver, int(a), int(b)) for a, b in zip(out, into, strict=True)]
            found += [pair for pair in matched if sender.send.kind[pair[2]] == kind]
    return found


def test_a_gradient_due_after_its_owner_reads_the_row_is_caught(trace: list[Accesses], records: list[Record]) -> None:
    """Versions alone do not see it: the owner has counted the update, and adds the gradient one step late."""
    assert not violations(trace, records)
    following = {(record.step, record.worker): record for record in records}
    sentences = []
    for sender, receiver, place, into in pairs(records, Kind.GRAD):
        after = following.get((receiver.step + 1, receiver.worker))
        if after is not None and receiver.recv.slot[into] in after.unique:
            late = with_transfer(records, sender, receiver, place, into, deadline=sender.step + 2)
            sentences.append(violations(trace, late))
    assert all(sentences)
    assert sum("read before all gradients of an earlier step" in words[0] for words in sentences) > 10


def test_a_row_moved_without_its_optimiser_state_is_caught(trace: list[Accesses], records: list[Record]) -> None:
    """A VALUE in place of a MOVE: the new owner would apply gradients to a row whose state stayed behind."""
    sender, receiver, place, into = pairs(records, Kind.MOVE)[0]
    copied = with_transfer(records, sender, receiver, place, into, kind=int(Kind.VALUE))
    assert any("applied to a copy, which has no optimiser state" in words for words in violations(trace, copied))


def test_transfers_with_nobody_and_of_no_kind_are_caught(trace: list[Accesses], records: list[Record]) -> None:
    sender, receiver, place, into = pairs(records, Kind.GRAD)[0]
    for fields in ({"peer": 4}, {"peer": -1}, {"kind": 3}):
        strange = with_transfer(records, sender, receiver, place, into, **fields)
        assert any("with itself or nobody, or no known kind" in words for words in violations(trace, strange))
