"""The steps that are compared, held in memory, and the cache sizes that make sense for them.

In: a stream of batches. Out: its first steps as touches, how many rows they touch, and how many slots two neighbouring
steps need: below that some of the published protocols cannot work at all. Memory grows with the steps taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np

from foresee.data.batch import BatchStream
from foresee.engine.work import touches_of
from foresee.plan.record import Touches


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Slots of each trainer as a person says it: `50000` rows, `0.1` of the rows touched, `2x` what two steps need."""

    size: float
    in_two_steps: bool = False

    @classmethod
    def parse(cls, word: str) -> CacheSize:
        """Raises ValueError for anything else."""
        in_two_steps = word.endswith("x")
        size = float(word.removesuffix("x"))
        if not (1 if in_two_steps else 0) <= size < 1 << 40 or size == 0:
            raise ValueError(word)
        return cls(size, in_two_steps)

    @property
    def is_raised(self) -> bool:
        """Whether it is made as large as two steps need; a number of rows is taken at its word."""
        return self.in_two_steps or self.size <= 1

    def __str__(self) -> str:
        return f"{self.size:g}x" if self.in_two_steps else f"{self.size:g}" if self.size <= 1 else f"{self.size:.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The first steps of a stream, for so many trainers."""

    num_workers: int
    steps: Sequence[Touches]
    num_steps_all: int
    """Of the whole stream."""
    num_rows: int
    num_touched: int
    """Different rows of all steps together."""
    num_unique: float
    """Distinct rows of a step, in the mean."""
    two_steps_rows: int
    """Distinct rows of two neighbouring steps, at most: the smallest cache that works for every policy."""
    stream: BatchStream

    def profile(self, num_steps: int) -> Iterator[Touches]:
        """The first steps, also beyond those that are compared, for policies that look at some before they begin."""
        return map(touches_of, islice(self.stream.batches(), num_steps))

    def rows_of(self, cache: CacheSize) -> int:
        """Slots of each trainer."""
        if not cache.is_raised:
            return int(cache.size)
        whole = self.two_steps_rows if cache.in_two_steps else self.num_touched
        return max(self.two_steps_rows, int(cache.size * whole))


def take_sample(
    stream: BatchStream, num_workers: int, num_steps: int | None, advance: Callable[[], None] | None = None
) -> Sample:
    """Reads the first steps; all of them without a number."""
    steps, distinct = [], []
    wanted = stream.num_steps if num_steps is None else min(num_steps, stream.num_steps)
    for batch, _ in zip(stream.batches(), range(wanted), strict=False):
        steps.append(touches_of(batch))
        distinct.append(np.unique(batch.rows))
        if advance is not None:
            advance()
    pairs = [len(np.union1d(first, second)) for first, second in pairwise(distinct)] or [len(distinct[0])]
    return Sample(
        num_workers=num_workers,
        steps=steps,
        num_steps_all=stream.num_steps,
        num_rows=stream.num_rows,
        num_touched=len(np.unique(np.concatenate(distinct))),
        num_unique=float(np.mean([len(rows) for rows in distinct])),
        two_steps_rows=max(pairs),
        stream=stream,
    )
