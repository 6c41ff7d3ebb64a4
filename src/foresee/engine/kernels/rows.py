"""Rows out of the cache in the order of the lookups, and between slots and staging buffers.

In: the cache and where the plan has put each row: a record's `unique` and `inverse`, or slots. Out: `gather` gives one
float32 row for each lookup, `gather_bags` one for each bag (sum or mean, added in lookup order; none: zeros),
`take_rows` copies cache rows into a buffer (to write them back, or to send them), `put_rows` a buffer into the cache
(after a fetch). Values, state and version always travel together. Never searches: the plan has decided.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from foresee.arrays import Bool, Float32, Int32
from foresee.engine.kernels.check import ONE_THREAD, Threads, check_bags, check_matrix, check_rows, check_slots
from foresee.engine.kernels.values import Form, add_row_of, read_row, width_for
from foresee.engine.kernels.vector import copy_row
from foresee.prefetch import prefetch_row, prefetch_row_for_writing
from foresee.store.contract import Rows

COPY_AHEAD = 8
"""Rows between asking for a row and copying it."""


def take_rows(cache: Rows, slots: Int32, out: Rows, *, threads: Threads = ONE_THREAD) -> None:
    """`out[i] = cache[slots[i]]`; `out` may have room for more rows, which stay as they are."""
    _check(cache, slots, "out", out)
    threads.run(
        lambda begin, end: _take(
            cache.values, cache.state, cache.versions, slots, out.values, out.state, out.versions, begin, end
        ),
        threads.split(len(slots)),
    )


def put_rows(cache: Rows, slots: Int32, source: Rows, *, threads: Threads = ONE_THREAD) -> None:
    """`cache[slots[i]] = source[i]`; slots must be distinct."""
    _check(cache, slots, "source", source)
    threads.run(
        lambda begin, end: _put(
            cache.values, cache.state, cache.versions, slots, source.values, source.state, source.versions, begin, end
        ),
        threads.split(len(slots)),
    )


def _check(cache: Rows, slots: Int32, name: str, staging: Rows) -> None:
    width, state_width = cache.values.shape[1], cache.state.shape[1]
    check_rows("cache", cache, width=width, state_width=state_width)
    check_slots("slots", slots, len(cache))
    check_rows(name, staging, width=width, state_width=state_width, num_rows_min=len(slots))


@njit(nogil=True, cache=True)
def _take(
    values: Any,
    state: Any,
    versions: Any,
    slots: Any,
    out_values: Any,
    out_state: Any,
    out_versions: Any,
    begin: int,
    end: int,
) -> None:
    for i in range(begin, end):
        if i + COPY_AHEAD < end:
            prefetch_row(values, slots[i + COPY_AHEAD])
            prefetch_row(state, slots[i + COPY_AHEAD])
        slot = slots[i]
        out_versions[i] = versions[slot]
        copy_row(out_values, i, values, slot)
        copy_row(out_state, i, state, slot)


@njit(nogil=True, cache=True)
def _put(
    values: Any,
    state: Any,
    versions: Any,
    slots: Any,
    new_values: Any,
    new_state: Any,
    new_versions: Any,
    begin: int,
    end: int,
) -> None:
    for i in range(begin, end):
        if i + COPY_AHEAD < end:
            prefetch_row_for_writing(values, slots[i + COPY_AHEAD])
            prefetch_row_for_writing(state, slots[i + COPY_AHEAD])
        slot = slots[i]
        versions[slot] = new_versions[i]
        copy_row(values, slot, new_values, i)
        copy_row(state, slot, new_state, i)


AHEAD = 12
"""Lookups between asking for a row and reading it: enough to hide the memory, few enough to stay in cache."""


def gather(
    values: Float32,
    unique: Int32,
    inverse: Int32,
    out: Float32,
    *,
    form: Form = None,
    threads: Threads = ONE_THREAD,
) -> None:
    """`out[k] = values[unique[inverse[k]]]`, as float32; out is [lookups, width]."""
    check_slots("unique", unique, len(values))
    check_slots("inverse", inverse, len(unique))
    check_matrix("out", out, len(inverse), width_for(form, values, out))
    threads.run(lambda begin, end: _gather(form, values, unique, inverse, out, begin, end), threads.split(len(inverse)))


def gather_bags(
    values: Float32,
    unique: Int32,
    inverse: Int32,
    bag_offsets: Int32,
    mean: Bool,
    out: Float32,
    *,
    form: Form = None,
    threads: Threads = ONE_THREAD,
) -> None:
    """`out[b]` = sum of the rows of bag b, divided by their number where `mean[b % features]`; out is [bags, width]."""
    check_slots("unique", unique, len(values))
    check_slots("inverse", inverse, len(unique))
    check_bags(bag_offsets, mean, len(inverse))
    check_matrix("out", out, len(bag_offsets) - 1, width_for(form, values, out))

    def kernel(begin: int, end: int) -> None:
        _gather_bags(form, values, unique, inverse, bag_offsets, mean, out, begin, end)

    threads.run(kernel, threads.split(len(bag_offsets) - 1))


@njit(nogil=True, cache=True, error_model="numpy")
def _gather(form: Any, values: Any, unique: Any, inverse: Any, out: Any, begin: int, end: int) -> None:
    for k in range(begin, end):
        if k + AHEAD < end:
            prefetch_row(values, unique[inverse[k + AHEAD]])
        read_row(form, out, k, values, unique[inverse[k]])


@njit(nogil=True, cache=True, error_model="numpy")
def _gather_bags(
    form: Any, values: Any, unique: Any, inverse: Any, bag_offsets: Any, mean: Any, out: Any, begin: int, end: int
) -> None:
    width = out.shape[1]
    last = bag_offsets[end]
    for b in range(begin, end):
        for d in range(width):
            out[b, d] = np.float32(0)
        for k in range(bag_offsets[b], bag_offsets[b + 1]):
            if k + AHEAD < last:
                prefetch_row(values, unique[inverse[k + AHEAD]])
            add_row_of(form, out, b, values, unique[inverse[k]])
        size = bag_offsets[b + 1] - bag_offsets[b]
        if size > 1 and mean[b % len(mean)]:
            for d in range(width):
                out[b, d] /= np.float32(size)
