"""What rows in memory were before they changed.

In: rows that are about to be written, and the arrays they are in. Out: the same arrays as they were when this object
was made. A row is kept once, when it first changes, so memory grows with the distinct rows written, not with writes.
"""

from __future__ import annotations

import numpy as np

from foresee.store.contract import Float32, Int64
from foresee.store.kernels import Bits, clear_bits, set_bits


class PreImages:
    """For one array of rows and the bits that say which of them were written."""

    def __init__(self, num_rows: int) -> None:
        self._kept: Bits = np.zeros((num_rows + 7) // 8, np.uint8)
        self._pieces: list[tuple[Int64, Float32, Int64]] = []
        """Rows, what they held, and which of them nobody had written."""

    def keep(self, rows: Int64, base: Float32, written: Bits) -> None:
        new = rows[~_are_set(self._kept, rows)]
        if len(new):
            set_bits(self._kept, new)
            self._pieces.append((new, base[new], new[~_are_set(written, new)]))

    def restore(self, base: Float32, written: Bits) -> None:
        for rows, words, unwritten in self._pieces:
            base[rows] = words
            clear_bits(written, unwritten)


def _are_set(bits: Bits, rows: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 == 1
    return found
