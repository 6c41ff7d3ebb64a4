"""The slots of a simulated trainer: the engine's own bookkeeping of slots, and rows of a few whole numbers.

What `engine.cache.SlotCache` does with kernels is done here with plain numpy, as far as the conversation of workers and
a flush ask for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from foresee.engine.cache import SlotTable
from foresee.plan.record import Evict, Fetch, Record
from foresee.store.contract import Int32, Int64, Layout, Rows
from foresee.testing.simulation.case import step_rows


class SimulatedCache:
    """As much of `engine.cache.Cache` as is needed without models."""

    def __init__(self, layout: Layout, capacity_rows: int) -> None:
        self.table = SlotTable(capacity_rows)
        self.rows = Rows(
            np.zeros((capacity_rows, layout.width), np.float32),
            np.zeros((capacity_rows, layout.state_width), np.float32),
            np.zeros(capacity_rows, np.int32),
        )

    def fill(self, fetch: Fetch, staging: Rows) -> None:
        self.put(fetch.slot, staging)
        self.table.hold(fetch, staging.versions)

    def apply(self, slots: Int32, sums: Any, *, version: int) -> None:
        if len(slots):
            step_rows(self.rows.values, self.rows.state, self.rows.versions, slots, sums.numpy(), version)

    def copy(self, slots: Int32) -> Rows:
        rows = self.rows
        return Rows(rows.values[slots], rows.state[slots], rows.versions[slots])

    def put(self, slots: Int32, arrived: Rows) -> None:
        if len(slots):
            self.rows.values[slots] = arrived.values
            self.rows.state[slots] = arrived.state
            self.rows.versions[slots] = arrived.versions

    def take(self, evict: Evict) -> Rows:
        out = self.copy(evict.slot)
        self.table.free(evict.slot)
        return out

    def changed(self) -> tuple[Int64, Rows]:
        slots = self.table.changed(self.rows.versions)
        return self.table.row[slots], self.copy(slots)


@dataclass(frozen=True, slots=True)
class SimulatedGradients:
    """The gradients of a step, as the conversation asks for them."""

    record: Record
    of_unique: Tensor
    cache: SimulatedCache

    def sums(self, positions: Int32) -> Tensor:
        return self.of_unique[positions]

    def apply(self, positions: Int32) -> None:
        self.cache.apply(self.record.unique[positions], self.of_unique[positions], version=self.record.step + 1)
