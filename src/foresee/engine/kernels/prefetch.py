"""A hint to the processor: this row will be needed soon.

In: a 2-D array and a row number. Out: nothing; the lines of the row are on their way into the cache. The rows of a
batch lie all over the memory, so without the hint a kernel spends most of its time waiting. Never changes a value:
where LLVM has no such instruction, or numba builds it differently, the hint is left out and all else stays the same.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LINE_FLOATS = 16
"""float32 of one cache line."""


def _emit_prefetch(context: Any, builder: Any, signature: Any, args: Any, for_writing: int) -> Any:
    array_type, row_type, column_type = signature.args
    try:
        array = context.make_array(array_type)(context, builder, value=args[0])
        indices = [
            context.cast(builder, args[1], row_type, types.intp),
            context.cast(builder, args[2], column_type, types.intp),
        ]
        pointer = cgutils.get_item_pointer2(
            context,
            builder,
            array.data,
            cgutils.unpack_tuple(builder, array.shape),
            cgutils.unpack_tuple(builder, array.strides),
            array_type.layout,
            indices,
        )
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte], ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        )
        keep_in_all_caches, data_not_code = word(3), word(1)
        builder.call(
            prefetch, [builder.bitcast(pointer, byte), word(for_writing), keep_in_all_caches, data_not_code]
        )
    except (AttributeError, NotImplementedError, TypeError):
        pass  # only a hint: numba's inner interfaces may change, results may not
    return context.get_dummy_value()


@intrinsic
def _prefetch_for_reading(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _emit_prefetch(context, builder, signature, args, for_writing=0)

    return types.void(array, row, column), codegen


@intrinsic
def _prefetch_for_writing(typing_context: Any, array: Any, row: Any, column: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _emit_prefetch(context, builder, signature, args, for_writing=1)

    return types.void(array, row, column), codegen


@njit(nogil=True, inline="always")
def prefetch_row(array, row):  # type: ignore[no-untyped-def]
    """`array[row]` will be read soon."""
    for column in range(0, array.shape[1], LINE_FLOATS):
        _prefetch_for_reading(array, row, column)


@njit(nogil=True, inline="always")
def prefetch_row_for_writing(array, row):  # type: ignore[no-untyped-def]
    """`array[row]` will be changed soon."""
    for column in range(0, array.shape[1], LINE_FLOATS):
        _prefetch_for_writing(array, row, column)
