"""How many partitions, how many in the buffer, and in which order: from the size of a graph and of memory.

In: a `Need`. Out: an `Advice`, which says what to expect: bytes read an epoch, and memory by part. With more memory
never more is read. The order is the ring, so p has the form 2 m (c - 1) + 1, or the buffer holds more than half. All
partitions and buckets are at least a block of the disk, unless the graph is tiny. What cannot fit is refused with the
least memory that could. Pure: nothing is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foresee.arrays import Float64, Int64
from foresee.errors import PlanError
from foresee.graph.orders import order as random
from foresee.graph.orders import ring

PARTITIONS_MAX = 1024
"""Beyond it an epoch has thousands of states and little is gained."""
ID_BYTES = 8
"""Of a node in maps from ids to places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A graph and the memory that it may take."""

    num_nodes: int
    num_edges: int
    row_bytes: int
    """Of a node: its embedding with the state of the optimiser, and features that lie beside it."""
    memory_bytes: int
    block_bytes: int = 4096
    """The least that the disk reads well."""
    edge_bytes: int = 24
    """Of an edge in memory: source, relation and target."""
    edge_copies: int = 1
    """2 where neighbours are looked up among the edges of the buffer, by source and by target."""
    working_bytes: int = 64 << 20
    """For batches, gradients and weights."""
    table_reads_max: float = 0.0
    """Times the table that an epoch may read; what the fewest reads leave of it goes into turns, closer to random."""

    def __post_init__(self) -> None:
        for name in ("num_nodes", "row_bytes", "memory_bytes", "block_bytes"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} cannot be {getattr(self, name)}; give 1 or more")
        for name in ("num_edges", "edge_bytes", "edge_copies", "working_bytes"):
            if getattr(self, name) < 0:
                raise PlanError(f"{name} cannot be {getattr(self, name)}; give 0 or more")

    @property
    def table_bytes(self) -> int:
        return self.num_nodes * self.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to train with, and what that takes."""

    order: str
    num_partitions: int
    capacity: int
    turns: int = 1
    """How often every pair of partitions meets in an epoch."""
    reads: int
    """Partitions read in an epoch that begins with the buffer of the one before."""
    bytes_read: int
    memory: dict[str, int]
    """Bytes by part."""
    need: Need

    @property
    def in_memory(self) -> bool:
        return self.capacity == self.num_partitions

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {_size(number)}" for name, number in self.memory.items() if number)
        memory = f"memory {_size(self.memory_bytes)} of {_size(self.need.memory_bytes)}: {parts}"
        if self.in_memory:
            return f"in memory, order {self.order}: nothing is read in an epoch\n{memory}"
        turns = f" in {self.turns} turns" if self.turns > 1 else ""
        return (
            f"{self.num_partitions} partitions, {self.capacity} in the buffer, order {self.order}{turns}: "
            f"an epoch reads {self.reads} partitions, {_size(self.bytes_read)}, "
            f"{self.bytes_read / self.need.table_bytes:.2f} times the table\n{memory}"
        )


def tune(need: Need) -> Advice:
    """The fewest bytes read an epoch that fit into memory; of equal ones, the fewest partitions."""
    whole = _memory(need, 1, 1, staged=0)
    if sum(whole.values()) <= need.memory_bytes:
        return Advice(
            order=random.RANDOM.name, num_partitions=1, capacity=1, reads=0, bytes_read=0, memory=whole, need=need
        )
    partitions, capacities, reads = _candidates(_partitions_max(need))
    taken = _total(need, partitions, capacities)
    fits = np.flatnonzero(taken <= need.memory_bytes)
    if not len(fits):
        raise PlanError(_nothing_fits(need, int(min(taken.min(), sum(whole.values())))))
    bytes_read = reads * _partition_bytes(need, partitions)
    best = fits[np.lexsort((partitions[fits], bytes_read[fits]))[0]]
    p, c = int(partitions[best]), int(capacities[best])
    turns = max(1, int(need.table_reads_max * need.table_bytes / bytes_read[best]))
    return Advice(
        order=ring.RING.name,
        num_partitions=p,
        capacity=c,
        turns=turns,
        reads=turns * int(reads[best]),
        bytes_read=turns * int(bytes_read[best]),
        memory=_memory(need, p, c),
        need=need,
    )


def _candidates(partitions_max: int) -> tuple[Int64, Int64, Int64]:
    """All p and c of the ring's form, or with more than half in the buffer, and the partitions that each reads."""
    p, c = np.meshgrid(np.arange(3, partitions_max + 1), np.arange(2, partitions_max), indexing="ij")
    multiple, rest = np.divmod(p - 1, 2 * (c - 1))
    more_than_half = (2 * c > p) & (c < p)
    kept = more_than_half | ((rest == 0) & (multiple > 0))
    reads = np.where(more_than_half, 2 * (p - c), multiple * p - 1)
    return p[kept], c[kept], reads[kept]


def _partitions_max(need: Need) -> int:
    """Partitions and buckets no smaller than a block; at least 3 partitions, the smallest ring."""
    by_rows = need.table_bytes // need.block_bytes
    by_edges = int((need.num_edges * need.edge_bytes / need.block_bytes) ** 0.5) if need.num_edges else by_rows
    return max(3, min(PARTITIONS_MAX, need.num_nodes, by_rows, by_edges))


def _partition_bytes(need: Need, partitions: Int64) -> Int64:
    return -(-need.num_nodes // partitions) * need.row_bytes


def _total(need: Need, partitions: Int64, capacities: Int64) -> Float64:
    """As `_memory`, of many at once."""
    edges = np.ceil(need.num_edges * (capacities / partitions) ** 2) * need.edge_bytes * need.edge_copies
    fixed = need.num_nodes * ID_BYTES + need.working_bytes
    return np.asarray((capacities + 2) * _partition_bytes(need, partitions) + edges + fixed, np.float64)


def _memory(need: Need, p: int, c: int, staged: int = 2) -> dict[str, int]:
    """A state trains no more edges than those between partitions of the buffer; one partition comes while one goes."""
    partition_bytes = int(_partition_bytes(need, np.array(p)))
    edges = int(np.ceil(need.num_edges * (c / p) ** 2)) * need.edge_bytes * need.edge_copies
    return {
        "buffer": c * partition_bytes,
        "staging": staged * partition_bytes,
        "edges": edges,
        "ids": need.num_nodes * ID_BYTES,
        "working": need.working_bytes,
    }


def _nothing_fits(need: Need, least_bytes: int) -> str:
    return (
        f"{need.num_nodes:,} nodes of {need.row_bytes:,} bytes and {need.num_edges:,} edges do not fit into "
        f"{_size(need.memory_bytes)}, however they are partitioned; give at least {_size(least_bytes, up=True)} of "
        "memory, or narrower rows"
    )


def _size(num_bytes: int, up: bool = False) -> str:
    """With one place behind the point; rounded up where less would not do."""
    unit = max(u for u in ((1, "B"), (10**3, "kB"), (10**6, "MB"), (10**9, "GB")) if u[0] <= max(num_bytes, 1))
    tenths = -(-10 * num_bytes // unit[0]) if up else round(10 * num_bytes / unit[0])
    return f"{tenths / 10:,.1f} {unit[1]}"
