"""Where the right end of an edge stands among all candidates, block by block: MRR and Hits@k in bounded memory.

In: queries with their right ends, candidates as an iterator of blocks of vectors, and which candidates are edges of the
graph and so no mistakes (`known`). Out: for each query how many candidates score higher and how many the same. The
right end itself is never a candidate. A rank counts ties as half (`realistic`, the mean of the best and the worst
that a sort could give), or as all higher (`pessimistic`, as Marius has it): a model that gives everything one score
stands in the middle, or last, and never first.

Scores of right ends come from products of the same shape as those of candidates, so equal vectors have equal scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.nn.functional import pad

from foresee.arrays import Float32, Float64, Int64

QUERIES_OF_A_TILE = 1024
Ties = Literal["realistic", "pessimistic"]


class Known(NamedTuple):
    """Nodes by query, ascending for each."""

    offsets: Int64  # [queries + 1]
    nodes: Int64


@dataclass(frozen=True, slots=True)
class Queries:
    """Vectors that are compared, and what is already known about them."""

    vectors: Tensor  # [queries, width]
    right: Int64  # [queries]: the right ends
    right_vectors: Tensor  # [queries, dim]
    known: tuple[Known, ...]
    """Nodes that count for nothing; one may stand in several lists."""

    def __len__(self) -> int:
        return len(self.right)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMetrics:
    """What a ranking was worth, over both sides of all edges."""

    num_queries: int
    ties: str
    mrr: float
    mean_rank: float
    hits: dict[int, float]
    """Share of the queries whose right end is among the first k."""
    num_candidates: int
    """Of each query, before edges of the graph are left out."""
    filtered: bool

    def figure(self, name: str) -> float | None:
        """One of the figures, by the name that `as_dict` gives it."""
        return float(self.as_dict()[name])

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON: mrr, mean_rank, hits@1 and so on."""
        return {
            "num_queries": self.num_queries, "mrr": self.mrr, "mean_rank": self.mean_rank,
            **{f"hits@{k}": share for k, share in self.hits.items()},
            "ties": self.ties, "num_candidates": self.num_candidates, "filtered": int(self.filtered),
        }  # fmt: skip

    def in_words(self) -> str:
        """On one line."""
        hits = "  ".join(f"Hits@{k} {share:.4f}" for k, share in self.hits.items())
        how = "filtered" if self.filtered else "unfiltered"
        return (
            f"MRR {self.mrr:.4f}  {hits}  mean rank {self.mean_rank:,.1f}  ({self.num_queries:,} queries, {how}, "
            f"{self.num_candidates:,} candidates each, ties {self.ties})"
        )


class Ranks:
    """Counts for some queries, block of candidates after block."""

    def __init__(self, decoder: Any, queries: Queries, *, candidates_at_once: int) -> None:
        self._decoder, self._queries, self._width = decoder, queries, candidates_at_once
        self.higher, self.same = np.zeros((2, len(queries)), np.int64)
        tiles = [slice(begin, begin + QUERIES_OF_A_TILE) for begin in range(0, len(queries), QUERIES_OF_A_TILE)]
        self._tiles = [(tile, self._right_scores(tile)) for tile in tiles]

    def _right_scores(self, tile: slice) -> Tensor:  # [queries of the tile]
        right = self._queries.right_vectors[tile]
        pieces = [slice(begin, begin + self._width) for begin in range(0, len(right), self._width)]
        return torch.cat([self._scores(tile, right[piece])[piece].diagonal() for piece in pieces])

    def _scores(self, tile: slice, vectors: Tensor) -> Tensor:
        """[queries of the tile, vectors], always by a product of one shape: others may round otherwise."""
        padded = pad(vectors, (0, 0, 0, self._width - len(vectors)))
        scores: Tensor = self._decoder.compare(self._queries.vectors[tile], padded)
        return scores[:, : len(vectors)]

    def add(self, nodes: Int64, vectors: Tensor) -> None:
        """Counts these candidates, distinct and ascending, [candidates, dim]."""
        queries = self._queries
        for tile, right in self._tiles:
            scores = self._scores(tile, vectors).contiguous().numpy()
            for known in (*queries.known, Known(np.arange(len(queries) + 1), queries.right)):
                _leave_out(scores, nodes, known.offsets[tile.start : tile.stop + 1], known.nodes)
            _count(scores, right.numpy(), self.higher[tile], self.same[tile])

    def ranks(self, ties: Ties) -> Float64:
        """Of each query, from 1 on."""
        share = 0.5 if ties == "realistic" else 1.0
        ranks: Float64 = 1.0 + self.higher + share * self.same
        return ranks


@njit(nogil=True, cache=True)
def _leave_out(scores: Float32, nodes: Int64, offsets: Int64, known: Int64) -> None:
    """No score for the known nodes of each row."""
    for row in range(scores.shape[0]):
        mine = known[offsets[row] : offsets[row + 1]]
        for at in range(np.searchsorted(mine, nodes[0]), len(mine)):
            if mine[at] > nodes[-1]:
                break
            place = np.searchsorted(nodes, mine[at])
            if nodes[place] == mine[at]:
                scores[row, place] = -np.inf


@njit(nogil=True, cache=True)
def _count(scores: Float32, right: Float32, higher: Int64, same: Int64) -> None:
    """Adds how many scores of each row are above the right one, and how many are equal to it; one pass."""
    for row in range(scores.shape[0]):
        limit, above, equal = right[row], np.int32(0), np.int32(0)
        for column in range(scores.shape[1]):
            above += np.int32(scores[row, column] > limit)
            equal += np.int32(scores[row, column] == limit)
        higher[row] += above
        same[row] += equal


def summary(
    ranks: Iterable[Float64], *, at: Sequence[int], ties: Ties, num_candidates: int, filtered: bool
) -> LinkMetrics:
    """What the ranks of all queries come to."""
    every = np.concatenate([np.empty(0), *ranks])
    num = max(1, len(every))
    return LinkMetrics(
        num_queries=len(every), ties=ties, mrr=float((1.0 / every).sum() / num), mean_rank=float(every.sum() / num),
        hits={k: float((every <= k).sum() / num) for k in at}, num_candidates=num_candidates, filtered=filtered,
    )  # fmt: skip
