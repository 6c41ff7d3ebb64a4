"""The loops that copy rows, shared by all stores that hold them in arrays; and the initial value of a row.

A stored row is `value_words + state_width + 1` words of 4 bytes, which float32 arrays carry: values (each a word, or
two halves to a word), state, and the version in the bits of the last word. So one row is one contiguous piece of memory
or file. Reads are in two passes: first each row gets a place (its position in the overlay, BASE, or INITIAL), then rows
are copied from their places. The passes are apart because the first needs a lock and the second may wait for a disk.
Inner loops are written out: numba's slices are far slower.

An initial value is 24 bits of a splitmix64 hash of (seed, row, column), uniform in [-scale, scale), so any row can be
made at any time, in any order, on any machine. The golden values of tests/store/test_initial.py pin it: a change here
would silently give old table folders other rows. Halves are rounded from it as by an update to version 0.
"""

from __future__ import annotations

import platform
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from foresee.arrays import Float32, Int32, Int64
from foresee.io.hashing import GOLDEN, key_and, mix
from foresee.prefetch import ROWS_AHEAD, prefetch
from foresee.store.halves import DTYPES, FLOAT32, float_bits, rounded, rounding_key, row_key
from foresee.store.layout import Layout

_GOLDEN = np.uint64(GOLDEN)
_SHIFT_40 = np.uint64(40)
_SHIFT_8 = np.uint64(8)
_LOW_32 = np.uint64(0xFFFFFFFF)
_HALF = np.int64(1 << 23)


class Initial(NamedTuple):
    """What the initial values of rows follow from."""

    key: np.uint64
    """The seed: any Python integer, folded to 64 bits."""
    unit: np.float32
    """The distance between two neighbouring initial values."""
    width: int
    kind: int
    """The dtype, as `store.halves` counts them."""
    stochastic: bool
    rounding: np.uint64
    """The key of roundings to version 0."""


def initial_of(layout: Layout) -> Initial:
    return Initial(
        np.uint64(layout.seed % (1 << 64)),
        np.float32(layout.init_scale) * np.float32(2.0**-23),
        layout.width,
        DTYPES.index(layout.dtype),
        layout.rounding == "stochastic",
        key_and(rounding_key(layout.seed), 0),
    )


@numba.njit(nogil=True, cache=True)
def fill_initial_row(initial: Initial, row: int, out: Float32, position: int) -> None:
    """Writes the initial values of `row` into the first words of out[position].

    A 24-bit number k - 2^23 is exact in float32, and so is `unit` (scale / 2^23): one rounding in all, and no value
    ever rounds up to `scale`. Two columns share one hash.
    """
    state = mix(initial.key ^ mix(np.uint64(row) * _GOLDEN + _GOLDEN))
    words = out.view(np.uint32)
    key = np.uint64(0) if initial.kind == FLOAT32 else row_key(initial.rounding, row)
    for column in range(0, initial.width, 2):
        state += _GOLDEN
        word = mix(state)
        first = np.float32(np.int64(word >> _SHIFT_40) - _HALF) * initial.unit
        second = np.float32(np.int64((word & _LOW_32) >> _SHIFT_8) - _HALF) * initial.unit
        if initial.kind == FLOAT32:
            out[position, column] = first
            if column + 1 < initial.width:
                out[position, column + 1] = second
        else:
            low = _half_of(initial, key, column, first)
            high = _half_of(initial, key, column + 1, second) if column + 1 < initial.width else np.uint32(0)
            words[position, column // 2] = low | (high << np.uint32(16))


@numba.njit(nogil=True, cache=True)
def _half_of(initial: Initial, key: np.uint64, column: int, value: np.float32) -> Any:
    return rounded(float_bits(value), initial.kind, initial.stochastic, key, column)


@numba.njit(nogil=True, cache=True)
def _fill_rows(initial: Initial, rows: Int64, out: Float32) -> None:
    for position in range(len(rows)):
        fill_initial_row(initial, rows[position], out, position)


def initial_values(layout: Layout, rows: Int64) -> Float32:
    """The initial values of some rows, as a new array [rows, value_words]."""
    out = np.empty((len(rows), layout.value_words), np.float32)
    _fill_rows(initial_of(layout), rows, out)
    return out


Bits = NDArray[np.uint8]

BASE = -1
"""Place of a row that is in the base array."""
INITIAL = -2
"""Place of a row that nobody has written."""
REFUSED = -3
"""Place of a written row whose version is lower than the stored one."""


@numba.njit(nogil=True, cache=True, inline="always")
def is_set(bits: Bits, row: int) -> bool:
    return bool((bits[row >> 3] >> np.uint8(row & 7)) & np.uint8(1))


@numba.njit(nogil=True, cache=True, inline="always")
def set_bit(bits: Bits, row: int) -> None:
    bits[row >> 3] |= np.uint8(1) << np.uint8(row & 7)


@numba.njit(nogil=True, cache=True)
def set_bits(bits: Bits, rows: Int64) -> None:
    for row in rows:
        set_bit(bits, row)


@numba.njit(nogil=True, cache=True)
def clear_bits(bits: Bits, rows: Int64) -> None:
    for row in rows:
        bits[row >> 3] &= ~(np.uint8(1) << np.uint8(row & 7))


@numba.njit(nogil=True, cache=True)
def locate_in_base(rows: Int64, written: Bits, places: Int64) -> None:
    """Places for a store without overlay."""
    for k in range(len(rows)):
        places[k] = BASE if is_set(written, rows[k]) else INITIAL


@numba.njit(nogil=True, cache=True)
def gather(
    rows: Int64,
    places: Int64,
    base: Float32,
    overlay: Float32,
    overlay_header: int,
    initial: Initial,
    values: Float32,
    state: Float32,
    versions: Int32,
    begin: int,
    end: int,
) -> None:
    """Copies rows begin..end of a request from their places. `overlay_header` is the words before an overlay's row."""
    base_versions = base.view(np.int32)
    overlay_versions = overlay.view(np.int32)
    width, state_width = values.shape[1], state.shape[1]
    version_word = width + state_width
    row_bytes = 4 * (version_word + 1)
    base_address, base_stride = base.ctypes.data, 4 * base.shape[1]
    overlay_address, overlay_stride = overlay.ctypes.data, 4 * overlay.shape[1]
    for k in range(begin, end):
        if k + ROWS_AHEAD < end:
            place = places[k + ROWS_AHEAD]
            if place >= 0:
                prefetch(overlay_address + place * overlay_stride, row_bytes + 4 * overlay_header)
            elif place == BASE:
                prefetch(base_address + rows[k + ROWS_AHEAD] * base_stride, row_bytes)
        place = places[k]
        if place >= 0:
            for i in range(width):
                values[k, i] = overlay[place, overlay_header + i]
            for i in range(state_width):
                state[k, i] = overlay[place, overlay_header + width + i]
            versions[k] = overlay_versions[place, overlay_header + version_word]
        elif place == BASE:
            row = rows[k]
            for i in range(width):
                values[k, i] = base[row, i]
            for i in range(state_width):
                state[k, i] = base[row, width + i]
            versions[k] = base_versions[row, version_word]
        else:
            fill_initial_row(initial, rows[k], values, k)
            for i in range(state_width):
                state[k, i] = 0.0
            versions[k] = 0


@numba.njit(nogil=True, cache=True)
def assign_in_base(rows: Int64, values: Float32, state: Float32, versions: Int32, base: Float32, written: Bits) -> None:
    """Writes rows into a base array in memory; rows with a lower version than the stored one are left out."""
    base_versions = base.view(np.int32)
    width, state_width = values.shape[1], state.shape[1]
    version_word = width + state_width
    base_address, base_stride = base.ctypes.data, 4 * base.shape[1]
    for k in range(len(rows)):
        if k + ROWS_AHEAD < len(rows):
            prefetch(base_address + rows[k + ROWS_AHEAD] * base_stride, base_stride)
        row = rows[k]
        # The memory of a row that was never written is zero, and so is its version.
        if versions[k] < base_versions[row, version_word]:
            continue
        for i in range(width):
            base[row, i] = values[k, i]
        for i in range(state_width):
            base[row, width + i] = state[k, i]
        base_versions[row, version_word] = versions[k]
        set_bit(written, row)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that kernels cannot write through, so that every store uses the same compiled gather."""
    view = array.view()
    view.flags.writeable = False
    return view


_POLYNOMIAL = 0x82F63B78
_LOW_BYTE = np.uint64(0xFF)
_ALL_ONES = np.uint64(0xFFFFFFFF)


def _crc_table() -> NDArray[np.uint64]:
    table = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        table = np.where(table & np.uint64(1), (table >> np.uint64(1)) ^ np.uint64(_POLYNOMIAL), table >> np.uint64(1))
    return table


_CRC_TABLE = _crc_table()


@numba.njit(nogil=True, cache=True)
def crc_step_by_table(crc: np.uint64, word: np.uint64) -> np.uint64:
    """crc32c over eight more bytes, on processors without an instruction for it."""
    mixed = crc ^ word
    for _ in range(8):
        mixed = (mixed >> _SHIFT_8) ^ _CRC_TABLE[mixed & _LOW_BYTE]
    return mixed


@intrinsic
def _crc_step_by_instruction(typing_context: Any, crc: Any, word: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        long, short = ir.IntType(64), ir.IntType(32)
        if platform.machine() == "x86_64":
            kind, name = ir.FunctionType(long, [long, long]), "llvm.x86.sse42.crc32.64.64"
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)
        kind, name = ir.FunctionType(short, [short, long]), "llvm.aarch64.crc32cx"
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.zext(builder.call(function, [builder.trunc(args[0], short), args[1]]), long)

    return types.uint64(types.uint64, types.uint64), code


@numba.njit(nogil=True, cache=True)
def _crc_step_native(crc: np.uint64, word: np.uint64) -> np.uint64:
    return _crc_step_by_instruction(crc, word)  # type: ignore[no-any-return]


def _has_crc_instruction() -> bool:
    features = binding.get_host_cpu_features()
    return bool(features.get({"x86_64": "sse4.2", "aarch64": "crc"}.get(platform.machine(), "")))


crc_step: Any = _crc_step_native if _has_crc_instruction() else crc_step_by_table


@numba.njit(nogil=True, cache=True)
def crc_of_words(seed: int, words: Int32, begin: int, end: int) -> np.uint64:
    """crc32c of a number (8 bytes) and words begin..end, filled up to 8 bytes with zeros; never 0, which is "none"."""
    crc = crc_step(_ALL_ONES, np.uint64(seed))
    for i in range(begin, end - 1, 2):
        crc = crc_step(crc, np.uint64(np.uint32(words[i])) | (np.uint64(np.uint32(words[i + 1])) << np.uint64(32)))
    if (end - begin) % 2:
        crc = crc_step(crc, np.uint64(np.uint32(words[end - 1])))
    crc ^= _ALL_ONES
    return crc if crc else np.uint64(1)


NO_CRC = 0
"""A row of a folder that was made before rows had checksums."""


@numba.njit(nogil=True, cache=True)
def take_rows(
    source: Float32,
    at: Int64,
    which: Int64,
    rows: Int64,
    crcs: NDArray[np.uint32],
    all_checked: bool,
    values: Float32,
    state: Float32,
    versions: Int32,
    begin: int,
    end: int,
) -> int:
    """Copy rows out of a buffer: row which[k] of a request begins at word at[k].

    The crc32c of a row is in `crcs`, or in the word after the row if `crcs` is empty. Unless `all_checked`, rows whose
    crc32c is NO_CRC are not compared. Return the first row of the request whose content is not what was written, or -1.
    """
    words = source.view(np.int32)
    width, state_width = values.shape[1], state.shape[1]
    row_words = width + state_width + 1
    address = source.ctypes.data
    for n in range(begin, end):
        if n + ROWS_AHEAD < end:
            prefetch(address + 4 * at[n + ROWS_AHEAD], 4 * row_words + 4)
        k, first = which[n], at[n]
        expected = np.uint64(crcs[k]) if len(crcs) else np.uint64(np.uint32(words[first + row_words]))
        if (all_checked or expected != NO_CRC) and crc_of_words(rows[k], words, first, first + row_words) != expected:
            return int(k)
        for i in range(width):
            values[k, i] = source[first + i]
        for i in range(state_width):
            state[k, i] = source[first + width + i]
        versions[k] = words[first + row_words - 1]
    return -1


@numba.njit(nogil=True, cache=True)
def fill_initial_rows(
    picks: Int64, rows: Int64, initial: Initial, values: Float32, state: Float32, versions: Int32
) -> None:
    """The picked rows of a request were never written."""
    for k in picks:
        fill_initial_row(initial, rows[k], values, k)
        for i in range(state.shape[1]):
            state[k, i] = 0.0
        versions[k] = 0
