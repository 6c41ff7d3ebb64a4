"""Which features placement should look at when it may not take the time for all of them.

In: scenes of a profile, and what a position costs. Out: positions of lookups in a sample (with one id a feature: the
features) for `LocationAware`, best first, as many as a budget allows. Nothing here measures time: whoever runs the
planner does, and the choice is a parameter of the plan, which stays a function of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from foresee.plan.workers.placement import FIRST, FURTHER, Scene, contiguous, count_users, row_costs


def rank_positions(scenes: Iterable[Scene]) -> list[tuple[int, float]]:
    """(position in a sample, transfers that routing can save there per step), best first.

    A row that one sample touches saves its move if that sample goes to the owner. A row that few samples touch saves a
    copy and a gradient for each but the first that go to the same worker. A row touched by more samples than a worker
    trains needs several workers anyhow, and counts nothing. Critical transfers count as in the placement.
    """
    saved: NDArray[np.float64] = np.zeros(0)
    num_scenes = 0
    for scene in scenes:
        here = np.bincount(_positions_of(scene), _worth(scene)[scene.inverse], minlength=len(saved)).astype(np.float64)
        here[: len(saved)] += saved
        saved = here
        num_scenes += 1
    order = np.argsort(-saved, kind="stable")
    return [(int(position), float(saved[position]) / max(1, num_scenes)) for position in order]


def affordable(
    ranked: Sequence[tuple[int, float]], *, seconds_per_position: float, budget_seconds: float
) -> tuple[int, ...]:
    """The best positions that the budget pays for; none that saves nothing. Placement's time is linear in them."""
    num_paid = int(budget_seconds / seconds_per_position)
    return tuple(sorted(position for position, saved in ranked[:num_paid] if saved > 0))


def _positions_of(scene: Scene) -> NDArray[np.int64]:
    """The position of each lookup in its sample."""
    return np.arange(len(scene.inverse)) - np.repeat(scene.sample_offsets[:-1], np.diff(scene.sample_offsets))


def _worth(scene: Scene) -> NDArray[np.float64]:
    """What each lookup of a row can save at best."""
    counts = np.zeros((len(scene.owner), scene.num_workers), np.int32)
    count_users(scene.sample_offsets, scene.inverse, contiguous(scene), counts, np.zeros(len(scene.owner), np.int64))
    uses, costs = counts.sum(axis=1), row_costs(scene)
    few = uses * scene.num_workers <= scene.num_samples
    return np.where(few, (costs[:, FIRST] + (uses - 1) * costs[:, FURTHER]) / np.maximum(uses, 1), 0.0)
