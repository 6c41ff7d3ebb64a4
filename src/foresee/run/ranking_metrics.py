"""How well samples are ranked within groups, such as all that one user was shown: GAUC, NDCG@k and recall@k.

In: group, logit and label of samples, in any order, batch after batch. Out: `Ranking`. Equal logits have no order, so a
tie counts as the mean over all orders of it: no figure depends on how the log is sorted.

GAUC is the AUC within a group, averaged over groups with both classes and weighted by their samples. NDCG@k (a click is
worth 1) and recall@k are means over groups with a click. Memory is bounded: beyond `samples_max` samples, half of the
groups, by a hash of the group, are given up with all of their samples, again and again; `groups_share` says how many
are left. Those are counted exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Float64, Int64
from foresee.io.hashing import GOLDEN, mixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What was measured; None where no group can say it."""

    group: str
    num_groups: int
    groups_share: float
    """Of all groups, those that were counted; 1 unless there were too many samples."""
    gauc: float | None
    ndcg: dict[int, float | None]  # by k
    recall: dict[int, float | None]

    def figures(self) -> dict[str, float | None]:
        """By the names that a run file and a record use."""
        return {
            "gauc": self.gauc,
            **{f"ndcg@{k}": value for k, value in self.ndcg.items()},
            **{f"recall@{k}": value for k, value in self.recall.items()},
        }

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        counted = {"group": self.group, "num_groups": self.num_groups, "groups_share": self.groups_share}
        return {**self.figures(), **counted}


class RankingAccumulator:
    """Takes samples batch by batch."""

    def __init__(self, group: str, at: Sequence[int], *, samples_max: int = 20_000_000) -> None:
        self._group, self._at, self._samples_max = group, tuple(at), samples_max
        self._parts: list[tuple[Int64, NDArray[np.float32], NDArray[np.bool_]]] = []
        self._num_samples, self._halvings = 0, 0

    def add(self, groups: Int64, logits: NDArray[np.float32], labels: NDArray[np.float32]) -> None:
        """Counts a batch in. The arrays are copied."""
        part = np.array(groups, np.int64), np.array(logits, np.float32), labels == 1
        self._keep(part)
        while self._num_samples > self._samples_max and self._halvings < 63:
            self._halvings += 1
            parts, self._parts, self._num_samples = self._parts, [], 0
            for old in parts:
                self._keep(old)

    def _keep(self, part: tuple[Int64, NDArray[np.float32], NDArray[np.bool_]]) -> None:
        kept = part
        if self._halvings:
            chosen = _mixed(part[0]) >> np.uint64(64 - self._halvings) == 0
            kept = part[0][chosen], part[1][chosen], part[2][chosen]
        self._parts.append(kept)
        self._num_samples += len(kept[0])

    def result(self) -> Ranking:
        """Of everything added so far."""
        groups, logits, positive = (
            np.concatenate([part[i] for part in self._parts]) if self._parts else np.empty(0, kind)
            for i, kind in enumerate((np.int64, np.float32, np.bool_))
        )
        if not np.isfinite(logits).all():
            groups, logits, positive = groups[:0], logits[:0], positive[:0]
        ties = _Ties(groups, logits, positive)
        return Ranking(
            group=self._group,
            num_groups=ties.num_groups,
            groups_share=0.5**self._halvings,
            gauc=ties.gauc(),
            ndcg={k: ties.ndcg(k) for k in self._at},
            recall={k: ties.recall(k) for k in self._at},
        )


class _Ties:
    """Samples by group and falling logit; those of one group with one logit are a tie, and count together."""

    def __init__(self, groups: Int64, logits: NDArray[np.float32], positive: NDArray[np.bool_]) -> None:
        order = np.lexsort((-logits, groups))
        groups, logits, positive = groups[order], logits[order], positive[order]
        new_group = np.diff(groups, prepend=groups[:1] - 1) != 0
        new_tie = new_group | (np.diff(logits, prepend=logits[:1]) != 0)
        starts = np.flatnonzero(new_tie)
        group_starts = np.flatnonzero(new_group)
        self.num_groups = len(group_starts)
        self._group = np.cumsum(new_group)[starts] - 1  # [ties]
        self._begin = starts - group_starts[self._group] if len(starts) else starts  # rank in the group, from 0
        self._size = np.diff(starts, append=len(groups))
        self._end = self._begin + self._size
        running = np.concatenate([[0], np.cumsum(positive)])
        self._positives = running[starts + self._size] - running[starts]
        self._group_size = np.diff(group_starts, append=len(groups))  # [groups]
        self._group_positives = np.bincount(self._group, self._positives, self.num_groups)

    def gauc(self) -> float | None:
        negatives = self._size - self._positives
        before = np.cumsum(negatives) - negatives
        first = np.searchsorted(self._group, np.arange(self.num_groups))
        of_group = self._group_size - self._group_positives
        below = of_group[self._group] - (before - before[first][self._group]) - negatives
        wins = np.bincount(self._group, self._positives * (below + 0.5 * negatives), self.num_groups)
        pairs = self._group_positives * of_group
        both = pairs > 0
        if not both.any():
            return None
        weights = self._group_size[both].astype(np.float64)
        return float((wins[both] / pairs[both]) @ weights / weights.sum())

    def ndcg(self, k: int) -> float | None:
        ranks = np.arange(min(k, int(self._group_size.max(initial=0))))
        gains = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(ranks + 2.0))])  # of the first n ranks
        best = gains[np.minimum(self._group_positives.astype(np.int64), len(ranks))]
        return self._mean_over_groups(gains, best)

    def recall(self, k: int) -> float | None:
        ranks = np.arange(min(k, int(self._group_size.max(initial=0))) + 1, dtype=np.float64)
        return self._mean_over_groups(ranks, self._group_positives.astype(np.float64))

    def _mean_over_groups(self, gains: Float64, best: Float64) -> float | None:
        """gains: of n ranks from the first, n = 0, 1, ...; after the last one there are no more."""
        last = len(gains) - 1
        mean_gain = (gains[np.minimum(self._end, last)] - gains[np.minimum(self._begin, last)]) / self._size
        gained = np.bincount(self._group, self._positives * mean_gain, self.num_groups)
        clicked = self._group_positives > 0
        return float((gained[clicked] / best[clicked]).mean()) if clicked.any() else None


def _mixed(groups: Int64) -> NDArray[np.uint64]:
    """A number whose leading bits say nothing of the group (splitmix64)."""
    numbers: NDArray[np.uint64] = mixed(groups.astype(np.uint64) + np.uint64(GOLDEN))
    return numbers
