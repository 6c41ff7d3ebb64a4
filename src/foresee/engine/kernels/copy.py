"""Rows between slots of the cache and staging buffers.

In: the cache, slots, and a staging buffer in the order of the slots. Out: `take_rows` copies cache rows into the buffer
(to write them back, or to send them), `put_rows` copies the buffer into the cache (after a fetch). Values, state and
version always travel together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foresee.engine.kernels.check import check_rows, check_slots
from foresee.engine.kernels.prefetch import prefetch_row, prefetch_row_for_writing
from foresee.engine.kernels.threads import ONE_THREAD, Threads
from foresee.engine.kernels.vector import copy_row
from foresee.store.contract import Rows

Int32 = NDArray[np.int32]

AHEAD = 8
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
        if i + AHEAD < end:
            prefetch_row(values, slots[i + AHEAD])
            prefetch_row(state, slots[i + AHEAD])
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
        if i + AHEAD < end:
            prefetch_row_for_writing(values, slots[i + AHEAD])
            prefetch_row_for_writing(state, slots[i + AHEAD])
        slot = slots[i]
        versions[slot] = new_versions[i]
        copy_row(values, slot, new_values, i)
        copy_row(state, slot, new_state, i)
