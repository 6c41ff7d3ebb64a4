"""Figures within groups, against an implementation that goes group by group and order by order."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest

from foresee.run.ranking_metrics import RankingAccumulator


def _plain(groups: list[int], logits: list[float], labels: list[int], k: int) -> tuple[float, float, float]:
    """GAUC, NDCG@k and recall@k by their definitions; ties as the mean over every order that sorts the group."""
    by_group = defaultdict(list)
    for group, logit, label in zip(groups, logits, labels, strict=True):
        by_group[group].append((logit, label))
    aucs, sizes, ndcgs, recalls = [], [], [], []
    for samples in by_group.values():
        clicks, others = ([x for x, y in samples if y == wanted] for wanted in (1, 0))
        if clicks and others:
            wins = [1.0 if c > o else 0.5 if c == o else 0.0 for c in clicks for o in others]
            aucs.append(sum(wins) / len(wins))
            sizes.append(len(samples))
        if clicks:
            orders = [it for it in itertools.permutations(samples) if it == tuple(sorted(it, key=lambda x: -x[0]))]
            best = sum(1 / math.log2(rank + 2) for rank in range(min(k, len(clicks))))
            gains = [sum(y / math.log2(rank + 2) for rank, (_, y) in enumerate(order[:k])) for order in orders]
            ndcgs.append(sum(gains) / len(orders) / best)
            recalls.append(sum(sum(y for _, y in order[:k]) for order in orders) / len(orders) / len(clicks))
    gauc = sum(a * n for a, n in zip(aucs, sizes, strict=True)) / sum(sizes)
    return gauc, sum(ndcgs) / len(ndcgs), sum(recalls) / len(recalls)


@pytest.mark.parametrize("seed", range(4))
def test_the_figures_are_those_of_their_definitions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = rng.integers(-3, 9, 32)
    logits = rng.integers(0, 4, 32).astype(np.float32)  # many ties
    labels = (rng.random(32) < 0.4).astype(np.float32)
    accumulator = RankingAccumulator("user", [1, 3, 100])
    for begin in range(0, 32, 7):
        some = slice(begin, begin + 7)
        accumulator.add(groups[some], logits[some], labels[some])
    found = accumulator.result()
    for k in (1, 3, 100):
        expected = _plain(groups.tolist(), logits.tolist(), labels.astype(int).tolist(), k)
        assert (found.gauc, found.ndcg[k], found.recall[k]) == pytest.approx(expected, abs=1e-12)
    assert (found.num_groups, found.groups_share) == (len(set(groups.tolist())), 1.0)
    assert set(found.figures()) == {"gauc", *(f"{name}@{k}" for name in ("ndcg", "recall") for k in (1, 3, 100))}


def test_a_model_that_says_the_same_of_all_gains_nothing_by_a_sorted_log() -> None:
    accumulator = RankingAccumulator("user", [1])
    accumulator.add(np.zeros(10, np.int64), np.zeros(10, np.float32), np.array([1.0] * 2 + [0.0] * 8, np.float32))
    found = accumulator.result()
    assert (found.gauc, found.ndcg[1], found.recall[1]) == pytest.approx((0.5, 0.2, 0.1))


def test_beyond_the_bound_whole_groups_are_given_up() -> None:
    rng = np.random.default_rng(1)
    groups, logits = rng.integers(0, 2000, 40_000), rng.normal(size=40_000).astype(np.float32)
    labels = (rng.random(40_000) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    whole, bounded = RankingAccumulator("user", [5]), RankingAccumulator("user", [5], samples_max=5_000)
    for begin in range(0, 40_000, 1_000):
        some = slice(begin, begin + 1_000)
        whole.add(groups[some], logits[some], labels[some])
        bounded.add(groups[some], logits[some], labels[some])
        assert sum(len(part[0]) for part in bounded._parts) <= 5_000
    exact, found = whole.result(), bounded.result()
    assert found.groups_share in (1 / 8, 1 / 16)
    assert found.num_groups == pytest.approx(2000 * found.groups_share, rel=0.3)
    assert found.gauc == pytest.approx(exact.gauc, abs=0.03)
    assert found.recall[5] == pytest.approx(exact.recall[5], abs=0.05)


def test_nothing_to_say_is_none() -> None:
    empty = RankingAccumulator("user", [2]).result()
    assert (empty.gauc, empty.ndcg, empty.recall, empty.num_groups) == (None, {2: None}, {2: None}, 0)
    accumulator = RankingAccumulator("user", [2])
    accumulator.add(np.array([1, 1]), np.array([0.1, 0.2], np.float32), np.zeros(2, np.float32))
    assert accumulator.result().figures() == {"gauc": None, "ndcg@2": None, "recall@2": None}
    accumulator.add(np.array([1]), np.array([np.nan], np.float32), np.ones(1, np.float32))
    assert accumulator.result().gauc is None
