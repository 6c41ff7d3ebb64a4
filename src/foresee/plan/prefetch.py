"""A software prefetch for numba kernels: asks for the cache line of an element before it is needed.

Gathering rows by id is a chain of cache misses; asking a dozen rows ahead overlaps them. `llvm.prefetch` is a hint:
it never faults, so an address outside the array is harmless.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


def _emit_prefetch(context: Any, builder: Any, signature: Any, args: Any, *, write: int) -> Any:
    array_type, _ = signature.args
    array = context.make_array(array_type)(context, builder, args[0])
    pointer = builder.gep(builder.bitcast(array.data, context.get_data_type(array_type.dtype).as_pointer()), [args[1]])
    address = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    int32 = ir.IntType(32)
    function_type = ir.FunctionType(ir.VoidType(), [address.type, int32, int32, int32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    builder.call(function, [address, int32(write), int32(3), int32(1)])
    return context.get_dummy_value()


@intrinsic
def prefetch_read(typing_context: Any, array: Any, flat_index: Any) -> Any:
    """Prefetches the line of the element at a flat index of a C-contiguous array, for reading."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _emit_prefetch(context, builder, signature, args, write=0)

    return types.void(array, types.intp), code


@intrinsic
def prefetch_write(typing_context: Any, array: Any, flat_index: Any) -> Any:
    """Prefetches the line of the element at a flat index of a C-contiguous array, for writing."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _emit_prefetch(context, builder, signature, args, write=1)

    return types.void(array, types.intp), code
