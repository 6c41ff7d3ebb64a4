"""`checksums.npy`: the crc32c of the id and content of each row in `rows.npy`.

A checksum is never 0. In folders of format 4 or newer every row that `written.npy` lists has one, so 0 there is damage.
In older folders 0 means that the row was written before rows had checksums, and the row is not compared.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Float32, Int64
from foresee.errors import StoreError
from foresee.io.direct import Transfers
from foresee.store.kernels import Bits, crc_of_words
from foresee.store.layout import Layout, row_name

CHECKSUMS_FILE = "checksums.npy"
BLOCK_CRCS = 1024
"""Checksums that are read together: 4 KiB."""
ASKED_FOR, READ = 1, 2


@numba.njit(nogil=True, cache=True)
def row_checksums(rows: Int64, words: Float32, out: Float32) -> None:
    """Compute the checksum of each row into `out`, whose words are read as uint32."""
    ints, crcs = words.view(np.int32).ravel(), out.view(np.uint32)
    row_words = words.shape[1]
    for k in range(len(rows)):
        crcs[k, 0] = np.uint32(crc_of_words(rows[k], ints, k * row_words, (k + 1) * row_words))


@numba.njit(nogil=True, cache=True)
def _missing_blocks(rows: Int64, known: Bits, out: Int64) -> int:
    """Blocks of checksums that some of these rows need, each once."""
    count = 0
    for row in rows:
        block = row // BLOCK_CRCS
        if known[block] == 0:
            known[block] = ASKED_FOR
            out[count] = block
            count += 1
    for k in range(count):
        known[out[k]] = 0
    return count


class KnownChecksums:
    """Checksums that were read before, by blocks: a row that is read for the first time needs one read and not two.

    4 bytes for each row of the tables, as far as blocks were read. Whoever writes rows of the base forgets them; a
    reading that has begun before is not kept.
    """

    def __init__(self, num_rows: int) -> None:
        num_blocks = -(-num_rows // BLOCK_CRCS)
        self._crcs = np.zeros(num_blocks * BLOCK_CRCS, np.uint32)
        self._known: Bits = np.zeros(num_blocks, np.uint8)
        self._changes, self._lock = 0, threading.Lock()

    def of(self, rows: Int64, descriptor: int, offset: int, reads: Transfers) -> NDArray[np.uint32]:
        """The checksums of these rows, from a file in which they begin at this offset."""
        changes, blocks = self._changes, np.empty(len(rows), np.int64)
        blocks = blocks[: _missing_blocks(rows, self._known, blocks)]
        if len(blocks):
            table = self._crcs.reshape(-1, BLOCK_CRCS)

            def take(words: Float32, at: Int64, which: Int64) -> None:
                found = words.view(np.uint32)
                for begin, block in zip(at.tolist(), blocks[which].tolist(), strict=True):
                    table[block] = found[begin : begin + BLOCK_CRCS]

            reads.read(descriptor, offset + 4 * BLOCK_CRCS * blocks, 4 * BLOCK_CRCS, take)
            with self._lock:
                if changes == self._changes:
                    self._known[blocks] = READ
        return self._crcs[rows]

    def forget(self) -> None:
        """The file has changed."""
        with self._lock:
            self._changes += 1
            self._known[:] = 0


def lost_checksum(layout: Layout, row: int, path: Path) -> StoreError:
    """Return the error for a row that was written and whose checksum is 0."""
    return StoreError(
        f"{path} is damaged: {row_name(layout, row)} was written and its checksum is 0, so the row cannot be verified; "
        "check the disk, then restore the folder from a copy"
    )
