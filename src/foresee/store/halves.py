"""Values of two bytes: bfloat16 and float16, how a float32 is rounded to them, and the random bits of that.

In: float32, and for stochastic rounding 16 random bits that follow from (seed, row, column, version) alone. Out:
halves, two to a word of 4 bytes, the first in its low half; a row of odd width ends with two bytes of zero. So rows
travel and lie as words, whatever their values are, and only those who compute look inside.

A stochastic rounding adds the random bits to those that will be cut off: a value goes up as often as it is near the
upper neighbour, and stays as it is on the mean. A row and version have one key (`row_key`, splitmix64), and every two
columns share a 32-bit hash of it, which processors compute eight at a time (`bits_of_column`). All of it is
integers: the same on every machine. tests/store/test_halves.py pins it, as old folders must go on as they began.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from foresee.arrays import Float32, Int64
from foresee.io.hashing import combine, key_of

DTYPES = ("float32", "bfloat16", "float16")
ROUNDINGS = ("stochastic", "nearest")
SAFETENSORS_DTYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}
"""What safetensors calls them, and bytes of a value."""
FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
"""How kernels know the dtypes: by their place in `DTYPES`."""
STEP, FIRST, SECOND = 0x9E3779B9, 0x85EBCA6B, 0xC2B2AE35
_PURPOSE = 0x726F756E64  # so that the key is no other use's of the same seed

_U = np.uint32


def words_of_width(width: int, dtype: str) -> int:
    """Words of 4 bytes that the values of a row take."""
    return width if dtype == "float32" else (width + 1) // 2


def rounding_for(dtype: str, rounding: str) -> str:
    """The rounding of a layout: tables of float32 are equal, whatever was asked."""
    return ROUNDINGS[0] if dtype == "float32" else rounding


def rounding_key(seed: int) -> np.uint64:
    """What `row_key` takes for a seed."""
    return np.uint64(key_of(_PURPOSE, seed))


@njit(nogil=True, cache=True, inline="always")
def row_key(version_key: np.uint64, row: int) -> Any:
    """Of the rounding of one row to one version; `version_key` is `combine(rounding_key(seed), version)`."""
    return combine(version_key, np.uint64(row))


@njit(nogil=True, cache=True)
def bits_of_column(key: np.uint64, column: int) -> Any:
    """Sixteen random bits for a column, as uint32."""
    value = _U(_U(key) + _U(_U(column // 2) * _U(STEP)))
    value = _U((value ^ (value >> _U(16))) * _U(FIRST))
    value = value ^ _U(key >> np.uint64(32))
    value = _U((value ^ (value >> _U(13))) * _U(SECOND))
    value = value ^ (value >> _U(16))
    return value >> _U(16) if column % 2 else value & _U(0xFFFF)


@njit(nogil=True, cache=True)
def bfloat16_of(bits: np.uint32, stochastic: bool, random: np.uint32) -> Any:
    """The half of a float32, both as bits."""
    if (bits & _U(0x7FFFFFFF)) > _U(0x7F800000):  # no number: stays one
        return (bits >> _U(16)) | _U(0x40)
    added = random if stochastic else _U(0x7FFF) + ((bits >> _U(16)) & _U(1))
    return _U(bits + added) >> _U(16)


@njit(nogil=True, cache=True)
def float16_of(bits: np.uint32, stochastic: bool, random: np.uint32) -> Any:
    """The half of a float32, both as bits. A value under 2^-14 keeps fewer bits, as halves are evenly spaced there."""
    size, sign = bits & _U(0x7FFFFFFF), (bits >> _U(16)) & _U(0x8000)
    if size > _U(0x7F800000):
        return sign | _U(0x7E00)
    exponent = max(size >> _U(23), _U(83))  # below 2^-44 nothing ever rounds up
    cut = _U(13) + max(_U(113), exponent) - exponent
    fraction = (size & _U(0x7FFFFF)) | (_U(0x800000) if size >= _U(83 << 23) else _U(0))
    fraction, cut = fraction >> (max(cut, _U(31)) - _U(31)), min(cut, _U(31))
    added = (random << _U(15)) >> (_U(31) - cut)
    if not stochastic:
        added = (_U(1) << (cut - _U(1))) - _U(1) + ((fraction >> cut) & _U(1))
    half = (_U(fraction + added) >> cut) + ((max(exponent, _U(113)) - _U(113)) << _U(10))
    return sign | min(half, _U(0x7C00))


@njit(nogil=True, cache=True)
def float32_of(half: np.uint32, kind: int) -> Any:
    """The bits of the float32 that a half is, exactly."""
    if kind == BFLOAT16:
        return half << _U(16)
    sign, size = (half & _U(0x8000)) << _U(16), half & _U(0x7FFF)
    if size >= _U(0x7C00):
        return sign | _U(0x7F800000) | (size & _U(0x3FF)) << _U(13)
    if size >= _U(0x400):
        return sign | _U((size << _U(13)) + _U(112 << 23))
    top = 0
    for bit in range(10):
        top = bit if size >> _U(bit) & _U(1) else top
    scaled = _U(top + 103) << _U(23) | (size << _U(23 - top)) & _U(0x7FFFFF)
    return sign | (scaled if size else _U(0))


@intrinsic
def float_bits(typing_context: Any, value: Any) -> Any:
    """A float32 as its bits."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), code


@njit(nogil=True, cache=True)
def rounded(bits: np.uint32, kind: int, stochastic: bool, key: np.uint64, column: int) -> Any:
    """The half of a float32, both as bits."""
    random = bits_of_column(key, column) if stochastic else _U(0)
    return bfloat16_of(bits, stochastic, random) if kind == BFLOAT16 else float16_of(bits, stochastic, random)


@njit(nogil=True, cache=True)
def _pack(values: Any, kind: int, stochastic: bool, version_key: np.uint64, rows: Any, out: Any) -> None:
    for k in range(values.shape[0]):
        key = row_key(version_key, rows[k]) if stochastic else np.uint64(0)
        for column in range(values.shape[1]):
            out[k, column] = rounded(values[k, column], kind, stochastic, key, column)


@njit(nogil=True, cache=True)
def _unpack(halves: Any, kind: int, out: Any) -> None:
    for k in range(out.shape[0]):
        for column in range(out.shape[1]):
            out[k, column] = float32_of(_U(halves[k, column]), kind)


def packed(values: Float32, dtype: str) -> Float32:
    """[rows, words]: float32 as the words of a row, rounded to nearest where that is needed."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype == "float32":
        return values
    out = np.zeros((len(values), words_of_width(values.shape[1], dtype)), np.float32)
    nobody: Int64 = np.empty(0, np.int64)
    _pack(values.view(np.uint32), DTYPES.index(dtype), False, np.uint64(0), nobody, out.view(np.uint16))
    return out


def unpacked(words: Float32, width: int, dtype: str) -> Float32:
    """[rows, width]: the values of rows as float32; the words themselves where they are."""
    if dtype == "float32":
        return words
    halves: NDArray[np.uint16] = np.ascontiguousarray(words).view(np.uint16)
    out = np.empty((len(words), width), np.uint32)
    _unpack(halves, DTYPES.index(dtype), out)
    return out.view(np.float32)
