"""Durable file operations, in one place so that tests can make each of them fail.

In: descriptors, paths and bytes. Out: bytes that are on the disk when the call returns. Nothing here knows what a row
means. Every failure is an OSError of the operating system; `file_sentence` turns one that nobody expected into a
sentence (the file, the system's word, what to do), unless it is about a socket or a process: then it is no mistake of
a person.
"""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import types

from foresee.arrays import Float32, Int64
from foresee.io.direct import Transfers, Way

# The C library's pwrite, called without the interpreter: a commit writes rows by the hundred thousand.
_pwrite: Any = types.ExternalFunction("pwrite", types.intp(types.int32, types.uintp, types.uintp, types.int64))


@numba.njit(nogil=True, cache=True)
def _write_runs(descriptor: int, data_offset: int, rows: Int64, words: Float32, begin: int) -> int:
    """Writes rows[begin:], ascending, one call per run of neighbours; returns the first position not written."""
    row_bytes = 4 * words.shape[1]
    address = words.ctypes.data
    while begin < len(rows):
        end = begin + 1
        while end < len(rows) and rows[end] == rows[end - 1] + 1:
            end += 1
        num_bytes = (end - begin) * row_bytes
        offset = data_offset + rows[begin] * row_bytes
        if _pwrite(np.int32(descriptor), address + begin * row_bytes, num_bytes, offset) != num_bytes:
            return begin
        begin = end
    return begin


class Files:
    """Durable file operations. Tests subclass it to stop, or to fail, at a chosen call."""

    def sync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def sync_map(self, mapped: mmap.mmap, num_bytes: int) -> None:
        """Brings the first bytes of a shared mapping to the disk."""
        if num_bytes:
            mapped.flush(0, num_bytes)

    def sync_folder(self, folder: Path) -> None:
        """Makes the names in a folder durable."""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def reserve(self, descriptor: int, offset: int, num_bytes: int) -> None:
        """Takes disk space now, so that a later write through a mapping cannot run out of it (and die of SIGBUS)."""
        os.posix_fallocate(descriptor, offset, num_bytes)

    def free_bytes(self, folder: Path) -> int:
        status = os.statvfs(folder)
        return status.f_bavail * status.f_frsize

    def write(self, descriptor: int, words: Float32, offset: int) -> None:
        """Writes a contiguous array; what the system leaves over is written in another call."""
        piece = memoryview(words.view(np.uint8).data).cast("B")
        while piece:
            written = os.pwrite(descriptor, piece, offset)
            piece, offset = piece[written:], offset + written

    def write_rows(self, descriptor: int, data_offset: int, rows: Int64, words: Float32) -> None:
        """Writes words[k, :] as row rows[k] of an array that starts at `data_offset`; `rows` ascend."""
        position = 0
        while (position := int(_write_runs(descriptor, data_offset, rows, words, position))) < len(rows):
            # A full disk or an interrupted call: the interpreter's own call finishes the row or says what is wrong.
            row_bytes = 4 * words.shape[1]
            self.write(descriptor, words[position], data_offset + int(rows[position]) * row_bytes)
            position += 1

    def write_pieces(
        self, transfers: Transfers, descriptor: int, offsets: Int64, lengths: Int64, addresses: Int64
    ) -> None:
        """Writes pieces of memory to places of a file, many at once."""
        transfers.move(True, descriptor, offsets, lengths, addresses)

    def publish(self, path: Path, content: bytes) -> None:
        """Replaces a small file: after a crash it has the old content or the new one, never a mixture."""
        draft = path.with_name(path.name + ".draft")
        try:
            with open(draft, "wb") as stream:
                stream.write(content)
                stream.flush()
                self.sync(stream.fileno())
            self.replace(draft, path)
        except OSError:
            with suppress(OSError):  # a disk that cannot be written refuses this, too
                draft.unlink()
            raise
        self.sync_folder(path.parent)


_FULL = (errno.ENOSPC, errno.EDQUOT)

_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)

_OF_FILES = (
    *_FULL,
    *_NOT_WRITABLE,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EIO,
    errno.EFBIG,
    errno.ENAMETOOLONG,
)


def file_sentence(error: OSError) -> str | None:
    """The sentence for a file or disk that the system does not let us use; None for anything else."""
    if error.errno not in _OF_FILES:
        return None
    where = "a file" if error.filename is None else str(error.filename)
    remedy = "check its name and the disk"
    if error.errno in _FULL:
        remedy = "free some space, then try again"
    elif error.errno in _NOT_WRITABLE:
        remedy = "give a place that can be written, or change its permissions"
    return f"{where} cannot be used ({error.strerror}); {remedy}"


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
