"""One thread while the pages are in memory, many when they have to come from the disk.

In: a function that copies items begin..end of a request, without holding the interpreter. A copy out of a mapping waits
for the disk at each page that is not in memory, and one thread can wait for only one page at a time. Major page faults
of this thread say whether that happens, so a warm request never pays for threads. Answers never depend on it.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

NUM_THREADS = 16
PROBE_ROWS_MIN = 64
"""Rows copied before looking at the page faults for the first time; then twice as many, and so on."""
PROBE_ROWS_MAX = 4096
COLD_SHARE = 1 / 16
"""Share of rows that waited for the disk above which the rest of a request goes to the threads."""
PIECES_PER_THREAD = 4
PIECE_ROWS_MIN = 64


def _num_disk_waits() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


class ParallelCopy:
    """Runs copy functions over ranges, with threads if they are worth it."""

    def __init__(self, num_threads: int = NUM_THREADS) -> None:
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None

    def run(self, copy: Callable[[int, int], None], num_rows: int) -> None:
        """Calls copy(begin, end) on ranges that together are 0..num_rows, and returns when all are done."""
        begin, probe = 0, PROBE_ROWS_MIN
        while begin < num_rows:
            end = min(begin + probe, num_rows)
            before = _num_disk_waits()
            copy(begin, end)
            waits = _num_disk_waits() - before
            if self._num_threads > 1 and waits > COLD_SHARE * (end - begin):
                self.run_threads(copy, end, num_rows)
                return
            begin, probe = end, min(2 * probe, PROBE_ROWS_MAX)

    def run_threads(self, copy: Callable[[int, int], None], begin: int, end: int) -> None:
        """The same with all threads at once."""
        piece = max(PIECE_ROWS_MIN, -(-(end - begin) // (self._num_threads * PIECES_PER_THREAD)))
        if end - begin <= piece:
            copy(begin, end)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="foresee-disk")
        starts = range(begin, end, piece)
        # list() waits for all, and raises what the first failed one raised.
        list(self._pool.map(lambda start: copy(start, min(start + piece, end)), starts))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
