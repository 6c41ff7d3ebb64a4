"""When each row is used next, far beyond the planner's window: found by a reading of the batches before the planner's.

In: a stream that can be read twice, and the header of a plan. Out: for the distinct rows of each step, in order of
first access, the next step that uses each, or NOT_KNOWN where none does in what was read.

Steps are cut into segments, of FIRST_STEPS at first and then of twice as many each time up to `uses_ahead_steps`: a run
begins soon, and soon sees far. What is known of a step reaches to the end of the segment after its own. The ids of a
segment lie in a temporary file by bucket (row modulo NUM_BUCKETS), 4 bytes for each distinct row of each step. Going
backwards through a bucket, one array with a place for each of its rows tells every access the next one, which takes the
place of the id. Whoever asks for the uses of a step gives its rows, and their buckets say where to read on.

Everything is paced by the steps that are asked for: while a segment is used, the one after the next is read, in its
first half, and the next is resolved, in the second. So nothing depends on time, no thread is needed, and memory is
bounded: NUM_BUCKETS chunks and some counts for each of three segments, and a bucket at a time.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType

import numpy as np
from numba import njit

from foresee.arrays import Int32, Int64
from foresee.data.batch import Batch, BatchStream
from foresee.errors import PlanError
from foresee.plan import planned_from
from foresee.plan.record import NOT_KNOWN, Accesses, Header
from foresee.plan.row_table import RowTable

NUM_BUCKETS = 256
CHUNK_ROWS = 4096
CHUNK_BYTES = 4 * CHUNK_ROWS
FIRST_STEPS = 128
USES_AHEAD_STEPS = 16_384
"""How far a run looks whose store makes something of it, unless it is told."""
SEGMENTS = 3
"""In use, next, and being read."""
NOBODY = -1

_logger = logging.getLogger("foresee.plan")


@njit(nogil=True, cache=True)
def _scatter(rows: Int64, begin: int, chunks: Int32, filled: Int64, counts: Int32) -> tuple[int, int]:
    """Puts rows into the open chunk of their bucket; returns where it stopped, and a bucket that is full, or NOBODY."""
    num_buckets = len(chunks)
    for k in range(begin, len(rows)):
        bucket = rows[k] % num_buckets
        if filled[bucket] == chunks.shape[1]:
            return k, int(bucket)
        chunks[bucket, filled[bucket]] = rows[k] // num_buckets
        filled[bucket] += 1
        counts[bucket] += 1
    return len(rows), NOBODY


@njit(nogil=True, cache=True)
def _gather(rows: Int64, begin: int, chunks: Int32, taken: Int64, out: Int32) -> tuple[int, int]:
    """The other way round: takes the uses of rows from the chunk of their bucket, until one is used up."""
    num_buckets = len(chunks)
    for k in range(begin, len(rows)):
        bucket = rows[k] % num_buckets
        if taken[bucket] == chunks.shape[1]:
            return k, int(bucket)
        out[k] = chunks[bucket, taken[bucket]]
        taken[bucket] += 1
    return len(rows), NOBODY


@njit(nogil=True, cache=True)
def _resolve(accesses: Int32, counts: Int32, first: int, latest: Int32) -> None:
    """Puts the next use in the place of each access of a bucket, from the last on.

    counts: accesses of each step. latest: the use of each row that comes after, and then the first one here.
    """
    place = len(accesses)
    for step in range(len(counts) - 1, -1, -1):
        for _ in range(counts[step]):
            place -= 1
            row = accesses[place]
            accesses[place] = latest[row]
            latest[row] = first + step


def file_bytes(header: Header, num_distinct: int) -> int:
    """What the temporary files take, at most, if every step has so many distinct rows or partitions."""
    steps = min(header.options.uses_ahead_steps or 0, header.num_steps)
    return min(SEGMENTS * steps, header.num_steps) * num_distinct * 4 + SEGMENTS * NUM_BUCKETS * CHUNK_BYTES


def memory_bytes(header: Header, num_distinct: int) -> int:
    """What it takes of memory: an open chunk of each bucket, counts by step and bucket, a bucket at a time."""
    steps = min(header.options.uses_ahead_steps or 0, header.num_steps)
    of_segment = NUM_BUCKETS * (CHUNK_BYTES + 4 * steps)
    of_bucket = 2 * file_bytes(header, num_distinct) // NUM_BUCKETS + 4 * header.num_rows // NUM_BUCKETS
    return SEGMENTS * of_segment + of_bucket if steps else 0


class _Segment:
    """The accesses of some steps, and later their next uses, in a file that nobody else sees."""

    def __init__(self, first: int, end: int, folder: Path | None) -> None:
        self.first, self.end = first, end
        self.read = first
        """The next step to be read into it."""
        self.num_resolved = 0
        """Buckets whose accesses have become next uses."""
        self.num_chunks = 0
        self._file = _File(folder)
        self._counts = np.zeros((end - first, NUM_BUCKETS), np.int32)
        self._open = np.empty((NUM_BUCKETS, CHUNK_ROWS), np.int32)
        self._place = np.zeros(NUM_BUCKETS, np.int64)
        """In the open chunk of each bucket: its end while it is filled, then how much of it was taken."""
        self._chunks: list[deque[int]] = [deque() for _ in range(NUM_BUCKETS)]
        """Of each bucket, in order, where they lie; those still to be taken."""

    def add(self, rows: Int64) -> None:
        """The distinct rows of the next step."""
        place, counts = 0, self._counts[self.read - self.first]
        while place < len(rows):
            place, full = _scatter(rows, place, self._open, self._place, counts)
            if full != NOBODY:
                self._write_out(full)
        self.read += 1
        if self.read == self.end:
            for bucket in np.flatnonzero(self._place).tolist():
                self._write_out(bucket)
            self._place[:] = CHUNK_ROWS  # nothing to be taken yet

    def _write_out(self, bucket: int) -> None:
        self._file.write(self.num_chunks, self._open[bucket])
        self._chunks[bucket].append(self.num_chunks)
        self.num_chunks += 1
        self._place[bucket] = 0

    def resolve(self, after: _Segment | None, num_rows: int) -> None:
        """One bucket more, given the accesses of the segment after this one. `num_rows`: rows of a bucket at most."""
        bucket = self.num_resolved
        latest = np.full(num_rows, NOT_KNOWN, np.int32)
        if after is not None:
            after._go_back_through(bucket, latest)
        accesses = self._go_back_through(bucket, latest)
        for number, chunk in enumerate(self._chunks[bucket]):
            self._file.write(chunk, accesses[number * CHUNK_ROWS : (number + 1) * CHUNK_ROWS])
        self.num_resolved += 1

    def _go_back_through(self, bucket: int, latest: Int32) -> Int32:
        counts = np.ascontiguousarray(self._counts[:, bucket])
        accesses = np.empty(len(self._chunks[bucket]) * CHUNK_ROWS, np.int32)
        for number, chunk in enumerate(self._chunks[bucket]):
            self._file.read(chunk, accesses[number * CHUNK_ROWS : (number + 1) * CHUNK_ROWS])
        _resolve(accesses[: int(counts.sum())], counts, self.first, latest)
        return accesses

    def uses(self, rows: Int64) -> Int32:
        """The next uses of the distinct rows of a step; steps are asked for in order."""
        out = np.empty(len(rows), np.int32)
        place = 0
        while place < len(rows):
            place, empty = _gather(rows, place, self._open, self._place, out)
            if empty != NOBODY:
                self._file.read(self._chunks[empty].popleft(), self._open[empty])
                self._place[empty] = 0
        return out

    def close(self) -> None:
        self._file.close()


class _File:
    """Chunks by number, in a temporary file without a name."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed with the segment

    def write(self, chunk: int, content: Int32) -> None:
        data, place = content.data.cast("B"), chunk * CHUNK_BYTES
        try:
            while len(data):
                num_written = os.pwrite(self._file.fileno(), data, place)
                data, place = data[num_written:], place + num_written
        except OSError as error:
            raise PlanError(
                f"{self._folder}: the next uses of rows cannot be kept there ({error.strerror}); free some space, or "
                "say `cache: {uses_ahead_steps: 0}` in the run file"
            ) from None

    def read(self, chunk: int, out: Int32) -> None:
        os.preadv(self._file.fileno(), [out.data.cast("B")], chunk * CHUNK_BYTES)

    def close(self) -> None:
        self._file.close()


class UsesAhead:
    """Next uses of a plan's rows, or of its partitions. Use it as a context manager: leaving it removes its files."""

    def __init__(self, stream: BatchStream, header: Header, folder: Path | None = None) -> None:
        """`folder` is where the temporary files go; None: where the system has them."""
        options = header.options
        assert options.uses_ahead_steps, "nothing to look for"
        self._size, self._steps_max = options.partition_rows, options.uses_ahead_steps
        self._numbering = RowTable(num_rows=header.num_rows, fresh_version=0)
        self._rows_of_bucket = header.num_rows // (self._size * NUM_BUCKETS) + 1
        self._end = header.first_step + header.num_steps
        self._begun = planned_from(header)
        self._batches: Iterator[Batch] = islice(stream.batches(self._begun), self._end - self._begun)
        self._segments: deque[_Segment] = deque()
        """The one in use, the next, and the one that is read."""
        self._folder = folder
        self.seconds, self.num_bytes = 0.0, 0
        """What it took so far."""

    def __enter__(self) -> UsesAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._segments:
            self._segments.popleft().close()

    def of(self, step: int, rows: Int64) -> Int32:
        """When the distinct rows of a step, in order of first access, are used next. Steps come one after another."""
        begun = time.perf_counter()
        self._go_on(step)
        uses = self._segments[0].uses(rows)
        self.seconds += time.perf_counter() - begun
        return uses

    def _go_on(self, step: int) -> None:
        if not self._segments:
            while len(self._segments) < 2 and self._append():
                self._read(self._segments[-1], share=1.0)
            self._resolve(self._segments[0], share=1.0)
            self._append()
        if step == self._segments[0].end:
            self._segments.popleft().close()
            self._append()
        current, *later = self._segments
        share = (step + 1 - current.first) / (current.end - current.first)
        if len(later) > 1:
            self._read(later[1], share=2 * share)
        if later:
            self._resolve(later[0], share=2 * share - 1)

    def _append(self) -> bool:
        """Begins another segment, if there are steps left."""
        first = self._segments[-1].end if self._segments else self._begun
        if first == self._end:
            return False
        length = min(max(first - self._begun, FIRST_STEPS), self._steps_max)
        self._segments.append(_Segment(first, min(first + length, self._end), self._folder))
        return True

    def _read(self, segment: _Segment, share: float) -> None:
        """Reads steps into a segment until this share of it is there."""
        until = min(segment.end, segment.first + math.ceil(share * (segment.end - segment.first)))
        while segment.read < until:
            batch = next(self._batches)
            rows = batch.rows // self._size if self._size > 1 else batch.rows
            segment.add(self._numbering.number(rows, batch.step)[0])

    def _resolve(self, segment: _Segment, share: float) -> None:
        """Resolves buckets of a segment until this share of them is."""
        after = next((it for it in self._segments if it.first == segment.end), None)
        until = min(NUM_BUCKETS, math.ceil(share * NUM_BUCKETS))
        while segment.num_resolved < until:
            segment.resolve(after, self._rows_of_bucket)
            if segment.num_resolved == NUM_BUCKETS:
                num_bytes = segment.num_chunks * CHUNK_BYTES
                self.num_bytes += num_bytes
                _logger.info(
                    "next uses of steps %d to %d: %.1f MB, %.1f s so far", segment.first, segment.end - 1,
                    num_bytes / 1e6, self.seconds,
                )  # fmt: skip


@contextmanager
def looking_ahead(
    stream: BatchStream, header: Header, scratch: Path | None = None
) -> Iterator[Callable[[int, Accesses], Accesses]]:
    """Adds to the accesses of a step when its rows are used next, if the header wants that known."""
    if not header.options.uses_ahead_steps:
        yield lambda step, accesses: accesses
        return
    with UsesAhead(stream, header, scratch) as ahead:
        yield lambda step, accesses: replace(accesses, next_uses=partial(ahead.of, step))
