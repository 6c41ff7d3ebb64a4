"""Memory for rows, laid out for the kernels.

In: a number of rows and a width. Out: a zeroed float32 array that begins at a cache line, so that a row of 16·n floats
lies in n lines and not in n + 1, allocated through numpy, which asks the system for large pages (torch does not): rows
are read in no order, and with small pages most reads would wait for an address first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 64


def zeroed_rows(num_rows: int, width: int) -> NDArray[np.float32]:
    """[num_rows, width] zeros."""
    num_bytes = 4 * num_rows * width
    memory = np.zeros(num_bytes + LINE_BYTES, np.uint8)
    begin = -memory.ctypes.data % LINE_BYTES
    return memory[begin : begin + num_bytes].view(np.float32).reshape(num_rows, width)
