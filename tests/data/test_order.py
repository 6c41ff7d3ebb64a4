"""The order of an epoch: every sample exactly once, the same for the same seed, another for another."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foresee.arrays import Int64
from foresee.data.order import EpochOrder, epoch_order, permutation
from foresee.io.hashing import key_of

sizes_lists = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def order_of(sizes: list[int], *, seed: int = 0, epoch: int = 0, shuffle_samples: int = 50) -> EpochOrder:
    return epoch_order(np.array(sizes, np.int64), shuffle_samples=shuffle_samples, seed=seed, epoch=epoch, shuffle=True)


def visited(order: EpochOrder, sizes: list[int], start: int, stop: int) -> Int64:
    """Sample numbers at positions start..stop-1, worked out the slow way."""
    firsts = np.concatenate([[0], np.cumsum(sizes)])
    found: list[int] = []
    for piece in order.pieces(start, stop):
        stored = np.concatenate([np.arange(firsts[g], firsts[g + 1]) for g in order.row_groups[piece.group]])
        within = order.within(piece.group)
        found += stored[within][piece.start : piece.stop].tolist() if within is not None else []
    return np.array(found, np.int64)


@given(sizes_lists, st.integers(0, 5), st.integers(0, 3), st.integers(1, 200))
def test_every_sample_exactly_once(sizes: list[int], seed: int, epoch: int, shuffle_samples: int) -> None:
    order = order_of(sizes, seed=seed, epoch=epoch, shuffle_samples=shuffle_samples)
    assert sorted(visited(order, sizes, 0, sum(sizes))) == list(range(sum(sizes)))


@given(sizes_lists, st.data())
def test_any_range_is_the_range_of_the_whole(sizes: list[int], data: st.DataObject) -> None:
    total = sum(sizes)
    start = data.draw(st.integers(0, total - 1))
    stop = data.draw(st.integers(start + 1, total))
    order = order_of(sizes)
    whole = visited(order, sizes, 0, total)
    assert np.array_equal(visited(order, sizes, start, stop), whole[start:stop])


@given(sizes_lists, st.integers(1, 200))
def test_shuffle_groups_are_bounded(sizes: list[int], shuffle_samples: int) -> None:
    order = order_of(sizes, shuffle_samples=shuffle_samples)
    lengths = np.diff(order.starts)
    assert lengths.max() < shuffle_samples + max(sizes)
    assert all(lengths[:-1] >= shuffle_samples)


def test_order_follows_seed_and_epoch() -> None:
    sizes = [20] * 10
    base = visited(order_of(sizes), sizes, 0, 200)
    assert np.array_equal(base, visited(order_of(sizes), sizes, 0, 200))
    for other in (order_of(sizes, seed=1), order_of(sizes, epoch=1)):
        assert not np.array_equal(base, visited(other, sizes, 0, 200))


def test_row_groups_and_samples_are_both_mixed_anew() -> None:
    """Seed, epoch and group each change the order inside groups; seed and epoch change which groups meet."""
    base, epoch, seed = order_of([50] * 8), order_of([50] * 8, epoch=1), order_of([50] * 8, seed=1)
    inside = [order.within(group) for order, group in ((base, 0), (base, 1), (epoch, 0), (seed, 0))]
    assert len({tuple(it.tolist()) for it in inside if it is not None}) == 4
    across = [[groups.tolist() for groups in order.row_groups] for order in (base, epoch, seed)]
    assert across[0] != across[1]
    assert across[0] != across[2]
    assert across[1] != across[2]


def test_without_shuffle_samples_come_as_stored() -> None:
    order = epoch_order(np.array([5, 5, 3]), shuffle_samples=6, seed=9, epoch=4, shuffle=False)
    assert [groups.tolist() for groups in order.row_groups] == [[0, 1], [2]]
    assert order.within(0) is None


def test_the_order_is_fixed_for_all_time() -> None:
    """Plans and resumed runs name batches by step: these numbers may never change."""
    assert permutation(10, key_of(3, 1, 0)).tolist() == [4, 7, 0, 1, 2, 3, 9, 6, 8, 5]
    assert key_of(0) != key_of(0, 0)


@given(st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_permutation_is_one(num: int, key: int) -> None:
    assert sorted(permutation(num, key)) == list(range(num))
