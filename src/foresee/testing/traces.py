"""Traces for tests: hypothesis strategies for small hostile ones, and a seeded skewed one for golden counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from foresee.plan.record import Header, Touches


def touches_of(samples: Sequence[Sequence[int]]) -> Touches:
    """The touches of one batch from the rows of each of its samples."""
    lengths = [len(rows) for rows in samples]
    flat = [row for rows in samples for row in rows]
    return Touches(np.array(flat, np.int64), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


@st.composite
def traces(
    draw: st.DrawFn, *, num_rows_max: int = 12, num_steps_max: int = 14, samples_max: int = 4, lookups_max: int = 3
) -> tuple[int, list[Touches]]:
    """(number of rows, trace): few rows and many steps, so that rows leave and come back all the time."""
    num_rows = draw(st.integers(1, num_rows_max))
    sample = st.lists(st.integers(0, num_rows - 1), min_size=0, max_size=lookups_max)
    batch = st.lists(sample, min_size=1, max_size=samples_max)
    return num_rows, [touches_of(samples) for samples in draw(st.lists(batch, min_size=1, max_size=num_steps_max))]


def skewed_trace(*, seed: int, num_rows: int, num_steps: int, num_samples: int, num_lookups: int) -> list[Touches]:
    """A trace whose few hot rows are in every batch and whose many cold ones come back late or never."""
    rng = np.random.default_rng(seed)
    offsets = np.arange(0, num_samples * num_lookups + 1, num_lookups, dtype=np.int32)
    steps = []
    for _ in range(num_steps):
        share = rng.random(num_samples * num_lookups)
        steps.append(Touches(((num_rows ** share - 1) / (num_rows - 1) * num_rows).astype(np.int64), offsets))
    return steps


def largest_batch(trace: Sequence[Touches]) -> int:
    """Distinct rows of the largest batch: the smallest capacity that works."""
    return max(len(np.unique(touches.rows)) for touches in trace)


def header_for(
    planner: str, trace: Sequence[Touches], *, capacity_rows: int, num_rows: int, fetch_ahead_steps: int = 1000,
    **parameters: int | float | str | None
) -> Header:
    """The header of a one-worker plan of the trace."""
    return Header(
        planner=planner,
        parameters={"remember_versions": 1, **parameters},
        num_workers=1,
        capacity_rows=capacity_rows,
        num_rows=num_rows,
        first_step=0,
        num_steps=len(trace),
        fetch_ahead_steps=fetch_ahead_steps,
        stream_digest="test",
    )
