"""Sampled neighbourhoods, delta-encoded: at each hop only nodes that are new in the batch draw neighbours.

What node v draws in a step follows from (seed, step, v) alone, so any process can draw it again, and steps can be
sampled far ahead of training. All neighbours where there are no more than the fanout, else a uniform subset without
replacement. One thread; instead of hash sets one 64-bit mark a node says whether it is in this batch, and where.

    nodes              [delta_k | ... | delta_1 | targets]: each once, the outermost first
    node_offsets       [hops + 2]: where each of these parts begins, and the end
    neighbours         the samples of all nodes but the outermost, in the order of `nodes`
    neighbour_offsets  where the sample of each such node begins
    rows               for each neighbour, its place in `nodes`

A layer of a network reduces `values[rows]` over the segments of `neighbour_offsets`, takes `values[first:]` as the
nodes' own, and goes on with `sample.inner()`, which has the outermost part no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numba import njit

from foresee.arrays import Bool, Int32, Int64
from foresee.errors import ConfigError, UsageError
from foresee.graph.neighbors import Adjacency, Neighbours
from foresee.io.hashing import key_of
from foresee.prefetch import prefetch_read, prefetch_write

Direction = Literal["incoming", "outgoing", "both"]
ALL = -1
"""As a fanout: every neighbour."""
AHEAD = 16
"""Reads from all over memory are begun so many elements before they are needed."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The neighbourhood of some targets. The module says what the arrays are."""

    nodes: Int64  # [nodes]
    node_offsets: Int64  # [hops + 2]
    neighbours: Int64  # [edges]
    neighbour_offsets: Int64  # [nodes - outermost]
    rows: Int64  # [edges]
    relations: Int32 | None  # [edges], or None if edges have none
    outgoing: Bool | None  # [edges]: the node points to its neighbour; None: only one direction was sampled

    @property
    def num_hops(self) -> int:
        return len(self.node_offsets) - 2

    @property
    def first(self) -> int:
        """Where the nodes begin that have neighbours here."""
        return int(self.node_offsets[1])

    def inner(self) -> Sample:
        """What is left when the outermost nodes have been used."""
        dropped, used = self.first, self.node_offsets[2] - self.node_offsets[1]
        all_used = used == len(self.neighbour_offsets)
        cut = len(self.neighbours) if all_used else int(self.neighbour_offsets[used])
        return Sample(
            nodes=self.nodes[dropped:],
            node_offsets=self.node_offsets[1:] - dropped,
            neighbours=self.neighbours[cut:],
            neighbour_offsets=self.neighbour_offsets[used:] - cut,
            rows=self.rows[cut:] - dropped,
            relations=None if self.relations is None else self.relations[cut:],
            outgoing=None if self.outgoing is None else self.outgoing[cut:],
        )


class Sampler:
    """Draws neighbourhoods of several hops.

    Args:
        neighbours: Of the whole graph, or of those partitions that a buffer holds (`Neighbours.inside`).
        fanouts: How many neighbours a node draws, for each hop, that next to the targets first; `ALL`: every one. In
            both directions, so many of each.
        direction: Neighbours that point to a node, that it points to, or both.
        seed: Of all draws.
    """

    def __init__(
        self, neighbours: Neighbours, fanouts: Sequence[int], *, direction: Direction = "incoming", seed: int = 0
    ) -> None:
        if direction not in get_args(Direction):
            raise ConfigError(f"the direction {direction!r} is not known; use one of {', '.join(get_args(Direction))}")
        if not fanouts or any(fanout < 1 and fanout != ALL for fanout in fanouts):
            raise ConfigError(f"the fanouts {list(fanouts)} cannot be used; give 1 or more, or all, for each hop")
        sides = {"incoming": [neighbours.incoming], "outgoing": [neighbours.outgoing]}
        self._sides = sides.get(direction) or [neighbours.incoming, neighbours.outgoing]
        self._fanouts, self._seed = tuple(fanouts), seed
        self._marks = np.zeros(neighbours.incoming.num_nodes, np.int64)  # batch number, then place, 32 bits each
        self._batch = 0

    def sample(self, targets: Int64, *step: int) -> Sample:
        """The neighbourhood of `targets`, each of which stands once.

        Args:
            targets: Nodes.
            step: Whatever the draws follow from beside the seed and the node, such as epoch and step.
        """
        self._next_batch()
        targets = np.ascontiguousarray(targets, np.int64)
        _, new = self._marked(targets, 0)
        if len(new) != len(targets):
            raise UsageError("a target stands twice; give every node once")
        key = np.uint64(key_of(self._seed, *step))
        parts, hops, ends = [targets], [], [0, len(targets)]
        for fanout in self._fanouts:
            hop = self._drawn(parts[-1], fanout, key)
            places, new = self._marked(hop.neighbours, ends[-1])
            hops.append(replace(hop, places=places))
            parts.append(new)
            ends.append(ends[-1] + len(new))
        return _assembled(parts, hops, np.array(ends, np.int64))

    def _next_batch(self) -> None:
        self._batch += 1
        if self._batch == 1 << 31:
            self._marks[:] = 0
            self._batch = 1

    def _marked(self, nodes: Int64, num_before: int) -> tuple[Int64, Int64]:
        """The place of each node in this batch, in the order in which nodes came, and those that are new."""
        places, new = np.empty(len(nodes), np.int64), np.empty(len(nodes), np.int64)
        num = _mark(nodes, self._marks, self._batch, num_before, places, new)
        return places, new[:num]

    def _drawn(self, nodes: Int64, fanout: int, key: np.uint64) -> _Hop:
        """The samples of some nodes; in both directions, incoming neighbours stand before outgoing ones."""
        sides = [_counted(nodes, side.offsets, fanout) for side in self._sides]
        counts = sides[0][1] if len(sides) == 1 else sides[0][1] + sides[1][1]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        starts = ends - counts
        neighbours = np.empty(total, np.int64)
        relations = None if self._sides[0].relations is None else np.empty(total, np.int32)
        outgoing = None if len(sides) == 1 else np.zeros(total, bool)
        for number, (side, (begins, some)) in enumerate(zip(self._sides, sides, strict=True)):
            at = starts if number == 0 else starts + sides[0][1]
            positions = _positions(nodes, side.offsets, begins, some, at, total, key + np.uint64(number))
            _gather(positions, some, at, side, neighbours, relations)
            if outgoing is not None and number:
                _set(some, at, outgoing)
        return _Hop(starts, neighbours, relations, outgoing)


@dataclass(frozen=True, slots=True)
class _Hop:
    """What the nodes of one part drew."""

    starts: Int64  # [nodes of the part]
    neighbours: Int64
    relations: Int32 | None
    outgoing: Bool | None
    places: Int64 | None = None
    """Of neighbours, in the order in which nodes came into the batch."""


def _assembled(parts: list[Int64], hops: list[_Hop], ends: Int64) -> Sample:
    """Parts came from the targets outwards; a sample has them the other way round."""
    num = ends[-1]
    outer_first = hops[::-1]
    sizes = [len(hop.neighbours) for hop in outer_first]
    before = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.concatenate([hop.places for hop in outer_first])
    _turn(rows, ends, num - ends[1:] - ends[:-1])
    kinds = [hop.relations for hop in outer_first if hop.relations is not None]
    sides = [hop.outgoing for hop in outer_first if hop.outgoing is not None]
    return Sample(
        nodes=np.concatenate(parts[::-1]),
        node_offsets=num - ends[::-1],
        neighbours=np.concatenate([hop.neighbours for hop in outer_first]),
        neighbour_offsets=np.concatenate([hop.starts + start for hop, start in zip(outer_first, before, strict=False)]),
        rows=rows,
        relations=np.concatenate(kinds) if kinds else None,
        outgoing=np.concatenate(sides) if sides else None,
    )


# Loops are kept apart so that reads from all over memory do not wait for each other.


@njit(nogil=True, cache=True)
def _mark(nodes: Int64, marks: Int64, batch: int, num_before: int, places: Int64, new: Int64) -> int:
    num = 0
    for index in range(len(nodes)):
        if index + AHEAD < len(nodes):
            prefetch_write(marks, nodes[index + AHEAD])
        mark = marks[nodes[index]]
        if mark >> 32 == batch:
            places[index] = mark & 0xFFFFFFFF
        else:
            places[index] = num_before + num
            marks[nodes[index]] = batch << 32 | (num_before + num)
            new[num] = nodes[index]
            num += 1
    return num


@njit(nogil=True, cache=True)
def _counted(nodes: Int64, offsets: Int64, fanout: int) -> tuple[Int64, Int64]:
    """Where the neighbours of each node begin, and how many it draws."""
    begins, counts = np.empty(len(nodes), np.int64), np.empty(len(nodes), np.int64)
    for index in range(len(nodes)):
        if index + AHEAD < len(nodes):
            prefetch_read(offsets, nodes[index + AHEAD])
        begins[index] = offsets[nodes[index]]
        degree = offsets[nodes[index] + 1] - begins[index]
        counts[index] = degree if fanout < 0 or degree < fanout else fanout
    return begins, counts


@njit(nogil=True, cache=True)
def _positions(
    nodes: Int64, offsets: Int64, begins: Int64, counts: Int64, at: Int64, total: int, key: np.uint64
) -> Int64:
    """The position of each drawn neighbour in the adjacency: Floyd's subset where a node has more than it draws."""
    out = np.empty(total, np.int64)
    for index in range(len(nodes)):
        begin, num, start = begins[index], counts[index], at[index]
        degree = offsets[nodes[index] + 1] - begin
        if degree == num:
            for place in range(num):
                out[start + place] = begin + place
            continue
        state = _scrambled(key ^ np.uint64(nodes[index]) * np.uint64(0x9E3779B97F4A7C15))
        for place in range(num):
            state += np.uint64(0x9E3779B97F4A7C15)
            last = degree - num + place
            drawn = begin + np.int64((_scrambled(state) >> np.uint64(32)) * np.uint64(last + 1) >> np.uint64(32))
            taken = False
            for earlier in range(start, start + place):
                taken |= out[earlier] == drawn
            out[start + place] = begin + last if taken else drawn
    return out


@njit(nogil=True, cache=True, inline="always")
def _scrambled(value: np.uint64) -> Any:  # splitmix64's finaliser
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _gather(
    positions: Int64, counts: Int64, at: Int64, side: Adjacency, neighbours: Int64, relations: Int32 | None
) -> None:
    """What stands at the positions of one direction."""
    _take(positions, counts, at, side.ids, neighbours)
    if relations is not None:
        _take(positions, counts, at, side.relations, relations)


@njit(nogil=True, cache=True)
def _set(counts: Int64, at: Int64, out: Bool) -> None:
    for index in range(len(counts)):
        out[at[index] : at[index] + counts[index]] = True


@njit(nogil=True, cache=True)
def _take(positions: Int64, counts: Int64, at: Int64, source: Any, out: Any) -> None:
    for index in range(len(counts)):
        for place in range(at[index], at[index] + counts[index]):
            if place + AHEAD < len(positions):
                prefetch_read(source, positions[place + AHEAD])
            out[place] = source[positions[place]]


@njit(nogil=True, cache=True)
def _turn(places: Int64, ends: Int64, shifts: Int64) -> None:
    """Places counted from the targets outwards become places in `nodes`."""
    for index in range(len(places)):
        part = 0
        while places[index] >= ends[part + 1]:
            part += 1
        places[index] += shifts[part]
