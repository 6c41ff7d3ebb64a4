"""The caches of one worker: one for each row group, and what all of them hold, in the rows of the log.

In: a cache for each width, and the groups of the plan's header. Out: a sequence of caches for whoever carries a plan
out, and rows and counts over all of them for whoever records it. Of one width there is one cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from foresee.arrays import Int64
from foresee.engine.cache import EMPTY, Cache
from foresee.engine.planned_step import PlannedStep
from foresee.plan.row_groups import RowGroup, numbering_of


class Caches:
    """In the order of the row groups."""

    def __init__(self, caches: Sequence[Cache], groups: tuple[RowGroup, ...] = ()) -> None:
        self._caches = tuple(caches)
        self._groups = groups

    def __iter__(self) -> Iterator[Cache]:
        return iter(self._caches)

    @property
    def num_occupied(self) -> int:
        """Slots that hold a row."""
        return sum(int(np.count_nonzero(cache.table.row != EMPTY)) for cache in self._caches)

    def rows_in(self, work: PlannedStep) -> Int64:
        """The distinct rows of a step that belong to this worker, as the log numbers them: copies are not known."""
        rows = []
        for group, (cache, part) in enumerate(zip(self._caches, work.groups, strict=True)):
            held = cache.table.row[part.record.unique]
            held = held[held != EMPTY]
            rows.append(numbering_of(self._groups).rows_of(group, held) if self._groups else held)
        return np.concatenate(rows)
