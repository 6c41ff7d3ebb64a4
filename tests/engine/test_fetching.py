"""What is fetched when: how far ahead, how many steps at once, and held against the versions that the plan predicts."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foresee.arrays import Int32, Int64
from foresee.engine.pipeline import check_versions, merge_fetches, split_staging
from foresee.errors import StaleReadError
from foresee.plan.record import UNKNOWN_VERSION, Evict, Fetch, Record
from foresee.store.contract import Rows
from foresee.store.memory import MemoryStore
from trace_stream import TraceStream, header_of, layout_of, run_of
from waiting import wait_until
from whole_run import Dots, train_step


def test_a_fetch_runs_no_further_ahead_than_the_header_says() -> None:
    """No row ever comes back, so nothing but `fetch_ahead_steps` holds the reader: steps 0, 1 and 2, then it waits."""
    reads: list[int] = []
    enough = threading.Event()

    class Counted(MemoryStore):
        def read(self, rows: Int64, out: Rows) -> None:
            super().read(rows, out)
            reads.extend(rows.tolist())
            if len(reads) >= 3:
                enough.set()

    stream = TraceStream([[[step]] for step in range(20)], num_rows=20)
    for _ in run_of(stream, header_of(stream, cache_rows=20, fetch_ahead_steps=2), Counted(layout_of(stream.num_rows))):
        assert enough.wait(60)
        break
    assert reads == [0, 1, 2]


@pytest.mark.parametrize("slow", ["training", "reading"])
def test_with_steps_in_hand_the_reader_asks_for_one_else_for_several_at_once(slow: str) -> None:
    """With 8 steps ahead it asks when 2 are in hand, then for one; with fewer, for up to 4 that may be fetched."""
    num_steps, num_taken, reads = 40, 0, list[list[int]]()

    class Counted(MemoryStore):
        requests_cost = True

        def read_guarded(self, rows: Int64, versions: Int32, not_before: int, out: Rows) -> None:
            if slow == "reading":
                wait_until(lambda: num_taken >= rows[0], "training to take all that was read")
            self.read(rows, out)
            reads.append(rows.tolist())

        def write_step(self, step: int, rows: Int64, source: Rows, next_use: Int32 | None = None) -> None:
            self.write(rows, source)

    stream = TraceStream([[[step]] for step in range(num_steps)], num_rows=num_steps)
    store = Counted(layout_of(stream.num_rows))
    model = Dots()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in run_of(stream, header_of(stream, cache_rows=num_steps, fetch_ahead_steps=8), store):
        num_taken = step.index + 1
        if slow == "training":
            wanted = min(num_steps, step.index + 4)
            wait_until(lambda wanted=wanted: sum(map(len, reads)) >= wanted, "three in hand while one trains")  # type: ignore[misc]
        train_step(step, model, optimizer)
    assert [row for rows in reads for row in rows] == list(range(num_steps))
    assert max(map(len, reads)) <= 4
    if slow == "training":
        assert {len(rows) for rows in reads if rows[0] >= 4} == {1}, "one for one that was taken"
    else:
        assert len(reads) < num_steps, "one request for several steps"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-1, 9)), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_fetches_are_joined_and_parted_again(steps: list[tuple[int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    records = [
        replace(empty_record(number), not_before=not_before, fetch=random_fetch(rng, num_rows))
        for number, (num_rows, not_before) in enumerate(steps)
    ]
    fetch, not_before = merge_fetches(records)
    assert not_before == max(needed for _, needed in steps)
    values = np.stack([fetch.row, fetch.slot], axis=1).astype(np.float32)
    staging = Rows(values, np.empty((len(fetch), 0), np.float32), fetch.version)
    for record, part in zip(records, split_staging(records, staging), strict=True):
        assert part.values[:, 0].tolist() == record.fetch.row.tolist()
        assert part.values[:, 1].tolist() == record.fetch.slot.tolist()
        assert part.versions.tolist() == record.fetch.version.tolist()


def empty_record(step: int) -> Record:
    nothing = np.empty(0, np.int32)
    return Record(
        step=step, worker=0, samples=nothing, unique=nothing, inverse=nothing, fetch=Fetch(), not_before=-1,
        apply=nothing, evict=Evict(), digest=0,
    )  # fmt: skip


def random_fetch(rng: np.random.Generator, num_rows: int) -> Fetch:
    rows, slots, versions = rng.integers(0, 1000, (3, num_rows))
    return Fetch(rows, slots.astype(np.int32), versions.astype(np.int32))


def test_versions_are_checked_row_by_row() -> None:
    staging = Rows.empty(3, layout_of(10))
    staging.versions[:] = [4, 0, 2]
    fetch = Fetch(np.array([7, 8, 9]), np.zeros(3, np.int32), np.array([4, UNKNOWN_VERSION, 2], np.int32))
    check_versions(1, fetch, staging)
    staging.versions[2] = 3
    with pytest.raises(StaleReadError, match="step 1: row 9 was read in version 3, the plan predicts 2"):
        check_versions(1, fetch, staging)
