"""What a plan moves. One counter for every planner, so that their numbers can stand side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from foresee.plan.record import Counters, Record


class Counting:
    """Counts records as they pass."""

    def __init__(self) -> None:
        self._counters = Counters()
        self._in_use: dict[int, int] = {}

    @property
    def counters(self) -> Counters:
        return self._counters

    def add(self, record: Record) -> None:
        old = self._counters
        in_use = self._in_use.get(record.worker, 0) + len(record.fetch)
        self._in_use[record.worker] = in_use - len(record.evict)
        critical = int(np.count_nonzero(record.recv.deadline == record.step + 1))
        self._counters = replace(
            old,
            num_steps=old.num_steps + (record.worker == 0),
            num_lookups=old.num_lookups + len(record.inverse),
            num_unique=old.num_unique + len(record.unique),
            num_fetched=old.num_fetched + len(record.fetch),
            num_evicted=old.num_evicted + len(record.evict),
            num_received=old.num_received + len(record.recv),
            num_received_critical=old.num_received_critical + critical,
            peak_slots=max(old.peak_slots, in_use),
        )

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, counted on the way."""
        for record in records:
            self.add(record)
            yield record


def count(records: Iterable[Record]) -> Counters:
    """The counters of a whole plan."""
    counting = Counting()
    for record in records:
        counting.add(record)
    return counting.counters
