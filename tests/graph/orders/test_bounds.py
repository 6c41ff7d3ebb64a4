"""The formulas, against generated orders for all small p and c, against the published table, and against search."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from foresee.graph.orders.beta import beta_path
from foresee.graph.orders.ring import (
    best_path,
    beta_swaps,
    bucket_bound,
    pair_bound,
    ring_multiple,
    ring_swaps,
    swap_bound,
    turn_bound,
)

PUBLISHED = {
    (4, 2): (5, 5, 4), (5, 2): (9, 9, 7), (5, 3): (4, 4, 4), (6, 3): (7, 6, 6), (6, 4): (4, 3, 3), (7, 5): (4, 3, 3),
    (8, 2): (27, 27, 20), (8, 3): (14, 13, 11), (8, 4): (9, 8, 7), (12, 4): (23, 20, 19), (16, 4): (42, 38, 35),
    (16, 8): (17, 14, 13), (32, 8): (78, 67, 64), (32, 16): (33, 26, 25), (64, 16): (150, 127, 124),
    (100, 16): (363, 322, 315), (250, 16): (2178, 2067, 2008),
}  # fmt: skip
"""Swaps of BETA, bound by pairs, bound by buckets."""
OPTIMA = {(4, 2): 5, (5, 2): 9, (5, 3): 4, (6, 3): 6, (6, 4): 4}
"""Fewest swaps of any order, found by search."""


@pytest.mark.parametrize(("p", "c"), PUBLISHED)
def test_the_published_table(p: int, c: int) -> None:
    assert (beta_swaps(p, c), pair_bound(p, c), bucket_bound(p, c)) == PUBLISHED[p, c]


def test_beta_has_as_many_swaps_as_the_formula_for_all_p_up_to_64() -> None:
    rng = np.random.default_rng(0)
    for p in range(2, 65):
        for c in range(2, p + 1):
            swaps = len(beta_path(p, c, rng).slots)
            assert swaps == beta_swaps(p, c), (p, c)
            assert swaps >= swap_bound(p, c) >= pair_bound(p, c) >= bucket_bound(p, c), (p, c)


def test_beta_is_best_where_two_fit() -> None:
    assert all(beta_swaps(p, 2) == p * (p - 1) // 2 - 1 == swap_bound(p, 2) for p in range(3, 65))


def test_the_ring_is_never_worse_than_beta_and_never_below_a_bound() -> None:
    for p in range(3, 41):
        for c in range(2, p):
            reads = len(best_path(p, c).slots)
            assert swap_bound(p, c) <= reads <= beta_swaps(p, c), (p, c)
            if ring_multiple(p, c):
                assert reads == ring_swaps(p, c) == turn_bound(p, c) - 1, (p, c)


def test_a_turn_of_the_notes_form_takes_m_times_p_reads() -> None:
    cases = [(7, 4, 1), (13, 4, 2), (29, 8, 2), (57, 8, 4), (121, 31, 2), (1021, 256, 2)]
    assert [(ring_multiple(p, c), turn_bound(p, c)) for p, c, _ in cases] == [(m, m * p) for p, _, m in cases]
    assert ring_multiple(32, 8) is None
    assert ring_multiple(8, 8) is None


@pytest.mark.parametrize(("p", "c"), [(p, c) for p in range(3, 7) for c in range(2, p)])
def test_no_order_is_below_the_bounds(p: int, c: int) -> None:
    swaps, turn = fewest(p, c, closed=False), fewest(p, c, closed=True)
    assert swaps == OPTIMA.get((p, c), swaps)
    assert swap_bound(p, c) <= swaps <= len(best_path(p, c).slots) <= beta_swaps(p, c)
    assert turn_bound(p, c) <= turn


def fewest(p: int, c: int, closed: bool) -> int:
    """Fewest reads in which all pairs meet, by breadth-first search over buffers and sets of pairs that met."""
    pair_of = {pair: 1 << number for number, pair in enumerate(combinations(range(p), 2))}
    states = list(combinations(range(p), c))
    pairs = [sum(pair_of[pair] for pair in combinations(state, 2)) for state in states]
    near = [[j for j, b in enumerate(states) if len({*a} & {*b}) == c - 1] for a in states]
    everything = (1 << len(pair_of)) - 1
    reached = {(0, pairs[0])}
    seen, reads = set(reached), 0
    while not any(met == everything and (state == 0 or not closed) for state, met in reached):
        reached = {(after, met | pairs[after]) for state, met in reached for after in near[state]} - seen
        seen |= reached
        reads += 1
    return reads
