"""Which server has which row, and the copying that follows from it.

Row r is on shard r modulo the number of shards, at place r // number. Hot ids come first in every table, so
neighbouring ids on different servers spread the load; contiguous ranges would put the hottest rows on one machine.
`Split` orders a request by shard; the kernels carry rows between the caller's order and that one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from foresee.arrays import Float32, Int32, Int64
from foresee.store.contract import Rows
from foresee.store.kernels import read_only
from foresee.store.layout import Layout


def num_local_rows(layout: Layout, shard: int, num_shards: int) -> int:
    """Rows on one shard."""
    return (layout.num_rows - shard + num_shards - 1) // num_shards


@dataclass(frozen=True, slots=True)
class Split:
    """A request ordered by shard; inside a shard the caller's order stays."""

    positions: Int64
    """Where each row of the ordered request stands in the caller's."""
    offsets: Int64
    """Shard s has positions[offsets[s]:offsets[s + 1]]."""

    def of(self, shard: int) -> Int64:
        return self.positions[self.offsets[shard] : self.offsets[shard + 1]]


def split(rows: Int64, num_shards: int) -> Split:
    positions, offsets = np.empty(len(rows), np.int64), np.zeros(num_shards + 1, np.int64)
    _split(rows, num_shards, positions, offsets)
    return Split(positions, offsets)


@numba.njit(nogil=True, cache=True)
def _split(rows: Int64, num_shards: int, positions: Int64, offsets: Int64) -> None:
    for row in rows:
        offsets[row % num_shards + 1] += 1
    for shard in range(num_shards):
        offsets[shard + 1] += offsets[shard]
    following = offsets.copy()
    for k in range(len(rows)):
        shard = rows[k] % num_shards
        positions[following[shard]] = k
        following[shard] += 1


def scatter(chunk: Rows, positions: Int64, out: Rows) -> None:
    """out[positions[k]] = chunk[k]."""
    # Read-only whether they came over a wire or not, so that one compiled kernel serves all.
    sources = (read_only(chunk.values), read_only(chunk.state), read_only(chunk.versions))
    _scatter(*sources, positions, out.values, out.state, out.versions)


@numba.njit(nogil=True, cache=True)
def _scatter(
    from_values: Float32,
    from_state: Float32,
    from_versions: Int32,
    positions: Int64,
    values: Float32,
    state: Float32,
    versions: Int32,
) -> None:
    for k in range(len(positions)):
        position = positions[k]
        for i in range(values.shape[1]):
            values[position, i] = from_values[k, i]
        for i in range(state.shape[1]):
            state[position, i] = from_state[k, i]
        versions[position] = from_versions[k]
