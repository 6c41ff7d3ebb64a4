"""Pieces of a file put in order and joined into requests.

In: where pieces of one length begin, in any order. Out: their order, and requests that hold them, as many as a buffer
takes: neighbours come together, each request begins and ends at a sector. Nothing here reads a file.
"""

from __future__ import annotations

import numba
import numpy as np

from foresee.arrays import Int64

GAP_BYTES = 4096
"""Pieces that are no further apart are read together: a request costs as much as some kilobytes."""


@numba.njit(nogil=True, cache=True)
def join_pieces(
    starts: Int64, piece_bytes: int, align: int, begin: int, capacity: int, joined_max: int, offsets: Int64,
    lengths: Int64, places: Int64, words: Int64,
) -> tuple[int, int]:  # fmt: skip
    """Requests for pieces begin.. of ascending starts, as many as the buffer takes; their number, the next piece.

    `places` is where each request goes in the buffer, `words` the word of it at which each piece begins.
    """
    number, used, k = 0, 0, begin
    low, high = 0, -1
    while k < len(starts):
        first = starts[k] // align * align
        last = (starts[k] + piece_bytes + align - 1) // align * align
        if number and first <= high + GAP_BYTES and last - low <= joined_max:
            more = max(last - high, 0)
            if used + more > capacity:
                break
            used += more
            high += more
        else:
            if used + last - first > capacity:
                break
            offsets[number], places[number] = first, used
            low, high = first, last
            used += last - first
            number += 1
        lengths[number - 1] = high - low
        words[k] = (places[number - 1] + starts[k] - low) // 4
        k += 1
    return number, k


@numba.njit(nogil=True, cache=True)
def _pack(starts: Int64, shift: int, keys: Int64) -> bool:
    """Word and place of each start in one number, if all of them fit."""
    highest = np.int64(1) << np.int64(62 - shift)
    for k in range(len(starts)):
        word = starts[k] >> 2
        if word >= highest:
            return False
        keys[k] = word << shift | k
    return True


@numba.njit(nogil=True, cache=True)
def _unpack(keys: Int64, shift: int, order: Int64) -> None:
    for k in range(len(keys)):
        order[k] = keys[k] & ((1 << shift) - 1)
        keys[k] = keys[k] >> shift << 2


def ascending_order(starts: Int64) -> tuple[Int64, Int64]:
    """The order of starts, and themselves in it. Sorting numbers takes a fifth of sorting their places."""
    keys, shift = np.empty(len(starts), np.int64), len(starts).bit_length()
    if not _pack(starts, shift, keys):
        order = np.argsort(starts, kind="stable")
        return order, starts[order]
    keys.sort()
    order = np.empty(len(starts), np.int64)
    _unpack(keys, shift, order)
    return order, keys
