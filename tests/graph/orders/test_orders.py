"""What every order must keep, and what each promises of itself: coverage, states, determinism, carried buffers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foresee.arrays import Int32
from foresee.errors import ConfigError, PlanError
from foresee.graph.orders import BUILT_IN, DEFAULT, ORDERS, Order, Setting, Traversal, states_of_nodes
from foresee.graph.orders.baselines import hilbert_buckets, hilbert_symmetric_buckets, inside_out_buckets
from foresee.graph.orders.ring import beta_swaps, swap_bound
from foresee.graph.orders.traversal import from_buckets, in_random_state

EDGES = [order.name for order in BUILT_IN if order.trains == "edges"]
ONE_READ = ["beta", "beta_deferred", "ring"]


def traverse(name: str, p: int, c: int, seed: int = 0, **more: Any) -> Traversal:
    return ORDERS[name].traverse(Setting(num_partitions=p, capacity=c, **more), np.random.default_rng(seed))


def check(traversal: Traversal, capacity: int) -> None:
    """States of distinct partitions, those that stay keep their slot, each bucket once and where it can be trained."""
    p = traversal.num_partitions
    assert len(traversal.states) == len(traversal.buckets)
    for state, buckets in zip(traversal.states, traversal.buckets, strict=True):
        assert len(np.unique(state)) == len(state) == capacity
        assert state.dtype == buckets.dtype == np.int32
        assert buckets.shape == (len(buckets), 2)
        assert np.isin(buckets, state).all()
    for old, new in pairwise(traversal.states):
        stays = np.isin(old, new)
        assert np.array_equal(old[stays], new[stays])
    trained = np.concatenate(traversal.buckets)
    assert len(trained) == p * p
    assert len(np.unique(trained, axis=0)) == p * p
    assert (traversal.state_of_bucket() >= 0).all()


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, int, int, int]:
    name = draw(st.sampled_from([name for name in EDGES if name != "comet"]))
    p = draw(st.integers(2, 24))
    return name, p, draw(st.integers(2, p)), draw(st.integers(0, 2**32))


@settings(max_examples=150, deadline=None)
@given(cases())
def test_each_bucket_is_trained_once_where_both_ends_are(case: tuple[str, int, int, int]) -> None:
    name, p, c, seed = case
    check(traverse(name, p, c, seed), p if name == "random" else c)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(2, 4), st.integers(0, 4), st.integers(0, 2**32))
def test_comet_covers_all_in_groups_of_any_size(size: int, in_buffer: int, beyond: int, seed: int) -> None:
    groups = in_buffer + beyond
    check(traverse("comet", size * groups, size * in_buffer, seed, logical_partitions=groups), size * in_buffer)


@pytest.mark.parametrize("name", sorted(set(EDGES) | {"sequential", "dispersed"}))
def test_the_generator_decides_and_nothing_else(name: str) -> None:
    more = {"pinned": 2} if ORDERS[name].trains == "nodes" else {}
    one, same, other = (traverse(name, 16, 4, seed, **more) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one.states, same.states, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(one.buckets, same.buckets, strict=True))
    differs = not np.array_equal(one.state_of_bucket(), other.state_of_bucket())
    differs |= not np.array_equal(one.states[0], other.states[0])
    assert differs == (name not in {"random", "row_major", "hilbert", "hilbert_symmetric"})


@pytest.mark.parametrize("name", ONE_READ)
@pytest.mark.parametrize(("p", "c"), [(6, 3), (13, 4), (16, 4), (16, 12), (17, 2), (32, 8)])
def test_consecutive_states_are_one_read_apart(name: str, p: int, c: int) -> None:
    traversal = traverse(name, p, c)
    assert all(len(np.setdiff1d(new, old)) == 1 for old, new in pairwise(traversal.states))
    assert traversal.swaps == len(traversal.states) - 1


@pytest.mark.parametrize(("p", "c"), [(6, 3), (24, 5), (17, 2), (20, 15)])
def test_what_beta_retires_never_comes_back(p: int, c: int) -> None:
    """A partition that left when it had met all others; whoever left before comes again."""
    states = traverse("beta", p, c).states
    met = np.eye(p, dtype=bool)
    for number, state in enumerate(states[:-1]):
        met[np.ix_(state, state)] = True
        left = np.setdiff1d(state, states[number + 1])
        comes_back = np.isin(left, np.concatenate(states[number + 1 :]))
        assert np.array_equal(comes_back, ~met[left].all(axis=1)), number


def test_the_table_of_the_talk() -> None:
    """p = 6, c = 3: bound 6, random about 23, Hilbert 12 or 13, BETA 7."""
    assert swap_bound(6, 3) == 6
    assert traverse("hilbert", 6, 3).swaps in {12, 13}
    assert traverse("beta", 6, 3).swaps == beta_swaps(6, 3) == 7
    assert traverse("ring", 6, 3).swaps <= 7
    buckets = hilbert_buckets(6)
    rng = np.random.default_rng(0)
    drawn = [from_buckets(6, 3, rng.permutation(buckets)).swaps for _ in range(300)]
    assert 23 <= np.mean(drawn) <= 26


def test_other_orders_move_as_much_as_measured() -> None:
    assert traverse("hilbert", 4, 2).swaps == 9
    assert traverse("row_major", 6, 3).swaps == 23
    assert 7 <= traverse("hilbert_symmetric", 6, 3).swaps <= 9
    found = {
        p: (traverse("hilbert", p, p // 4).swaps, traverse("hilbert_symmetric", p, p // 4).swaps) for p in (16, 32)
    }
    assert found == {16: (102, 56), 32: (204, 112)}
    assert all(beta_swaps(p, c) <= traverse("hilbert_symmetric", p, c).swaps for p in (8, 16) for c in range(2, p))


def test_belady_reads_no_more_than_any_choice() -> None:
    """Against all choices of who leaves, on short lists of buckets."""
    rng = np.random.default_rng(1)
    for _ in range(30):
        order = rng.permutation(hilbert_buckets(4))
        assert from_buckets(4, 2, order).swaps == _fewest_reads(order, 2)
        assert from_buckets(4, 3, order).swaps == _fewest_reads(order, 3)


def _fewest_reads(order: Int32, capacity: int) -> int:
    first = list(dict.fromkeys(order.ravel().tolist()))[:capacity]
    costs = {frozenset(first): 0}
    for bucket in order.tolist():
        after: dict[frozenset[int], int] = {}
        for state, cost in costs.items():
            for new, reads in _admitted(state, set(bucket)):
                after[new] = min(after.get(new, cost + reads), cost + reads)
        costs = after
    return min(costs.values())


def _admitted(state: frozenset[int], bucket: set[int]) -> list[tuple[frozenset[int], int]]:
    found = [(state, 0)]
    for partition in bucket - state:
        found = [((new - {leaves}) | {partition}, reads + 1) for new, reads in found for leaves in new - bucket]
    return found


def test_curves_and_layers() -> None:
    steps = np.abs(np.diff(hilbert_buckets(16), axis=0)).sum(axis=1)
    assert (steps == 1).all()
    symmetric = hilbert_symmetric_buckets(8)
    off_diagonal = symmetric[symmetric[:, 0] != symmetric[:, 1]]
    assert np.array_equal(off_diagonal[::2], off_diagonal[1::2, ::-1])
    layers = inside_out_buckets(9, np.random.default_rng(0)).min(axis=1)
    assert np.array_equal(layers, np.repeat(np.arange(8, -1, -1), np.arange(1, 19, 2)))


def test_deferred_buckets_go_to_every_state_alike() -> None:
    states = [np.array(state, np.int32) for state in ([0, 1, 2], [0, 1, 3], [0, 1, 4])]
    rng = np.random.default_rng(0)
    chosen = np.array([in_random_state(5, states, rng).state_of_bucket() for _ in range(3000)])
    assert np.all(np.abs(np.bincount(chosen[:, 0, 1]) - 1000) < 150)
    assert np.all(chosen[:, 3, 1] == 1)
    assert np.all(chosen[:, 3, 4] == -1)


def test_comet_as_published() -> None:
    """c_l = 2: each pair of groups is a state; even states; other groups each epoch; less biased than beta."""
    one, two = traverse("comet", 32, 8, 0), traverse("comet", 32, 8, 1)
    assert len(one.states) == 28
    assert one.reads() == 28 * 4 + 4
    sizes = [len(buckets) for buckets in one.buckets]
    assert max(sizes) / np.mean(sizes) < 1.3
    assert {frozenset(state.tolist()) for state in one.states} != {frozenset(state.tolist()) for state in two.states}
    moved = [np.setdiff1d(new, old) for old, new in pairwise(one.states)]
    assert all(len(group) == 4 for group in moved)
    assert bias(one) < bias(traverse("beta", 32, 8, 0))
    assert bias(traverse("comet", 32, 16, 0)) < bias(one)


def bias(traversal: Traversal) -> float:
    """The largest difference between two partitions, at any time, of the share of their buckets that were trained."""
    grid = traversal.state_of_bucket()
    incident = np.concatenate([grid, grid.T], axis=1)
    shares = np.array([(incident <= number).mean(axis=1) for number in range(len(traversal.states))])
    return float((shares.max(axis=1) - shares.min(axis=1)).max())


def test_unevenness_is_the_distance_from_random_order() -> None:
    assert traverse("random", 16, 4).unevenness() == 0
    # Both partitions train half of their buckets, then the other half: nothing is ahead of anything.
    even = Traversal(2, (np.array([0, 1], np.int32),) * 2, (np.array([[0, 0], [1, 1]]), np.array([[0, 1], [1, 0]])))
    assert even.unevenness() == 0
    # Partition 0 has three of its four sides in the first state (the diagonal counts twice), partition 1 one.
    ahead = Traversal(2, even.states, (np.array([[0, 0], [0, 1]]), np.array([[1, 1], [1, 0]])))
    assert ahead.unevenness() == 0.25
    turned = [traverse("ring", 15, 8, turns=turns).unevenness() for turns in (1, 3)]
    assert turned[1] < 0.8 * turned[0] < 0.8 * traverse("beta", 15, 8).unevenness()


def test_comet_pins_what_it_is_told_to() -> None:
    traversal = traverse("comet", 32, 16, pinned=4, logical_partitions=8)
    check(traversal, 16)
    assert all(np.array_equal(state[:4], np.arange(4)) for state in traversal.states)


def test_sequential_is_one_state_with_all_training_nodes() -> None:
    first, second = traverse("sequential", 32, 8, 0, pinned=3), traverse("sequential", 32, 8, 1, pinned=3)
    for traversal in (first, second):
        assert len(traversal.states) == 1
        assert np.array_equal(traversal.states[0][:3], [0, 1, 2])
        assert traversal.buckets[0].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert set(first.states[0].tolist()) != set(second.states[0].tolist())
    assert len(traverse("sequential", 32, 8, pinned=8).states[0]) == 8


def test_training_nodes_that_do_not_fit_are_a_sentence_and_no_negative_length() -> None:
    with pytest.raises(PlanError, match="lie in 9 partitions and the buffer holds 8; choose the order dispersed"):
        traverse("sequential", 32, 8, pinned=9)
    with pytest.raises(PlanError, match="9 pinned partitions leave no room in a buffer of 8"):
        traverse("dispersed", 32, 8, pinned=9)
    with pytest.raises(PlanError, match="needs the partitions of the training nodes pinned"):
        traverse("sequential", 32, 8)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 20), st.data())
def test_dispersed_brings_each_partition_once_and_pins_the_pinned(p: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(2, p))
    pinned = data.draw(st.integers(0, c - 1))
    traversal = traverse("dispersed", p, c, data.draw(st.integers(0, 99)), pinned=pinned)
    assert traversal.swaps == p - c == len(traversal.states) - 1
    assert all(np.array_equal(state[:pinned], np.arange(pinned)) for state in traversal.states)
    assert np.array_equal(np.sort(np.concatenate(traversal.buckets)[:, 0]), np.arange(p))
    for state, buckets in zip(traversal.states, traversal.buckets, strict=True):
        assert np.isin(buckets, state).all()
        assert len(np.unique(state)) == c


def test_dispersed_moves_groups_and_begins_where_it_ended() -> None:
    rng = np.random.default_rng(0)
    first = ORDERS["dispersed"].traverse(Setting(num_partitions=32, capacity=8, logical_partitions=8, pinned=4), rng)
    assert [len(np.setdiff1d(new, old)) for old, new in pairwise(first.states)] == [4] * 6
    second = ORDERS["dispersed"].traverse(
        Setting(num_partitions=32, capacity=8, carried=first.states[-1], pinned=4), rng
    )
    assert second.reads(first.states[-1]) == 24


def test_nodes_are_spread_over_the_states_that_have_them() -> None:
    traversal = traverse("dispersed", 12, 4)
    partitions = np.repeat(np.arange(12), 400)
    found = states_of_nodes(traversal, partitions, np.random.default_rng(0))
    assert all(partition in traversal.states[state] for partition, state in zip(partitions, found, strict=True))
    for partition in range(12):
        times = sum(partition in state for state in traversal.states)
        counts = np.unique(found[partitions == partition], return_counts=True)[1]
        assert len(counts) == times
        assert counts.max() < 400 / times + 80
    one_state = Traversal(12, traversal.states[:1], traversal.buckets[:1])
    absent = np.setdiff1d(np.arange(12), traversal.states[0])
    assert (states_of_nodes(one_state, absent, np.random.default_rng(0)) == -1).all()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"num_partitions": 8, "capacity": 1},
            "a buffer of 1 partitions cannot train a graph of 8; give it at least 2",
        ),
        ({"num_partitions": 8, "capacity": 9}, "at most 8"),
        ({"num_partitions": 8, "capacity": 4, "pinned": 9}, "pin between 0 and 8"),
        ({"num_partitions": 8, "capacity": 4, "turns": 0}, "give 1 or more"),
        ({"num_partitions": 8, "capacity": 2, "carried": np.array([1, 1], np.int32)}, "give 2 different ones, or none"),
        ({"num_partitions": 8, "capacity": 2, "carried": np.array([1, 8], np.int32)}, "give 2 different ones, or none"),
    ],
)
def test_settings_that_cannot_be(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        Setting(**more)


@pytest.mark.parametrize(
    ("p", "c", "more"),
    [(30, 8, {}), (32, 7, {}), (32, 8, {"logical_partitions": 5}), (32, 8, {"pinned": 3}), (32, 8, {"pinned": 4}),
     (32, 8, {"logical_partitions": 64})],
)  # fmt: skip
def test_numbers_that_comet_cannot_group_are_a_sentence(p: int, c: int, more: dict[str, int]) -> None:
    with pytest.raises(PlanError, match="choose"):
        traverse("comet", p, c, **more)


def test_all_orders_are_known_by_name() -> None:
    assert [*ORDERS][: len(BUILT_IN)] == [order.name for order in BUILT_IN]
    assert ORDERS["ring"] is DEFAULT
    assert all(order.meaning and order.needs for order in BUILT_IN)
    assert len({order.colour for order in BUILT_IN}) == len(BUILT_IN)
    with pytest.raises(ConfigError, match="order: there is no order 'rng'; choose one of beta, "):
        ORDERS.find("rng", "order")


def test_what_is_no_order_is_refused() -> None:
    mine = Order(name="mine", meaning="m", colour="#000000", needs="n", traverse=DEFAULT.traverse)
    with pytest.raises(ConfigError, match="is declared as 'other'"):
        ORDERS.add("other", mine)
    with pytest.raises(ConfigError, match="is no order"):
        ORDERS.add("mine", DEFAULT.traverse)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="order 'ring' already"):
        ORDERS.add("ring", Order(name="ring", meaning="m", colour="#000000", needs="n", traverse=DEFAULT.traverse))
