"""Array types by name, and memory for rows that is laid out for the kernels.

`zeroed_rows` begins at a cache line, so that a row of 16·n floats lies in n lines and not in n + 1, and is allocated
through numpy, which asks the system for large pages (torch does not): rows are read in no order, and with small pages
most reads would wait for an address first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bool = NDArray[np.bool_]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

LINE_BYTES = 64


def zeroed_rows(num_rows: int, width: int) -> Float32:
    """[num_rows, width] zeros."""
    num_bytes = 4 * num_rows * width
    memory = np.zeros(num_bytes + LINE_BYTES, np.uint8)
    begin = -memory.ctypes.data % LINE_BYTES
    return memory[begin : begin + num_bytes].view(np.float32).reshape(num_rows, width)
