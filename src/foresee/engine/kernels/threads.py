"""A few threads that share the work of one kernel.

In: a kernel that works on a range of positions, and the bounds of the ranges. Out: all ranges done. The kernels release
the GIL, so plain threads are enough, and unlike numba's own threading layer they are safe beside torch and forked
processes. Ranges never overlap and each position is worked on by one thread alone: the result is the same, bit for bit,
with any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import TracebackType

from foresee.errors import UsageError

POSITIONS_MIN = 2048
"""Fewer positions than this in a range are not worth waking a thread for."""


class Threads:
    """The calling thread and `num_threads - 1` others. Use it as a context manager, or close it."""

    def __init__(self, num_threads: int = 1) -> None:
        if num_threads < 1:
            raise UsageError(f"num_threads is {num_threads}, but a kernel needs at least one thread; give 1 or more")
        self.num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads - 1, "foresee-kernel") if num_threads > 1 else None

    def run(self, kernel: Callable[[int, int], object], bounds: Sequence[int]) -> None:
        """Calls `kernel(bounds[i], bounds[i + 1])` for all i, the first range in the calling thread."""
        ranges = list(pairwise(bounds))
        if self._pool is None or len(ranges) == 1:
            for begin, end in ranges:
                kernel(begin, end)
            return
        others = [self._pool.submit(kernel, begin, end) for begin, end in ranges[1:]]
        try:
            kernel(*ranges[0])
        finally:
            for other in others:
                other.result()

    def split(self, num_positions: int) -> list[int]:
        """Bounds of equal ranges of positions."""
        num_ranges = max(1, min(self.num_threads, num_positions // POSITIONS_MIN))
        return [num_positions * i // num_ranges for i in range(num_ranges + 1)]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> Threads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


ONE_THREAD = Threads(1)
"""Everything in the calling thread; holds no other, so it needs no closing."""
