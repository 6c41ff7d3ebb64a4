"""One processor instruction that numba does not offer: ask for a cache line before it is needed.

Rows are read at random addresses, so a plain gather spends its time waiting for memory. Asking for a row a dozen
positions ahead hides that wait. A prefetch never faults and never changes a value: an address that is not mapped, or a
page that is still on disk, makes it a no-op.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LINE_BYTES = 64
ROWS_AHEAD = 12


@intrinsic
def _prefetch_line(typing_context: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # For reading, keep in all cache levels, data cache.
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.intp), emit


@numba.njit(nogil=True, cache=True, inline="always")
def prefetch(address: int, num_bytes: int) -> None:
    """Asks for the cache lines of [address, address + num_bytes)."""
    for offset in range(0, num_bytes, LINE_BYTES):
        _prefetch_line(address + offset)
    _prefetch_line(address + num_bytes - 1)
