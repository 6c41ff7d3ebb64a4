"""What surrounds every kernel: its arguments are checked before it touches memory, and threads share its work.

The kernels index without bounds checks, so a slot beyond the cache would damage other memory silently; a wrong argument
is a `UsageError` of one sentence, for microseconds. `Threads`: the kernels release the GIL, so plain threads do, and
unlike numba's own threading layer they are safe beside torch and forked processes. Ranges never overlap and each
position is worked on by one thread alone: the result is the same, bit for bit, with any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.errors import UsageError
from foresee.store.contract import Rows


def check_slots(name: str, slots: NDArray[np.int32], limit: int) -> None:
    """Indices are int32, in one piece, and in [0, limit)."""
    if slots.dtype != np.int32 or slots.ndim != 1 or not slots.flags.c_contiguous:
        raise UsageError(f"{name} is {_describe(slots)}; give a contiguous int32 array of one dimension")
    if len(slots) and int(slots.view(np.uint32).max()) >= limit:  # as uint32 a negative index is a huge one
        raise UsageError(
            f"{name} holds indices from {slots.min()} to {slots.max()}, but only 0 to {limit - 1} exist; "
            "run the plan with the capacity and the batch it was made for"
        )


def check_matrix(name: str, matrix: NDArray[np.float32], num_rows: int, width: int) -> None:
    """A float32 matrix, in one piece, of exactly this shape."""
    if matrix.dtype != np.float32 or matrix.shape != (num_rows, width) or not matrix.flags.c_contiguous:
        raise UsageError(f"{name} is {_describe(matrix)}; give a contiguous float32 array of shape {(num_rows, width)}")


def check_rows(name: str, rows: Rows, *, width: int, state_width: int, num_rows_min: int = 0) -> None:
    """Values, state and versions belong together and have these widths."""
    num_rows = len(rows.versions)
    check_matrix(f"{name}.values", rows.values, num_rows, width)
    check_matrix(f"{name}.state", rows.state, num_rows, state_width)
    if rows.versions.dtype != np.int32 or not rows.versions.flags.c_contiguous:
        raise UsageError(f"{name}.versions is {_describe(rows.versions)}; give a contiguous int32 array")
    if num_rows < num_rows_min:
        raise UsageError(f"{name} has room for {num_rows} rows, but {num_rows_min} are needed; make it larger")


def check_bags(bag_offsets: NDArray[np.int32], mean: NDArray[np.bool_], num_lookups: int) -> None:
    """Bags follow one another and cover the lookups exactly; there is one mean flag for each feature."""
    if bag_offsets.dtype != np.int32 or not bag_offsets.flags.c_contiguous or len(bag_offsets) == 0:
        raise UsageError(f"bag_offsets is {_describe(bag_offsets)}; give a contiguous int32 array of bags + 1 entries")
    if bag_offsets[0] != 0 or bag_offsets[-1] != num_lookups or bool((bag_offsets[1:] < bag_offsets[:-1]).any()):
        raise UsageError(
            f"bag_offsets run from {bag_offsets[0]} to {bag_offsets[-1]} and must rise from 0 to the {num_lookups} "
            "lookups; give the offsets of the same batch"
        )
    if mean.dtype != np.bool_ or len(mean) == 0 or (len(bag_offsets) - 1) % len(mean):
        raise UsageError(
            f"mean is {_describe(mean)} for {len(bag_offsets) - 1} bags; give one bool for each feature of a sample"
        )


def _describe(array: NDArray[Any]) -> str:
    contiguous = "contiguous" if array.flags.c_contiguous else "strided"
    return f"a {contiguous} {array.dtype} array of shape {array.shape}"


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
