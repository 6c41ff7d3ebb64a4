"""The law behind a synthetic graph: how edges are drawn, the true probability of every candidate, the best rank.

Node i is in community i mod C and has a weight that falls as a power of i. A head is drawn from all nodes; its tail
with probability `inside` from one community, which follows from the head's community and the relation, else from all
nodes. Scores of members, and of all others, fall with their number, so the rank that nobody can beat on average is
found by halving, whatever the number of nodes. Pure functions of arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foresee.arrays import Bool, Float64, Int64
from foresee.io.hashing import hash_counters, key_of

SHIFT = 10.0
"""The first so many nodes are about equally frequent, so that none has a large share of all edges."""


@dataclass(frozen=True, slots=True)
class Planted:
    """Who is joined with whom, and how probably."""

    num_nodes: int
    num_relations: int
    communities: int
    inside: float
    exponent: float
    seed: int

    def draw(self, draws: Float64) -> tuple[Int64, Int64, Int64]:
        """(heads, relations, tails) from uniform numbers [4, edges]."""
        heads = _inverse(draws[0], self.num_nodes, SHIFT, self.exponent)
        relations = (draws[1] * max(1, self.num_relations)).astype(np.int64)
        wanted = self.target(heads % self.communities, relations)
        member = _inverse(draws[2], self._members(wanted), SHIFT / self.communities, self.exponent)
        anywhere = _inverse(draws[2], self.num_nodes, SHIFT, self.exponent)
        return heads, relations, np.where(draws[3] < self.inside, member * self.communities + wanted, anywhere)

    def target(self, community: Int64, relation: Int64) -> Int64:
        """The community that a relation leads to from another; the same relation leads back."""
        if not self.num_relations:
            return community
        shifts = hash_counters(key_of(self.seed, 24), 0, self.num_relations) % np.uint64(self.communities)
        return (shifts.astype(np.int64)[relation] - community) % self.communities

    def tail_score(self, heads: Int64, relations: Int64, tails: Int64) -> Float64:
        """The probability of each tail, given head and relation."""
        joined = tails % self.communities == self.target(heads % self.communities, relations)
        return np.where(joined, self._inside_score(tails), 0.0) + (1 - self.inside) * self._weight(tails)

    def head_score(self, heads: Int64, relations: Int64, tails: Int64) -> Float64:
        """The probability of each head, given relation and tail, up to a factor."""
        return self._weight(heads) * self.tail_score(heads, relations, tails)

    def tail_rank(self, heads: Int64, relations: Int64, tails: Int64) -> Int64:
        """The place of each tail among all nodes, the most probable first, from 1."""
        wanted = self.target(heads % self.communities, relations)
        own = self.tail_score(heads, relations, tails)
        return self._rank(
            own,
            wanted,
            lambda node: self._inside_score(node) + (1 - self.inside) * self._weight(node),
            lambda node: (1 - self.inside) * self._weight(node),
        )

    def head_rank(self, heads: Int64, relations: Int64, tails: Int64) -> Int64:
        """The place of each head among all nodes."""
        elsewhere = (1 - self.inside) * self._weight(tails)
        joined = elsewhere + self._inside_score(tails)
        return self._rank(
            self.head_score(heads, relations, tails),
            self.target(tails % self.communities, relations),
            lambda node: self._weight(node) * joined,
            lambda node: self._weight(node) * elsewhere,
        )

    def _rank(
        self, own: Float64, community: Int64, joined: Callable[[Int64], Float64], other: Callable[[Int64], Float64]
    ) -> Int64:
        """1 + members of the community with a higher score + nodes outside of it with a higher one."""
        members = self._members(community)
        better = _count(lambda place: joined(place * self.communities + community) > own, members)
        outside = _count(lambda node: other(node) > own, np.full(len(own), self.num_nodes))
        counted_twice: Int64 = np.clip(-((community - outside) // self.communities), 0, members)
        return np.asarray(1 + better + outside - counted_twice)

    def _members(self, community: Int64) -> Int64:
        return (self.num_nodes - 1 - community) // self.communities + 1

    def _weight(self, nodes: Int64) -> Float64:
        return _share(nodes, np.int64(self.num_nodes), SHIFT, self.exponent)

    def _inside_score(self, nodes: Int64) -> Float64:
        members = self._members(nodes % self.communities)
        return self.inside * _share(nodes // self.communities, members, SHIFT / self.communities, self.exponent)


def _integral(values: Float64, exponent: float) -> Float64:
    """Of values ** -exponent."""
    return np.log(values) if exponent == 1 else np.asarray(values ** (1 - exponent) / (1 - exponent))


def _share(places: Int64, num: Int64 | np.int64, shift: float, exponent: float) -> Float64:
    """The part that places..places+1 have in the power law over 0..num."""
    low, high = np.asarray(places + shift, np.float64), np.asarray(num + shift, np.float64)
    total = _integral(high, exponent) - _integral(np.asarray(shift), exponent)
    return np.asarray((_integral(low + 1, exponent) - _integral(low, exponent)) / total)


def _inverse(draws: Float64, num: Int64 | int, shift: float, exponent: float) -> Int64:
    """Numbers below `num` by the power law, from uniform draws."""
    low = _integral(np.asarray(shift), exponent)
    reached = low + draws * (_integral(np.asarray(num + shift, np.float64), exponent) - low)
    values = np.exp(reached) if exponent == 1 else (reached * (1 - exponent)) ** (1 / (1 - exponent))
    return np.asarray(np.clip((values - shift).astype(np.int64), 0, np.asarray(num) - 1), np.int64)


def _count(holds: Callable[[Int64], Bool], num: Int64) -> Int64:
    """How many of 0..num-1 a condition holds for, which holds for the first ones and then no more; by halving."""
    low, high = np.zeros(len(num), np.int64), num.copy()
    while (low < high).any():
        middle = np.minimum((low + high) // 2, num - 1)
        yes, going = holds(middle), low < high
        low, high = np.where(going & yes, middle + 1, low), np.where(going & ~yes, middle, high)
    return low
