"""A hint to the processor, for numba kernels: these bytes will be needed soon.

Rows are read at random addresses, so a plain gather spends its time waiting for memory; asking a dozen rows ahead hides
that wait. A prefetch never faults and never changes a value: an address outside of an array, or a page that is still on
disk, makes it a no-op. Arrays are C-contiguous.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from foresee.arrays import LINE_BYTES

ROWS_AHEAD = 12
"""How many rows ahead hide the wait for memory here."""
LINE_FLOATS = LINE_BYTES // 4
"""float32 of one cache line."""


def _emit(builder: Any, address: Any, *, write: int) -> None:
    word = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    keep_in_all_caches, data_not_code = word(3), word(1)
    builder.call(function, [address, word(write), keep_in_all_caches, data_not_code])


def _emit_element(context: Any, builder: Any, signature: Any, args: Any, *, write: int) -> Any:
    array_type = signature.args[0]
    try:
        array = context.make_array(array_type)(context, builder, args[0])
        first = builder.bitcast(array.data, context.get_data_type(array_type.dtype).as_pointer())
        _emit(builder, builder.bitcast(builder.gep(first, [args[1]]), ir.IntType(8).as_pointer()), write=write)
    except (AttributeError, NotImplementedError, TypeError):
        pass  # only a hint: numba's inner interfaces may change, results may not
    return context.get_dummy_value()


@intrinsic
def _prefetch_line(typing_context: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _emit(builder, builder.inttoptr(args[0], ir.IntType(8).as_pointer()), write=0)
        return context.get_dummy_value()

    return types.void(types.intp), code


@intrinsic
def prefetch_read(typing_context: Any, array: Any, flat_index: Any) -> Any:
    """The line of the element at a flat index will be read soon."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _emit_element(context, builder, signature, args, write=0)

    return types.void(array, types.intp), code


@intrinsic
def prefetch_write(typing_context: Any, array: Any, flat_index: Any) -> Any:
    """The line of the element at a flat index will be changed soon."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _emit_element(context, builder, signature, args, write=1)

    return types.void(array, types.intp), code


@numba.njit(nogil=True, inline="always")
def prefetch_row(array, row):  # type: ignore[no-untyped-def]
    """`array[row]` of a 2-D float32 array will be read soon."""
    for column in range(0, array.shape[1], LINE_FLOATS):
        prefetch_read(array, row * array.shape[1] + column)


@numba.njit(nogil=True, inline="always")
def prefetch_row_for_writing(array, row):  # type: ignore[no-untyped-def]
    """`array[row]` of a 2-D float32 array will be changed soon."""
    for column in range(0, array.shape[1], LINE_FLOATS):
        prefetch_write(array, row * array.shape[1] + column)


@numba.njit(nogil=True, cache=True, inline="always")
def prefetch(address: int, num_bytes: int) -> None:
    """The bytes [address, address + num_bytes) will be read soon."""
    for offset in range(0, num_bytes, LINE_BYTES):
        _prefetch_line(address + offset)
    _prefetch_line(address + num_bytes - 1)
