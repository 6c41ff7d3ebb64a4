"""Strings to 64-bit hashes, and hashes to ids: the two loops over all values of a raw log, compiled.

FNV-1a over the UTF-8 bytes, then splitmix64's finaliser. The function is part of the format: a hashed table of a
prepared log is only usable by someone who computes the same hash, so it may never change.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from foresee.data.batch import Int32

UInt64 = NDArray[np.uint64]


def hash_strings(values: pa.Array, salt: int = 0) -> UInt64:
    """One hash per string of a `large_string` array without nulls."""
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64, len(values) + 1, offset=8 * values.offset)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return _hash(offsets, data, np.uint64(salt))  # type: ignore[no-any-return]


class IdMap:
    """Maps the hashes of a vocabulary to ids 1, 2, ...; everything else to 0."""

    def __init__(self, values: pa.Array) -> None:
        size = 1 << max(4, int(len(values) * 2).bit_length())
        # Two values with one hash would share a row. Among 10^8 values that happens once in 4,000 vocabularies;
        # another salt then separates them.
        for salt in range(16):
            self._salt = salt
            self._hashes = np.zeros(size, np.uint64)
            self._ids = np.zeros(size, np.int32)
            if _insert(self._hashes, self._ids, hash_strings(values, salt)):
                return
        raise AssertionError("sixteen salts cannot all collide")

    def ids(self, values: pa.Array) -> Int32:
        return _find(self._hashes, self._ids, hash_strings(values, self._salt))  # type: ignore[no-any-return]


@njit(nogil=True, cache=True)
def _hash(offsets: Any, data: Any, salt: np.uint64) -> UInt64:
    out = np.empty(len(offsets) - 1, np.uint64)
    for index in range(len(out)):
        value = np.uint64(0xCBF29CE484222325) ^ salt
        for position in range(offsets[index], offsets[index + 1]):
            value = (value ^ np.uint64(data[position])) * np.uint64(0x100000001B3)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[index] = value ^ (value >> np.uint64(31))
    return out


@njit(nogil=True, cache=True)
def _insert(hashes: UInt64, ids: Int32, new: UInt64) -> bool:
    mask = np.uint64(len(hashes) - 1)
    for index in range(len(new)):
        place = new[index] & mask
        while ids[place] != 0:
            if hashes[place] == new[index]:
                return False
            place = (place + np.uint64(1)) & mask
        hashes[place] = new[index]
        ids[place] = index + 1
    return True


@njit(nogil=True, cache=True)
def _find(hashes: UInt64, ids: Int32, wanted: UInt64) -> Int32:
    mask = np.uint64(len(hashes) - 1)
    out = np.zeros(len(wanted), np.int32)
    for index in range(len(wanted)):
        place = wanted[index] & mask
        while ids[place] != 0:
            if hashes[place] == wanted[index]:
                out[index] = ids[place]
                break
            place = (place + np.uint64(1)) & mask
    return out
