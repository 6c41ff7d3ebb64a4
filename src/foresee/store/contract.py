"""The contract of a store: where rows live when no worker holds them.

A row is `width` float32 values, `state_width` float32 of optimiser state, and a version (see plan.record). Reads of a
row nobody has written give its initial value, which follows from (seed, row) alone, version 0 and a zero state. Writes
assign, never add, and a write with a lower version than the stored one is refused row by row (the stored row stays):
so a retry after a lost reply is harmless. `foresee.testing.StoreSuite` is this contract as executable tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Table:
    """A named range of rows."""

    name: str
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What rows a store holds and how a row looks. Two stores with equal layouts start with equal bytes."""

    tables: tuple[Table, ...]
    width: int
    """float32 values of a row (embedding columns plus extra columns such as first-order weights)."""
    state_width: int
    """float32 of optimiser state of a row."""
    optimizer: str
    """Name of the optimiser the state belongs to."""
    seed: int = 0
    init_scale: float = 0.01
    """Initial values are uniform in [-init_scale, init_scale)."""

    @property
    def num_rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in a store or on a wire: values, state, version."""
        return 4 * (self.width + self.state_width + 1)

    def offset_of(self, name: str) -> int:
        """First global row id of a table."""
        offset = 0
        for table in self.tables:
            if table.name == name:
                return offset
            offset += table.num_rows
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Rows:
    """Values, state and versions of some rows, as parallel arrays that the caller owns."""

    values: Float32  # [rows, width]
    state: Float32  # [rows, state_width]
    versions: Int32  # [rows]

    @classmethod
    def empty(cls, num_rows: int, layout: Layout) -> Rows:
        return cls(
            np.empty((num_rows, layout.width), np.float32),
            np.empty((num_rows, layout.state_width), np.float32),
            np.empty(num_rows, np.int32),
        )

    def __len__(self) -> int:
        return len(self.versions)

    def first(self, num_rows: int) -> Rows:
        """A view of the first rows: staging buffers are allocated once and used in part."""
        return self.part(slice(num_rows))

    def part(self, which: slice) -> Rows:
        """A view of some rows."""
        return Rows(self.values[which], self.state[which], self.versions[which])


class Store(Protocol):
    """Rows by global id. One writer thread and one reader thread may use it at once, on disjoint rows."""

    @property
    def layout(self) -> Layout: ...

    @property
    def committed_step(self) -> int:
        """Number of steps contained in the last commit; 0 for a fresh store."""
        ...

    def read(self, rows: Int64, out: Rows) -> None:
        """Fills `out` with the rows, in the order asked. The ids must be distinct."""
        ...

    def write(self, rows: Int64, source: Rows) -> None:
        """Assigns the rows. On return a read of them sees what was written. The ids must be distinct."""
        ...

    def commit(self, step: int) -> None:
        """Makes everything written so far durable as the state after `step` steps."""
        ...

    def close(self) -> None:
        """Releases files and memory; what was written since the last commit is given up. May be called twice."""
        ...
