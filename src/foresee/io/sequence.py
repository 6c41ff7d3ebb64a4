"""A file written from front to back, past the page cache.

In: pieces of memory of any length, one after the other, and where the first one begins. Out: the same bytes in the
file. Direct writes begin and end at blocks, so what is left of a piece waits for the next one, and the last bytes of
all go through the page cache. The block in which the first piece begins is written with what the file has there.
"""

from __future__ import annotations

import os

import numpy as np

from foresee.arrays import Float32
from foresee.io.direct import Transfers, Way
from foresee.io.files import Files

_BLOCK = 4096
_BUFFER_BYTES = 1 << 23
_PIECE_BYTES = 1 << 20
"""Length of one of the writes that are in flight together."""


class Sequence:
    """Bytes from `offset` of a file on; `finish` writes the rest, and syncing is the caller's."""

    def __init__(self, path: os.PathLike[str], offset: int, way: Way, files: Files) -> None:
        self._files, self._transfers = files, Transfers(way, _BUFFER_BYTES)
        self._buffered = os.open(path, os.O_RDWR)
        self._direct = os.open(path, os.O_WRONLY | os.O_DIRECT)
        self._begin, self._filled = offset // _BLOCK * _BLOCK, offset % _BLOCK
        before = os.pread(self._buffered, self._filled, self._begin)
        self._transfers.buffer[: self._filled] = np.frombuffer(before, np.uint8)

    def write(self, words: Float32) -> None:
        """What follows."""
        content, buffer = words.reshape(-1).view(np.uint8), self._transfers.buffer
        while len(content):
            taken = min(len(content), len(buffer) - self._filled)
            buffer[self._filled : self._filled + taken] = content[:taken]
            self._filled, content = self._filled + taken, content[taken:]
            if self._filled == len(buffer):
                self._write_blocks()

    def finish(self) -> None:
        self._write_blocks()
        self._files.write(self._buffered, self._transfers.buffer[: self._filled].view(np.float32), self._begin)

    def close(self) -> None:
        self._transfers.close()
        os.close(self._buffered)
        os.close(self._direct)

    def _write_blocks(self) -> None:
        """All whole blocks of the buffer; what is left moves to its front."""
        buffer, num_bytes = self._transfers.buffer, self._filled // _BLOCK * _BLOCK
        starts = np.arange(0, num_bytes, _PIECE_BYTES, dtype=np.int64)
        lengths = np.minimum(_PIECE_BYTES, num_bytes - starts)
        addresses = buffer.ctypes.data + starts
        if len(starts):
            self._files.write_pieces(self._transfers, self._direct, self._begin + starts, lengths, addresses)
        left = self._filled - num_bytes
        buffer[:left] = buffer[num_bytes : self._filled].copy()
        self._begin, self._filled = self._begin + num_bytes, left
