"""Ginex's scheme in the comparison is fair: with one superbatch it is Belady, and with short ones it knows no more."""

from __future__ import annotations

import numpy as np
import pytest

import neighbourhoods
from foresee.arrays import Int64
from foresee.plan import make_planner, plan
from foresee.plan.record import Accesses, Header

CAPACITY, NUM_ROWS = 40, 200


def trace(seed: int) -> list[Int64]:
    rng = np.random.default_rng(seed)
    return [np.unique((rng.random(30) ** 2 * NUM_ROWS).astype(np.int64)) for _ in range(60)]


def belady(steps: list[Int64]) -> int:
    header = Header(
        planner="belady", num_workers=1, capacity_rows=CAPACITY, num_rows=NUM_ROWS,
        first_step=0, num_steps=len(steps), fetch_ahead_steps=8, stream_digest="x",
    )  # fmt: skip
    accesses = [Accesses(rows, np.array([0, len(rows)], np.int32)) for rows in steps]
    return sum(len(record.fetch) for record in plan(make_planner(header, lambda num: accesses[:num]), accesses))


@pytest.mark.parametrize("seed", range(5))
def test_ginex_is_belady_inside_superbatches(seed: int) -> None:
    steps = trace(seed)
    fetched = {
        size: sum(map(len, neighbourhoods.ginex_fetches(steps, NUM_ROWS, CAPACITY, size))) for size in (1, 6, 60)
    }
    assert fetched[60] == belady(steps)
    assert fetched[1] > fetched[6] > fetched[60]


def test_every_row_of_a_step_is_fetched_or_was_there() -> None:
    steps = trace(9)
    fetches = neighbourhoods.ginex_fetches(steps, NUM_ROWS, CAPACITY, 7)
    seen: set[int] = set()
    for rows, fetched in zip(steps, fetches, strict=True):
        assert set(fetched.tolist()) <= set(rows.tolist())
        assert set(rows.tolist()) - set(fetched.tolist()) <= seen
        seen |= set(rows.tolist())


def test_next_uses() -> None:
    upcoming = np.full(4, neighbourhoods.NEVER)
    found = neighbourhoods.next_uses([np.array([0, 1]), np.array([1, 2]), np.array([0])], upcoming)
    assert [some.tolist() for some in found] == [[2, 1], [neighbourhoods.NEVER] * 2, [neighbourhoods.NEVER]]
    assert upcoming.tolist() == [0, 0, 1, neighbourhoods.NEVER]
