"""Many pieces of a file at once, past the page cache: io_uring, or threads with direct reads, or a mapping.

In: the offsets of pieces of one length, in any order. Out: their words in a buffer, a batch at a time, each sorted and
its neighbours joined. The way is found by trying (`probe`), and what is read does not depend on it. io_uring is
spoken by system calls from compiled kernels, so it needs no package, and the interpreter is not held while it works.
A page cache costs seventy times the processor time of a direct transfer; a mapping is for files that memory holds.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from foresee.arrays import Float32, Int64
from foresee.errors import ConfigError
from foresee.io.disk_stats import Moved

WAYS = ("io_uring", "threads", "mapped")

WAY_VARIABLE = "FORESEE_DISK"

IN_FLIGHT = 128

PIECE_BYTES_MAX = 1 << 17

BUFFER_BYTES = 1 << 23

NUM_THREADS = 16

PIECES_PER_THREAD = 4

_READ, _WRITE, _READ_FIXED, _WRITE_FIXED = 22, 23, 4, 5

_SETUP, _ENTER, _REGISTER = 425, 426, 427

_COOPERATIVE, _SINGLE_MAP = 1 << 8, 1

_SUBMISSIONS_AT = 0x10000000

_SECTORS = (512, 4096)

Take = Callable[[Float32, Int64, Int64], None]
"""Takes pieces out of a buffer: take(words, word at which each piece begins, which pieces of the request these are)."""

_pread: Any = types.ExternalFunction("pread", types.intp(types.int32, types.uintp, types.uintp, types.int64))

_pwrite: Any = types.ExternalFunction("pwrite", types.intp(types.int32, types.uintp, types.uintp, types.int64))

_syscall: Any = types.ExternalFunction("syscall", types.intp(*[types.intp] * 7))

_errno_place: Any = types.ExternalFunction("__errno_location", types.intp())


@intrinsic
def _fence(typing_context: Any) -> Any:
    """The kernel writes the rings while we read them: no load or store may cross this."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), code


@intrinsic
def _int_at(typing_context: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(builder.inttoptr(args[0], ir.IntType(32).as_pointer()))

    return types.int32(types.intp), code


@numba.njit(nogil=True, cache=True)
def _transfer(
    ring: int,
    depth: int,
    words: NDArray[np.uint32],
    places: Int64,
    entries: NDArray[np.uint64],
    operation: int,
    descriptor: int,
    offsets: Int64,
    lengths: Int64,
    addresses: Int64,
    results: Int64,
) -> int:
    """Carries out all requests with at most `depth` in flight; 0, or the error of the ring itself."""
    sq_tail, sq_mask, sq_array = places[0], places[1], places[2]
    cq_head, cq_tail, cq_mask, cq_entries = places[3], places[4], places[5], places[6]
    tail, mask = np.int64(words[sq_tail]), np.int64(words[sq_mask])
    number, next_one, in_flight, unsubmitted, done = len(offsets), 0, 0, 0, 0
    head_word = np.uint64(operation) | (np.uint64(descriptor) << np.uint64(32))
    while done < number:
        while next_one < number and in_flight < depth:
            slot = tail & mask
            entries[slot, 0] = head_word
            entries[slot, 1] = np.uint64(offsets[next_one])
            entries[slot, 2] = np.uint64(addresses[next_one])
            entries[slot, 3] = np.uint64(lengths[next_one])
            entries[slot, 4] = np.uint64(next_one)
            entries[slot, 5] = np.uint64(0)
            words[sq_array + slot] = np.uint32(slot)
            tail += 1
            next_one += 1
            in_flight += 1
            unsubmitted += 1
        _fence()
        words[sq_tail] = np.uint32(tail & 0xFFFFFFFF)
        _fence()
        # All that is left is waited for in one sleep; while there is more to submit, half of it.
        wanted = in_flight if next_one == number else max(1, in_flight // 2)
        taken = _syscall(_ENTER, ring, unsubmitted, wanted, 1, 0, 0)
        if taken < 0:
            error = _int_at(_errno_place())
            if error != 4 and error != 11 and error != 16:  # interrupted, or the kernel is short of something for now
                return int(error)
        else:
            unsubmitted -= taken
        _fence()
        head, end = np.int64(words[cq_head]), np.int64(words[cq_tail])
        while head != end:
            at = cq_entries + 4 * (head & np.int64(words[cq_mask]))
            results[np.int64(words[at])] = np.int64(np.int32(words[at + 2]))
            head = (head + 1) & 0xFFFFFFFF
            in_flight -= 1
            done += 1
        _fence()
        words[cq_head] = np.uint32(head)
    return 0


@numba.njit(nogil=True, cache=True)
def _one_by_one(
    writing: bool,
    descriptor: int,
    offsets: Int64,
    lengths: Int64,
    addresses: Int64,
    results: Int64,
    begin: int,
    end: int,
) -> None:
    for k in range(begin, end):
        if writing:
            moved = _pwrite(np.int32(descriptor), addresses[k], lengths[k], offsets[k])
        else:
            moved = _pread(np.int32(descriptor), addresses[k], lengths[k], offsets[k])
        results[k] = moved if moved >= 0 else -np.int64(_int_at(_errno_place()))


@dataclass(frozen=True, slots=True)
class Way:
    """How the files of a folder are read and written."""

    name: str
    align: int = 1
    """Offsets and lengths are multiples of it."""

    @property
    def direct(self) -> bool:
        return self.name != "mapped"

    @property
    def in_flight(self) -> int:
        """Requests at once, at most."""
        return {"io_uring": IN_FLIGHT, "threads": NUM_THREADS}.get(self.name, 1)

    def __str__(self) -> str:
        return f"disk: {self.name}" + (f", {self.in_flight} in flight" if self.direct else "")


def probe(path: Path, num_bytes: int, memory_bytes: int | None, wanted: str | None = None) -> Way:
    """The best way for a folder in which `path` is a file: what memory holds is mapped, all else is read directly.

    Args:
        path: Some file of at least a page.
        num_bytes: What the files may take in all.
        memory_bytes: What the machine has left; None if nobody knows.
        wanted: One of WAYS, or what `FORESEE_DISK` says; the next one that works is taken.
    """
    wanted = wanted or os.environ.get(WAY_VARIABLE) or None
    if wanted is not None and wanted not in WAYS:
        raise ConfigError(f"{WAY_VARIABLE} is {wanted!r}; give one of {', '.join(WAYS)}, or nothing")
    if wanted is None and (memory_bytes is None or 2 * num_bytes <= memory_bytes):
        wanted = "mapped"
    align = 0 if wanted == "mapped" else _direct_align(path)
    if not align:
        return Way("mapped")
    if wanted != "threads":
        with suppress(OSError):
            Ring(IN_FLIGHT).close()
            return Way("io_uring", align)
    return Way("threads", align)


def _direct_align(path: Path) -> int:
    """The smallest piece that can be read directly from this file; 0: none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except (OSError, AttributeError):
        return 0
    try:
        buffer = mmap.mmap(-1, 2 * _SECTORS[-1])
        for align in _SECTORS:
            with suppress(OSError), memoryview(buffer) as view:
                os.preadv(descriptor, [view[:align]], align)
                return align
        return 0
    finally:
        os.close(descriptor)


def aligned(num_bytes: int) -> NDArray[np.uint8]:
    """Memory that begins at a page."""
    return np.frombuffer(mmap.mmap(-1, max(num_bytes, mmap.PAGESIZE)), np.uint8)


class Ring:
    """One io_uring, used by one thread at a time."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self.descriptor, settings = _set_up(depth, _COOPERATIVE)
        if self.descriptor < 0:
            self.descriptor, settings = _set_up(depth, 0)
        if self.descriptor < 0 or not settings[5] & _SINGLE_MAP:
            self.close()
            raise OSError(errno.ENOSYS, "io_uring is refused")
        sq, cq = settings[10:20], settings[20:30]
        num_bytes = max(int(sq[6]) + 4 * int(settings[0]), int(cq[5]) + 16 * int(settings[1]))
        shared = {"flags": mmap.MAP_SHARED, "prot": mmap.PROT_READ | mmap.PROT_WRITE}
        try:
            self._map = mmap.mmap(self.descriptor, num_bytes, **shared)
            self._entries_map = mmap.mmap(self.descriptor, 64 * int(settings[0]), offset=_SUBMISSIONS_AT, **shared)
        except (OSError, ValueError) as error:
            self.close()
            raise OSError(errno.ENOMEM, "io_uring cannot be mapped") from error
        self._words = np.frombuffer(self._map, np.uint32, num_bytes // 4)
        self._entries = np.frombuffer(self._entries_map, np.uint64).reshape(-1, 8)
        self._places = np.array([sq[1], sq[2], sq[6], cq[0], cq[1], cq[2], cq[5]], np.int64) // 4
        self._fixed: tuple[int, int] | None = None

    def register(self, buffer: NDArray[np.uint8]) -> None:
        """The kernel keeps the pages of this buffer at hand, if it may lock them in memory."""
        if self._fixed is not None:
            _libc().syscall(_REGISTER, self.descriptor, 1, None, 0)
            self._fixed = None
        vector = np.array([buffer.ctypes.data, len(buffer)], np.uint64)
        if _libc().syscall(_REGISTER, self.descriptor, 0, ctypes.c_void_p(vector.ctypes.data), 1) == 0:
            self._fixed = (buffer.ctypes.data, buffer.ctypes.data + len(buffer))

    def run(self, writing: bool, descriptor: int, offsets: Int64, lengths: Int64, addresses: Int64) -> Int64:
        """Bytes moved by each request, or its error below 0."""
        fixed = self._fixed is not None and self._fixed[0] <= int(addresses[0]) < self._fixed[1]
        operation = (_WRITE_FIXED if writing else _READ_FIXED) if fixed else (_WRITE if writing else _READ)
        results = np.empty(len(offsets), np.int64)
        error = _transfer(
            self.descriptor,
            self._depth,
            self._words,
            self._places,
            self._entries,
            operation,
            descriptor,
            offsets,
            lengths,
            addresses,
            results,
        )
        if error:
            raise OSError(error, os.strerror(error))
        return results

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1
        for name in ("_words", "_entries", "_map", "_entries_map"):  # mappings end with the last view of them
            self.__dict__.pop(name, None)


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _set_up(depth: int, flags: int) -> tuple[int, NDArray[np.uint32]]:
    settings = np.zeros(30, np.uint32)
    settings[2] = flags
    try:
        return int(_libc().syscall(_SETUP, depth, ctypes.c_void_p(settings.ctypes.data))), settings
    except (OSError, AttributeError):
        return -1, settings


class Transfers:
    """Moves pieces of files by one way; for one thread at a time."""

    def __init__(self, way: Way, buffer_bytes: int = BUFFER_BYTES) -> None:
        self.way = way
        self.moved = Moved()
        self._ring = Ring(IN_FLIGHT) if way.name == "io_uring" else None
        self._pool: ThreadPoolExecutor | None = None
        self.resize(buffer_bytes)

    def resize(self, buffer_bytes: int) -> None:
        """Another buffer, such as for rows of megabytes."""
        self.buffer = aligned(buffer_bytes)
        self._words: Float32 = self.buffer.view(np.float32)
        self._words.flags.writeable = False
        if self._ring is not None:
            self._ring.register(self.buffer)

    def read(self, descriptor: int, starts: Int64, piece_bytes: int, take: Take) -> None:
        """Hands every piece that begins at one of `starts` (multiples of 4) to `take`; bytes after the end are zero."""
        order, ascending = ascending_order(starts)
        align, number = self.way.align, len(starts)
        longest = max(PIECE_BYTES_MAX, piece_bytes + 2 * align)
        if longest > len(self.buffer):
            self.resize(longest)
        offsets, lengths, places, words = (np.empty(number, np.int64) for _ in range(4))
        begin, address = 0, self.buffer.ctypes.data
        while begin < number:
            requests, end = join_pieces(
                ascending, piece_bytes, align, begin, len(self.buffer), longest, offsets, lengths, places, words
            )
            some = slice(requests)
            self.move(False, descriptor, offsets[some], lengths[some], places[some] + address)
            take(self._words, words[begin:end], order[begin:end])
            begin = end

    def move(self, writing: bool, descriptor: int, offsets: Int64, lengths: Int64, addresses: Int64) -> None:
        """Reads or writes all of this; what is not in the file is read as zeros."""
        if not len(offsets):
            return
        begun, before, others = time.perf_counter(), time.thread_time(), 0.0
        if self._ring is not None:
            moved = self._ring.run(writing, descriptor, offsets, lengths, addresses)
        elif not self.way.direct:
            moved = np.empty(len(offsets), np.int64)
            _one_by_one(writing, descriptor, offsets, lengths, addresses, moved, 0, len(offsets))
        else:
            moved, others = self._run_threads(writing, descriptor, offsets, lengths, addresses)
        spent = time.thread_time() - before + others
        self.moved.add(int(lengths.sum()), len(offsets), self.way.in_flight, begun, spent)
        for k in np.flatnonzero(moved != lengths).tolist():
            _finish(writing, descriptor, int(offsets[k]), int(lengths[k]), int(addresses[k]), int(moved[k]))

    def _run_threads(self, writing: bool, descriptor: int, *pieces: Int64) -> tuple[Int64, float]:
        """Bytes moved by each request, and processor seconds of the threads."""
        number = len(pieces[0])
        results, some = np.empty(number, np.int64), -(-number // (NUM_THREADS * PIECES_PER_THREAD))

        def run(begin: int) -> float:
            before = time.thread_time()
            _one_by_one(writing, descriptor, *pieces, results, begin, min(begin + some, number))
            return time.thread_time() - before

        if self._pool is None:
            self._pool = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="foresee-disk")
        return results, sum(self._pool.map(run, range(0, number, some)))  # waits for all

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _finish(writing: bool, descriptor: int, offset: int, length: int, address: int, moved: int) -> None:
    """What a request left over, by plain calls; reads that meet the end of the file get zeros."""
    if moved < 0 and -moved not in (errno.EINTR, errno.EAGAIN):
        raise OSError(-moved, os.strerror(-moved))
    done = max(moved, 0)
    while done < length:
        # A direct transfer begins at a sector, so the last one may be moved again.
        done = done // _SECTORS[-1] * _SECTORS[-1]
        memory = (ctypes.c_char * (length - done)).from_address(address + done)
        if writing:
            step = os.pwritev(descriptor, [memory], offset + done)
        else:
            step = os.preadv(descriptor, [memory], offset + done)
            if step % _SECTORS[-1] or not step:
                ctypes.memset(address + done + step, 0, length - done - step)
                return
        done += step


GAP_BYTES = 4096
"""Pieces that are no further apart are read together: a request costs as much as some kilobytes."""


@numba.njit(nogil=True, cache=True)
def join_pieces(
    starts: Int64,
    piece_bytes: int,
    align: int,
    begin: int,
    capacity: int,
    joined_max: int,
    offsets: Int64,
    lengths: Int64,
    places: Int64,
    words: Int64,
) -> tuple[int, int]:
    """Requests for pieces begin.. of ascending starts, as many as the buffer takes; their number, the next piece.

    `places` is where each request goes in the buffer, `words` the word of it at which each piece begins.
    """
    number, used, k = 0, 0, begin
    low, high = 0, -1
    while k < len(starts):
        first = starts[k] // align * align
        last = (starts[k] + piece_bytes + align - 1) // align * align
        if number and first <= high + GAP_BYTES and last - low <= joined_max:
            more = max(last - high, 0)
            if used + more > capacity:
                break
            used += more
            high += more
        else:
            if used + last - first > capacity:
                break
            offsets[number], places[number] = first, used
            low, high = first, last
            used += last - first
            number += 1
        lengths[number - 1] = high - low
        words[k] = (places[number - 1] + starts[k] - low) // 4
        k += 1
    return number, k


@numba.njit(nogil=True, cache=True)
def _pack(starts: Int64, shift: int, keys: Int64) -> bool:
    """Word and place of each start in one number, if all of them fit."""
    highest = np.int64(1) << np.int64(62 - shift)
    for k in range(len(starts)):
        word = starts[k] >> 2
        if word >= highest:
            return False
        keys[k] = word << shift | k
    return True


@numba.njit(nogil=True, cache=True)
def _unpack(keys: Int64, shift: int, order: Int64) -> None:
    for k in range(len(keys)):
        order[k] = keys[k] & ((1 << shift) - 1)
        keys[k] = keys[k] >> shift << 2


def ascending_order(starts: Int64) -> tuple[Int64, Int64]:
    """The order of starts, and themselves in it. Sorting numbers takes a fifth of sorting their places."""
    keys, shift = np.empty(len(starts), np.int64), len(starts).bit_length()
    if not _pack(starts, shift, keys):
        order = np.argsort(starts, kind="stable")
        return order, starts[order]
    keys.sort()
    order = np.empty(len(starts), np.int64)
    _unpack(keys, shift, order)
    return order, keys
