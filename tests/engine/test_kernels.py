"""The kernels against plain loops, each other, and their torch twins: the same bits wherever promised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from foresee import prefetch as prefetch_module
from foresee.engine import torch_kernels
from foresee.engine.kernels import (
    ONE_THREAD,
    LookupOrder,
    Threads,
    apply_rows,
    gather,
    gather_bags,
    order_lookups,
    put_rows,
    sum_gradients,
    take_rows,
    update_rows,
    zeroed_rows,
)
from foresee.engine.kernels import check as threads_module
from foresee.engine.optimizers import SGD, Adagrad, LazyAdam, Optimizer, RowwiseAdagrad
from foresee.errors import UsageError
from foresee.store.contract import Rows

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

OPTIMIZERS: list[Optimizer] = [SGD(lr=0.1), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), LazyAdam(lr=0.1)]
CPU = torch.device("cpu")
compiling = settings(deadline=None)
"""The first example of a test may have to compile a kernel."""


@dataclass(frozen=True)
class Case:
    """A cache and the lookups of one step."""

    cache: Rows
    unique: Int32
    inverse: Int32
    bag_offsets: Int32
    mean: NDArray[np.bool_]
    lookup_gradients: Float32
    bag_gradients: Float32

    def order(self) -> LookupOrder:
        return order_lookups(self.inverse, len(self.unique))

    def bag_order(self) -> LookupOrder:
        return order_lookups(self.inverse, len(self.unique), bag_offsets=self.bag_offsets, mean=self.mean)


def make_case(
    *, seed: int, width: int = 8, num_unique: int = 5, num_repeats: int = 7, optimizer: Optimizer = OPTIMIZERS[2]
) -> Case:
    """`num_unique` rows of a larger cache, each looked up at least once, `num_repeats` lookups more; three features."""
    rng = np.random.default_rng(seed)
    capacity = num_unique + 9
    inverse = np.concatenate([np.arange(num_unique), rng.integers(0, num_unique, num_repeats)]).astype(np.int32)
    num_bags = 3 * int(rng.integers(1, 5))
    cuts = np.sort(rng.integers(0, len(inverse) + 1, num_bags - 1))
    return Case(
        cache=Rows(
            rng.normal(size=(capacity, width)).astype(np.float32),
            rng.random((capacity, optimizer.state_width(width))).astype(np.float32).round(),
            rng.integers(0, 9, capacity).astype(np.int32),
        ),
        unique=rng.permutation(capacity)[:num_unique].astype(np.int32),
        inverse=rng.permutation(inverse),
        bag_offsets=np.concatenate([[0], cuts, [len(inverse)]]).astype(np.int32),
        mean=np.array([False, True, True]),
        lookup_gradients=rng.normal(size=(len(inverse), width)).astype(np.float32),
        bag_gradients=rng.normal(size=(num_bags, width)).astype(np.float32),
    )


cases = st.builds(
    make_case,
    seed=st.integers(0, 2**32),
    width=st.sampled_from([1, 3, 8, 64, 65]),
    num_unique=st.integers(1, 40),
    num_repeats=st.integers(0, 90),
)


def copy_of(rows: Rows) -> Rows:
    return Rows(rows.values.copy(), rows.state.copy(), rows.versions.copy())


def empty_rows(num_rows: int, *, like: Rows) -> Rows:
    return Rows(
        np.empty((num_rows, like.values.shape[1]), np.float32),
        np.empty((num_rows, like.state.shape[1]), np.float32),
        np.empty(num_rows, np.int32),
    )


def same_bytes(left: Rows, right: Rows) -> bool:
    return (
        left.values.tobytes() == right.values.tobytes()
        and left.state.tobytes() == right.state.tobytes()
        and left.versions.tobytes() == right.versions.tobytes()
    )


def sums_in_lookup_order(case: Case) -> Float32:
    """Float32 sums of the lookups' gradients, one addition after another."""
    sums: dict[int, Float32] = {}
    for position, gradient in zip(case.inverse, case.lookup_gradients, strict=True):
        sums[position] = sums[position] + gradient if position in sums else gradient
    return np.stack([sums[position] for position in range(len(case.unique))])


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Threads]:
    """Threads that share even the smallest work."""
    monkeypatch.setattr(threads_module, "POSITIONS_MIN", 1)
    with Threads(3) as threads:
        yield threads


# Gathering


@compiling
@given(cases)
def test_gather_gives_the_row_of_each_lookup(case: Case) -> None:
    out = np.full((len(case.inverse), case.cache.values.shape[1]), np.nan, np.float32)
    gather(case.cache.values, case.unique, case.inverse, out)
    assert out.tobytes() == case.cache.values[case.unique[case.inverse]].tobytes()


@compiling
@given(cases)
def test_gather_bags_adds_in_lookup_order_and_divides_means(case: Case) -> None:
    num_bags = len(case.bag_offsets) - 1
    out = np.full((num_bags, case.cache.values.shape[1]), np.nan, np.float32)
    gather_bags(case.cache.values, case.unique, case.inverse, case.bag_offsets, case.mean, out)
    for bag in range(num_bags):
        lookups = case.inverse[case.bag_offsets[bag] : case.bag_offsets[bag + 1]]
        expected = np.zeros(out.shape[1], np.float32)
        for position in lookups:
            expected = expected + case.cache.values[case.unique[position]]
        if case.mean[bag % 3] and len(lookups):
            expected = expected / np.float32(len(lookups))
        np.testing.assert_array_equal(out[bag], expected)


def test_an_empty_batch_is_nothing_to_do() -> None:
    case = make_case(seed=0)
    nothing = np.empty(0, np.int32)
    gather(case.cache.values, nothing, nothing, np.empty((0, 8), np.float32))
    before = copy_of(case.cache)
    order = order_lookups(nothing, 0)
    update_rows(OPTIMIZERS[2], case.cache, nothing, np.empty((0, 8), np.float32), order, version=5)
    assert same_bytes(case.cache, before)


# Ordering and summing


@compiling
@given(cases)
def test_order_groups_lookups_by_position_and_keeps_their_order(case: Case) -> None:
    order = case.order()
    for position in range(len(case.unique)):
        group = order.gradient_rows[order.starts[position] : order.starts[position + 1]]
        assert group.tolist() == np.flatnonzero(case.inverse == position).tolist()


@compiling
@given(cases)
def test_sums_are_taken_in_lookup_order(case: Case) -> None:
    expected = sums_in_lookup_order(case)
    out = np.full_like(expected, np.nan)
    sum_gradients(case.lookup_gradients, case.order(), out)
    assert out.tobytes() == expected.tobytes()


@compiling
@given(cases)
def test_sums_over_bags_are_the_gradient_of_pooling(case: Case) -> None:
    """Checked against autograd in float64."""
    rows = torch.tensor(case.cache.values[case.unique], dtype=torch.float64, requires_grad=True)
    pooled = []
    for bag in range(len(case.bag_offsets) - 1):
        lookups = torch.from_numpy(case.inverse[case.bag_offsets[bag] : case.bag_offsets[bag + 1]])
        total = rows.index_select(0, lookups).sum(0)
        pooled.append(total / max(1, len(lookups)) if case.mean[bag % 3] else total)
    (torch.stack(pooled) * torch.from_numpy(case.bag_gradients)).sum().backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    out = np.full((len(case.unique), rows.shape[1]), np.nan, np.float32)
    sum_gradients(case.bag_gradients, case.bag_order(), out)
    np.testing.assert_allclose(out, rows.grad.numpy(), rtol=1e-5, atol=1e-5)


def test_a_lone_negative_zero_survives_the_sum() -> None:
    order = order_lookups(np.zeros(1, np.int32), 1)
    out = np.ones((1, 9), np.float32)
    sum_gradients(np.full((1, 9), -0.0, np.float32), order, out)
    assert np.signbit(out).all()


# Updating


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
@pytest.mark.parametrize("width", [1, 3, 64, 65])
def test_update_is_the_sum_and_then_the_step(optimizer: Optimizer, width: int) -> None:
    case = make_case(seed=3, width=width, num_unique=30, num_repeats=80, optimizer=optimizer)
    fused, apart = copy_of(case.cache), copy_of(case.cache)
    update_rows(optimizer, fused, case.unique, case.lookup_gradients, case.order(), version=7)
    apply_rows(optimizer, apart, case.unique, sums_in_lookup_order(case), version=7)
    assert same_bytes(fused, apart)
    untouched = np.setdiff1d(np.arange(len(case.cache)), case.unique)
    assert fused.values[untouched].tobytes() == case.cache.values[untouched].tobytes()
    assert (fused.versions[case.unique] == 7).all()
    assert (fused.versions[untouched] == case.cache.versions[untouched]).all()
    assert not np.array_equal(fused.values[case.unique], case.cache.values[case.unique])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_positions_restrict_the_update_and_the_rest_completes_it(optimizer: Optimizer) -> None:
    case = make_case(seed=4, width=11, num_unique=30, num_repeats=80, optimizer=optimizer)
    whole, parts = copy_of(case.cache), copy_of(case.cache)
    update_rows(optimizer, whole, case.unique, case.lookup_gradients, case.order(), version=7)
    here, there = np.array([3, 0, 29, 7], np.int32), np.setdiff1d(np.arange(30, dtype=np.int32), [3, 0, 29, 7])
    update_rows(optimizer, parts, case.unique, case.lookup_gradients, case.order(), version=7, positions=here)
    assert not same_bytes(whole, parts)
    sent = np.empty((len(there), 11), np.float32)
    sum_gradients(case.lookup_gradients, case.order(), sent, positions=there)
    apply_rows(optimizer, parts, case.unique[there], sent, version=7)
    assert same_bytes(whole, parts)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
@pytest.mark.parametrize("divisor", [1, 2, 3])
def test_sums_are_divided_after_they_are_taken(optimizer: Optimizer, divisor: int) -> None:
    """As the owner of a row divides what workers send it: dividing each gradient first would round differently."""
    case = make_case(seed=11, width=7, num_unique=30, num_repeats=100, optimizer=optimizer)
    theirs, sums = tensor_rows(copy_of(case.cache)), sums_in_lookup_order(case)
    apart = copy_of(case.cache)
    apply_rows(optimizer, apart, case.unique, sums / np.float32(divisor), version=4)
    gradients, order = torch.from_numpy(case.lookup_gradients), case.order()
    torch_kernels.update_rows(
        optimizer, theirs, torch.from_numpy(case.unique), gradients,
        torch_kernels.TensorOrder.of(order, torch.device("cpu")), version=4, divisor=divisor,
    )  # fmt: skip
    update_rows(optimizer, case.cache, case.unique, case.lookup_gradients, order, version=4, divisor=divisor)
    assert same_bytes(case.cache, apart)
    assert same_bytes(case.cache, array_rows(theirs))


def test_no_positions_are_no_update() -> None:
    case = make_case(seed=4)
    before = copy_of(case.cache)
    nothing = np.empty(0, np.int32)
    update_rows(
        OPTIMIZERS[2], case.cache, case.unique, case.lookup_gradients, case.order(), version=7, positions=nothing
    )
    assert same_bytes(case.cache, before)


@settings(compiling, max_examples=50)
@given(cases, st.integers(0, 3), st.integers(0, 2**32))
def test_slot_numbers_change_no_bit(case: Case, which: int, seed: int) -> None:
    optimizer = OPTIMIZERS[which]
    capacity, width = case.cache.values.shape
    cache = Rows(case.cache.values, np.zeros((capacity, optimizer.state_width(width)), np.float32), case.cache.versions)
    moved_to = np.random.default_rng(seed).permutation(capacity).astype(np.int32)
    moved = empty_rows(capacity, like=cache)
    put_rows(moved, moved_to, cache)
    for step in range(3):
        for rows, unique in ((cache, case.unique), (moved, moved_to[case.unique])):
            update_rows(optimizer, rows, unique, case.bag_gradients, case.bag_order(), version=step + 1)
    back = empty_rows(capacity, like=cache)
    take_rows(moved, moved_to, back)
    assert same_bytes(back, cache)


# Threads


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_threads_change_no_bit(optimizer: Optimizer, three_threads: Threads) -> None:
    case = make_case(seed=5, width=17, num_unique=50, num_repeats=200, optimizer=optimizer)
    results = []
    for threads in (ONE_THREAD, three_threads):
        cache = copy_of(case.cache)
        looked_up = np.empty_like(case.lookup_gradients)
        gather(cache.values, case.unique, case.inverse, looked_up, threads=threads)
        pooled = np.empty_like(case.bag_gradients)
        gather_bags(cache.values, case.unique, case.inverse, case.bag_offsets, case.mean, pooled, threads=threads)
        sums = np.empty((50, 17), np.float32)
        sum_gradients(case.lookup_gradients, case.order(), sums, threads=threads)
        update_rows(optimizer, cache, case.unique, case.bag_gradients, case.bag_order(), version=3, threads=threads)
        apply_rows(optimizer, cache, case.unique, sums, version=4, threads=threads)
        staging = empty_rows(50, like=cache)
        take_rows(cache, case.unique, staging, threads=threads)
        put_rows(cache, case.unique[::-1].copy(), staging, threads=threads)
        arrays = (looked_up, pooled, sums, cache.values, cache.state, cache.versions)
        results.append([array.tobytes() for array in arrays])
    assert results[0] == results[1]


def test_threads_get_equal_work_although_hot_rows_come_first(
    three_threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    inverse = np.concatenate([np.zeros(600), np.arange(300)]).astype(np.int32)
    ranges: list[tuple[int, int]] = []
    monkeypatch.setattr(three_threads, "run", lambda kernel, bounds: ranges.extend(pairwise(bounds)))
    gradients, out = np.zeros((900, 2), np.float32), np.empty((300, 2), np.float32)
    sum_gradients(gradients, order_lookups(inverse, 300), out, threads=three_threads)
    assert len(ranges) == 3
    assert (ranges[0][0], ranges[-1][1]) == (0, 300)
    assert ranges[0][1] - ranges[0][0] < 10  # the hot row fills the first thread's share


def test_an_error_in_another_thread_arrives(three_threads: Threads) -> None:
    def kernel(begin: int, end: int) -> None:
        if begin > 0:
            raise UsageError(f"range {begin} to {end}")

    with pytest.raises(UsageError, match="range"):
        three_threads.run(kernel, three_threads.split(9))


def test_at_least_one_thread() -> None:
    with pytest.raises(UsageError, match="num_threads is 0"):
        Threads(0)


# Copies


@compiling
@given(cases)
def test_take_and_put_carry_values_state_and_version(case: Case) -> None:
    num_rows, capacity = len(case.unique), len(case.cache)
    staging = empty_rows(num_rows + 2, like=case.cache)
    staging.values.fill(5)
    take_rows(case.cache, case.unique, staging)
    assert staging.values[:num_rows].tobytes() == case.cache.values[case.unique].tobytes()
    assert staging.state[:num_rows].tobytes() == case.cache.state[case.unique].tobytes()
    assert staging.versions[:num_rows].tolist() == case.cache.versions[case.unique].tolist()
    assert (staging.values[num_rows:] == 5).all()
    other = empty_rows(capacity, like=case.cache)
    other.values.fill(0)
    put_rows(other, case.unique, staging)
    untouched = np.setdiff1d(np.arange(capacity), case.unique)
    assert other.values[case.unique].tobytes() == case.cache.values[case.unique].tobytes()
    assert other.versions[case.unique].tolist() == case.cache.versions[case.unique].tolist()
    assert not other.values[untouched].any()


@pytest.mark.parametrize(("num_rows", "width"), [(0, 64), (1, 1), (7, 0), (1000, 65)])
def test_memory_for_rows_is_zero_writable_and_begins_at_a_cache_line(num_rows: int, width: int) -> None:
    rows = zeroed_rows(num_rows, width)
    assert rows.shape == (num_rows, width)
    assert rows.dtype == np.float32
    assert rows.flags.c_contiguous
    assert rows.flags.writeable
    assert not rows.any()
    assert rows.size == 0 or rows.ctypes.data % 64 == 0


# The torch twins


def tensor_rows(rows: Rows) -> torch_kernels.TensorRows:
    rows = copy_of(rows)
    return torch_kernels.TensorRows(
        torch.from_numpy(rows.values), torch.from_numpy(rows.state), torch.from_numpy(rows.versions)
    )


def array_rows(rows: torch_kernels.TensorRows) -> Rows:
    return Rows(rows.values.numpy(), rows.state.numpy(), rows.versions.numpy())


@settings(compiling, max_examples=60)
@given(cases)
def test_torch_gathers_the_same(case: Case) -> None:
    values, unique, inverse = (torch.from_numpy(a) for a in (case.cache.values, case.unique, case.inverse))
    out = np.empty_like(case.lookup_gradients)
    gather(case.cache.values, case.unique, case.inverse, out)
    np.testing.assert_array_equal(torch_kernels.gather(values, unique, inverse).numpy(), out)
    out = np.empty_like(case.bag_gradients)
    gather_bags(case.cache.values, case.unique, case.inverse, case.bag_offsets, case.mean, out)
    offsets, mean = torch.from_numpy(case.bag_offsets), torch.from_numpy(case.mean)
    np.testing.assert_array_equal(torch_kernels.gather_bags(values, unique, inverse, offsets, mean).numpy(), out)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
@pytest.mark.parametrize("width", [1, 3, 8, 13, 24, 64, 65])
def test_torch_updates_to_the_same_bits(optimizer: Optimizer, width: int) -> None:
    """Enough rows that another order of additions, or another rounding, shows in some of them."""
    case = make_case(seed=width, width=width, num_unique=200, num_repeats=300, optimizer=optimizer)
    ours, theirs = case.cache, tensor_rows(case.cache)
    unique = torch.from_numpy(case.unique)
    for step, (gradients, order) in enumerate(
        [(case.lookup_gradients, case.order()), (case.bag_gradients, case.bag_order())] * 2
    ):
        update_rows(optimizer, ours, case.unique, gradients, order, version=step + 1)
        tensor_order = torch_kernels.TensorOrder.of(order, CPU)
        torch_kernels.update_rows(
            optimizer, theirs, unique, torch.from_numpy(gradients), tensor_order, version=step + 1
        )  # fmt: skip
    assert same_bytes(array_rows(theirs), ours)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_torch_positions_sums_and_copies_are_the_same(optimizer: Optimizer) -> None:
    case = make_case(seed=6, width=13, num_unique=30, num_repeats=60, optimizer=optimizer)
    positions = np.array([4, 20, 1], np.int32)
    sums = np.empty((3, 13), np.float32)
    sum_gradients(case.lookup_gradients, case.order(), sums, positions=positions)
    order, gradients = torch_kernels.TensorOrder.of(case.order(), CPU), torch.from_numpy(case.lookup_gradients)
    unique, chosen = torch.from_numpy(case.unique), torch.from_numpy(positions)
    np.testing.assert_array_equal(torch_kernels.sum_gradients(gradients, order, positions=chosen).numpy(), sums)
    theirs = tensor_rows(case.cache)
    update_rows(optimizer, case.cache, case.unique, case.lookup_gradients, case.order(), version=9, positions=positions)
    torch_kernels.update_rows(optimizer, theirs, unique, gradients, order, version=9, positions=chosen)
    assert same_bytes(array_rows(theirs), case.cache)
    taken = torch_kernels.take_rows(theirs, unique)
    torch_kernels.put_rows(theirs, unique.flip(0), taken)
    staging = Rows(case.cache.values[case.unique], case.cache.state[case.unique], case.cache.versions[case.unique])
    put_rows(case.cache, case.unique[::-1].copy(), staging)
    assert same_bytes(array_rows(theirs), case.cache)


# What is refused


def test_slots_beyond_the_cache_are_refused_before_memory_is_touched() -> None:
    case = make_case(seed=1)
    out = np.empty_like(case.lookup_gradients)
    for slot in (-1, len(case.cache)):
        wrong = case.unique.copy()
        wrong[2] = slot
        with pytest.raises(UsageError, match=f"unique holds indices from .*only 0 to {len(case.cache) - 1} exist"):
            gather(case.cache.values, wrong, case.inverse, out)
        with pytest.raises(UsageError, match="unique holds indices"):
            update_rows(OPTIMIZERS[2], case.cache, wrong, case.lookup_gradients, case.order(), version=1)


def test_arrays_of_another_shape_or_type_are_refused() -> None:
    case = make_case(seed=1)
    with pytest.raises(UsageError, match="out is a contiguous float32 array of shape"):
        gather(case.cache.values, case.unique, case.inverse, np.empty((3, 8), np.float32))
    double = case.lookup_gradients.astype(np.float64)
    with pytest.raises(UsageError, match="gradients is a contiguous float64 array"):
        update_rows(OPTIMIZERS[2], case.cache, case.unique, double, case.order(), version=1)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"cache\.state is .* shape \(14, 17\)"):
        update_rows(OPTIMIZERS[3], case.cache, case.unique, case.lookup_gradients, case.order(), version=1)
    with pytest.raises(UsageError, match="ordered for 5 rows"):
        update_rows(OPTIMIZERS[2], case.cache, case.unique[:4], case.lookup_gradients, case.order(), version=1)
    with pytest.raises(UsageError, match="room for 1 rows"):
        take_rows(case.cache, case.unique, case.cache.first(1))


def test_lookups_that_do_not_fit_are_refused() -> None:
    case = make_case(seed=1)
    with pytest.raises(UsageError, match="no lookup needs position 5 of the 6"):
        order_lookups(case.inverse, 6)
    with pytest.raises(UsageError, match="bag_offsets run from"):
        order_lookups(case.inverse, 5, bag_offsets=case.bag_offsets[:-1], mean=case.mean)
    with pytest.raises(UsageError, match="mean is"):
        order_lookups(case.inverse, 5, bag_offsets=case.bag_offsets, mean=np.zeros(7, np.bool_))


def test_prefetching_is_left_out_where_it_cannot_be_built() -> None:
    class OtherNumba:
        def get_dummy_value(self) -> str:
            return "nothing"

    class Signature:
        args = (None, None, None)

    assert prefetch_module._emit_element(OtherNumba(), None, Signature(), (None,) * 2, write=0) == "nothing"
