"""Traces for tests: hypothesis strategies for small hostile ones, a skewed one for golden counts, a batch stream.

`MemoryStream` is a batch stream of batches in memory, for tests, benchmarks and whoever makes batches without a log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from hypothesis import strategies as st

from foresee.data.batch import Batch
from foresee.plan.record import Accesses, Header, PlannerOptions


def accesses_of(samples: Sequence[Sequence[int]]) -> Accesses:
    """The accesses of one batch from the rows of each of its samples."""
    lengths = [len(rows) for rows in samples]
    flat = [row for rows in samples for row in rows]
    return Accesses(np.array(flat, np.int64), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


@st.composite
def traces(
    draw: st.DrawFn, *, num_rows_max: int = 12, num_steps_max: int = 14, samples_max: int = 4, lookups_max: int = 3
) -> tuple[int, list[Accesses]]:
    """(number of rows, trace): few rows and many steps, so that rows leave and come back all the time."""
    num_rows = draw(st.integers(1, num_rows_max))
    sample = st.lists(st.integers(0, num_rows - 1), min_size=0, max_size=lookups_max)
    batch = st.lists(sample, min_size=1, max_size=samples_max)
    return num_rows, [accesses_of(samples) for samples in draw(st.lists(batch, min_size=1, max_size=num_steps_max))]


def skewed_trace(*, seed: int, num_rows: int, num_steps: int, num_samples: int, num_lookups: int) -> list[Accesses]:
    """A trace whose few hot rows are in every batch and whose many cold ones come back late or never."""
    rng = np.random.default_rng(seed)
    offsets = np.arange(0, num_samples * num_lookups + 1, num_lookups, dtype=np.int32)
    steps = []
    for _ in range(num_steps):
        share = rng.random(num_samples * num_lookups)
        steps.append(Accesses(((num_rows**share - 1) / (num_rows - 1) * num_rows).astype(np.int64), offsets))
    return steps


def largest_batch(trace: Sequence[Accesses]) -> int:
    """Distinct rows of the largest batch: the smallest capacity that works."""
    return max(len(np.unique(accesses.rows)) for accesses in trace)


def header_for(
    planner: str,
    trace: Sequence[Accesses],
    *,
    capacity_rows: int,
    num_rows: int,
    fetch_ahead_steps: int = 1000,
    **options: Any,
) -> Header:
    """The header of a one-worker plan of the trace."""
    return Header(
        planner=planner,
        options=PlannerOptions(**{"remember_versions": True, **options}),
        num_workers=1,
        capacity_rows=capacity_rows,
        num_rows=num_rows,
        first_step=0,
        num_steps=len(trace),
        fetch_ahead_steps=fetch_ahead_steps,
        stream_digest="test",
    )


class MemoryStream:
    """Batches of steps 0, 1, 2, ... as they stand in a sequence. A `BatchStream`."""

    def __init__(self, batches: Sequence[Batch], *, num_rows: int) -> None:
        self.num_rows = num_rows
        self._batches = batches

    @property
    def num_steps(self) -> int:
        return len(self._batches)

    @cached_property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for batch in self._batches:
            digest.update(batch.rows.tobytes())
        return digest.hexdigest()

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        return iter(self._batches[first_step:])
