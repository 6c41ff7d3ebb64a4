"""The ring: all pairs meet, with the reads that it promises, from one epoch to the next."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foresee.arrays import Int32, Int64
from foresee.errors import PlanError
from foresee.graph.orders import ORDERS, Setting, Traversal
from foresee.graph.orders.ring import (
    best_path,
    beta_swaps,
    ring_multiple,
    ring_path,
    ring_swaps,
    swap_bound,
    turn_bound,
)
from foresee.graph.orders.traversal import Path

RINGS = [(3, 2), (7, 4), (13, 4), (15, 8), (29, 8), (57, 8), (61, 16), (121, 31), (21, 2), (1021, 256)]


def meetings(p: int, path: Path) -> Int64:
    """[p, p]: how often a read brought each pair together, the first state counted as one read of all."""
    met = np.zeros((p, p), np.int64)
    met[np.ix_(path.first, path.first)] = 1
    for slot, state in zip(path.slots, path.states()[1:], strict=True):
        assert len(np.unique(state)) == len(state)
        met[state[slot], state] += 1
        met[state, state[slot]] += 1
    return met


@pytest.mark.parametrize(("p", "c"), RINGS)
def test_a_ring_wastes_no_read(p: int, c: int) -> None:
    m = ring_multiple(p, c)
    assert m is not None
    for phase in sorted({0, m // 2, m - 1}):
        path = ring_path(p, c, phase)
        assert len(path.slots) == ring_swaps(p, c) == m * p - 1
        met = meetings(p, path)
        assert met.min() >= 1
        # Closed, by the read that leads back to its first state, it makes each pair exactly once: so only the pairs
        # of the first state, which was there before any read, can meet again.
        again = np.argwhere(np.triu(met, 1) > 1)
        assert np.isin(again, path.first).all()


def test_all_meet_for_every_p_and_c() -> None:
    for p in range(2, 34):
        for c in range(2, p + 1):
            path = best_path(p, c)
            assert meetings(p, path).min() >= 1, (p, c)
            assert len(path.slots) <= max(beta_swaps(p, c), 0), (p, c)
            if 2 * c > p:
                assert len(path.slots) == swap_bound(p, c) == max(2 * (p - c), 0), (p, c)


def test_other_numbers_of_partitions_stay_near_the_bound() -> None:
    """Just below a ring's form few visits are left out; just above it there are guests, then a round of beta."""
    expected = {(9, 4): 11, (12, 5): 16, (16, 4): 40, (32, 8): 72, (40, 8): 116, (50, 8): 177, (64, 16): 136}
    found = {(p, c): len(best_path(p, c).slots) for p, c in expected}
    assert found == expected
    assert max(reads / turn_bound(p, c) for (p, c), reads in found.items()) < 1.35


def test_another_form_is_no_ring() -> None:
    with pytest.raises(ValueError, match="no ring of 32 partitions fits a buffer of 8"):
        ring_path(32, 8)


def epochs(p: int, c: int, number: int, seed: int = 0, turns: int = 1) -> list[Traversal]:
    rng, found = np.random.default_rng(seed), []
    carried: Int32 | None = None
    for _ in range(number):
        setting = Setting(num_partitions=p, capacity=c, carried=carried, turns=turns)
        found.append(ORDERS["ring"].traverse(setting, rng))
        carried = found[-1].states[-1]
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 20), st.data())
def test_an_epoch_begins_with_what_the_last_one_left(p: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(2, p))
    turns = data.draw(st.integers(1, 3))
    first, second, third = epochs(p, c, 3, data.draw(st.integers(0, 99)), turns)
    reads = turns * len(best_path(p, c).slots)
    assert first.reads() == reads + c
    assert second.reads(first.states[-1]) == third.reads(second.states[-1]) == reads
    # By slot: what is there stays where it is.
    assert np.array_equal(second.states[0], first.states[-1])
    assert (second.state_of_bucket() >= 0).all()


def test_every_epoch_has_other_neighbours_on_the_circle() -> None:
    grids = [epoch.state_of_bucket() for epoch in epochs(29, 8, 4)]
    states = [{frozenset(state.tolist()) for state in epoch.states} for epoch in epochs(29, 8, 4)]
    assert all(len(one & other) <= 2 for one, other in pairwise(states))
    assert all((one != other).mean() > 0.9 for one, other in pairwise(grids))


def test_buckets_are_spread_over_the_states() -> None:
    traversal = epochs(29, 8, 1)[0]
    sizes = [len(buckets) for buckets in traversal.buckets]
    assert max(sizes) < 4 * 29 * 29 / len(sizes)


def test_turns_let_every_pair_meet_several_times() -> None:
    once, twice = (epochs(15, 8, 1, turns=turns)[0] for turns in (1, 2))
    assert len(twice.states) == 2 * len(once.states) - 1
    half = len(once.states)
    for part in (twice.states[:half], twice.states[half - 1 :]):
        met = np.zeros((15, 15), bool)
        for state in part:
            met[np.ix_(state, state)] = True
        assert met.all()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(2, 6), st.data())
def test_groups_turn_as_partitions_do(size: int, groups: int, data: st.DataObject) -> None:
    in_buffer = data.draw(st.integers(2, groups))
    rng, p, c = np.random.default_rng(data.draw(st.integers(0, 99))), size * groups, size * in_buffer
    carried = rng.permutation(p)[:c].astype(np.int32)
    setting = Setting(num_partitions=p, capacity=c, carried=carried, logical_partitions=groups, turns=2)
    traversal = ORDERS["ring"].traverse(setting, rng)
    assert traversal.reads(carried) == 2 * size * len(best_path(groups, in_buffer).slots)
    assert np.array_equal(traversal.states[0], carried)
    assert (traversal.state_of_bucket() >= 0).all()
    assert all(len(np.setdiff1d(new, old)) == size for old, new in pairwise(traversal.states))


@pytest.mark.parametrize(("p", "c", "groups"), [(64, 32, 5), (64, 30, 4), (64, 16, 4), (8, 4, 9)])
def test_groups_that_do_not_divide_are_a_sentence(p: int, c: int, groups: int) -> None:
    with pytest.raises(PlanError, match=f"ring cannot put {p} partitions into {groups} groups"):
        ORDERS["ring"].traverse(
            Setting(num_partitions=p, capacity=c, logical_partitions=groups), np.random.default_rng(0)
        )
