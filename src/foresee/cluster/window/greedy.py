"""The window program without a solver: rounds per job by marginal value, then rounds in time by laxity.

In: a window. Out: for every round of the window the jobs that run.
Fix the longest remaining time Z. Every job then needs a least number of rounds, and what capacity is left goes to the
rounds of largest value per GPU. Because the logarithm is concave a job's rounds come in falling value, so one sort
serves all Z, and for one-GPU jobs the result is the optimum. Z is first the smallest that fits, then larger ones are
tried.
Never: exceed the capacity of a round or split a gang.
"""

from __future__ import annotations

import numpy as np

from foresee.cluster.window.highs import Floats, Ints, Window

# Longer remaining times that are tried beyond the smallest that fits, as multiples of a round.
LONGER_ROUNDS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)

# Rounds to spare that count as none when rounds are put in time, tried in turn.
MARGINS_ROUNDS = (0, 1, 2, 4, 8, 1000)


def solve_greedy(window: Window) -> list[list[int]] | None:
    """Jobs (as indices) of each round, or None if the least rounds do not fit."""
    rounds = best_rounds(window)
    return None if rounds is None else spread(window, rounds)


def best_rounds(window: Window) -> Ints | None:
    """Rounds per job of the best plan found; None if the least rounds alone exceed the window."""
    if not _fits(window, window.least_rounds):
        return None
    shortest = _shortest_longest(window)
    gain_order = _Increments(window)
    plans = [gain_order.complete(_needed(window, shortest + extra * window.round_seconds)) for extra in LONGER_ROUNDS]
    return max(plans, key=window.value)


def _needed(window: Window, longest_seconds: float) -> Ints:
    """Fewest rounds per job that leave nobody more than `longest_seconds`."""
    rounds = np.ceil((window.remaining_seconds - longest_seconds) / window.round_seconds - 1e-9)
    return np.maximum(np.clip(rounds, 0, window.most_rounds).astype(np.int64), window.least_rounds)


def _fits(window: Window, rounds: Ints) -> bool:
    return int(window.gpus @ rounds) <= window.capacity_gpus * window.num_rounds


def _shortest_longest(window: Window) -> float:
    """The smallest longest remaining time that fits, by bisection over the values at which a job needs a round more."""
    least = float(window.left_after(window.most_rounds).max())
    steps = window.remaining_seconds[:, None] - np.arange(window.num_rounds + 1) * window.round_seconds
    candidates = np.unique(np.maximum(steps, least))
    low, high = 0, len(candidates) - 1  # the last one asks nobody for anything
    while low < high:
        middle = (low + high) // 2
        if _fits(window, _needed(window, float(candidates[middle]))):
            high = middle
        else:
            low = middle + 1
    return float(candidates[low])


class _Increments:
    """Every "one round more for this job", most valuable per GPU first."""

    def __init__(self, window: Window) -> None:
        levels = window.log_progress(np.arange(window.num_rounds + 1)[:, None])  # [rounds + 1, jobs]
        gains = (np.diff(levels, axis=0) * window.weights / window.gpus).T  # [jobs, rounds]
        order = np.argsort(-gains, axis=None, kind="stable")
        self._jobs, self._nth = np.divmod(order, window.num_rounds)
        self._window = window

    def complete(self, rounds: Ints) -> Ints:
        """Add rounds in order of gain while they fit; what does not fit is skipped."""
        window = self._window
        open_ = (self._nth >= rounds[self._jobs]) & (self._nth < window.most_rounds[self._jobs])
        jobs = self._jobs[open_]
        left = window.capacity_gpus * window.num_rounds - int(window.gpus @ rounds)
        sure = int(np.searchsorted(np.cumsum(window.gpus[jobs]), left, side="right"))
        added = np.bincount(jobs[:sure], minlength=window.num_jobs)
        left -= int(window.gpus[jobs[:sure]].sum())
        least = int(window.gpus.min())
        for job, gpus in zip(jobs[sure:].tolist(), window.gpus[jobs[sure:]].tolist(), strict=True):
            if left < least:
                break
            if gpus <= left:
                added[job] += 1
                left -= gpus
        return rounds + added


def spread(window: Window, rounds: Ints) -> list[list[int]]:
    """Put each job's rounds in time: first who has hardly a round to spare, then by weight per planned GPU-round.

    Filling the earliest rounds by weight alone would drop rounds of the long jobs, which need nearly every one; and
    large gangs can lose rounds although the GPU time suffices. So the margin that counts as "hardly" grows until
    nothing is lost.
    """
    plans = []
    urgency = window.weights / np.maximum(rounds, 1) / window.gpus
    by_weight, by_gang = _ranks((-urgency,)), _ranks((-urgency, -window.gpus))
    for margin_rounds in MARGINS_ROUNDS:
        plan = _spread_by_laxity(window, rounds, margin_rounds, by_weight, by_gang)
        given = rounds_given(window, plan)
        if (given == rounds).all():
            return plan
        plans.append((window.value(given), plan))
    return max(plans, key=lambda pair: pair[0])[1]


def rounds_given(window: Window, plan: list[list[int]]) -> Ints:
    """Rounds each job gets in a plan."""
    return np.bincount(np.concatenate([np.array(jobs, np.int64) for jobs in plan]), minlength=window.num_jobs)


def _ranks(keys: tuple[Floats | Ints, ...]) -> Ints:
    """Place of each job in the order by these keys, the last one first; all different."""
    ranks = np.empty(len(keys[0]), np.int64)
    ranks[np.lexsort(keys)] = np.arange(len(ranks))
    return ranks


def _spread_by_laxity(
    window: Window, rounds: Ints, margin_rounds: int, by_weight: Ints, by_gang: Ints
) -> list[list[int]]:
    left = rounds.copy()
    plan: list[list[int]] = []
    for rounds_to_go in range(window.num_rounds, 0, -1):
        open_ = np.flatnonzero(left)
        laxity = rounds_to_go - left[open_]
        tight = laxity * window.num_jobs + by_gang[open_]
        loose = (window.num_rounds + 1) * window.num_jobs + by_weight[open_]
        order = np.argsort(np.where(laxity <= margin_rounds, tight, loose))
        chosen = _fill(open_[order], window)
        left[chosen] -= 1
        plan.append(chosen)
    return plan


def _fill(order: Ints, window: Window) -> list[int]:
    free, chosen = window.capacity_gpus, []
    for job, gpus in zip(order.tolist(), window.gpus[order].tolist(), strict=True):
        if gpus <= free:
            chosen.append(job)
            free -= gpus
            if free == 0:
                break
    return chosen
