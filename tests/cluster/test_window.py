"""The window program: the greedy plan against HiGHS, and what every plan must keep."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foresee.cluster.estimators import regimes
from foresee.cluster.formats.shockwave import Trace
from foresee.cluster.policies.shockwave import Shockwave
from foresee.cluster.simulation import simulate
from foresee.cluster.window import greedy, highs
from foresee.cluster.window.highs import Window


@st.composite
def windows(draw: st.DrawFn, gang_sizes: tuple[int, ...] = (1, 2, 4)) -> Window:
    jobs = draw(st.integers(1, 8))

    def column(values: st.SearchStrategy[float]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=jobs, max_size=jobs)))

    total = column(st.integers(2, 50).map(float))
    done = np.floor(total * column(st.floats(0, 0.9)))
    pace = column(st.floats(5.0, 200.0))
    return Window(
        num_rounds=6,
        round_seconds=120.0,
        capacity_gpus=4,
        makespan_weight=draw(st.sampled_from([1e-3, 1.0])),
        gpus=np.array(draw(st.lists(st.sampled_from(gang_sizes), min_size=jobs, max_size=jobs))),
        units_total=total,
        units_done=done,
        seconds_per_unit=pace,
        remaining_seconds=(total - done) * pace * column(st.floats(0.7, 1.3)),
        weights=column(st.sampled_from([1.0, 1.0, 20.0])),
        least_rounds=np.zeros(jobs, np.int64),
    )


def check_capacity(window: Window, plan: list[list[int]]) -> None:
    assert len(plan) == window.num_rounds
    for jobs in plan:
        assert len(set(jobs)) == len(jobs)
        assert window.gpus[jobs].sum() <= window.capacity_gpus


@settings(max_examples=100, deadline=None)
@given(window=windows())
def test_greedy_plans_fit_and_place_what_they_promise(window: Window) -> None:
    rounds = greedy.best_rounds(window)
    assert rounds is not None
    assert (rounds <= window.most_rounds).all()
    plan = greedy.spread(window, rounds)
    check_capacity(window, plan)
    assert (greedy.rounds_given(window, plan) <= rounds).all()


@settings(max_examples=25, deadline=None)
@given(window=windows(gang_sizes=(1,)))
def test_greedy_is_as_good_as_the_solver_for_single_gpus(window: Window) -> None:
    """Within what trying a fixed set of longest times can lose."""
    rounds, best = greedy.best_rounds(window), highs.best_rounds(window, gap=1e-6)
    assert rounds is not None
    assert best is not None
    assert window.value(rounds) >= window.value(best) - 0.02 * abs(window.value(best))


@settings(max_examples=15, deadline=None)
@given(window=windows())
def test_the_solver_keeps_the_capacity_of_every_round(window: Window) -> None:
    plan = highs.solve_highs(window)
    assert plan is not None
    check_capacity(window, plan)


def test_least_rounds_are_kept_or_refused() -> None:
    from dataclasses import replace

    flat = np.ones(3)
    window = Window(
        num_rounds=4,
        round_seconds=120.0,
        capacity_gpus=2,
        makespan_weight=0.0,
        gpus=np.array([1, 1, 2]),
        units_total=100 * flat,
        units_done=0 * flat,
        seconds_per_unit=60 * flat,
        remaining_seconds=6000 * flat,
        weights=np.array([1.0, 1.0, 1e-6]),
        least_rounds=np.array([0, 0, 3]),
    )
    for solve in (greedy.best_rounds, highs.best_rounds):
        rounds = solve(window)
        assert rounds is not None
        assert rounds[2] >= 3
        assert solve(replace(window, least_rounds=np.array([4, 4, 3]))) is None


def test_greedy_is_within_a_third_of_a_per_cent_on_the_published_trace(trace32: Trace) -> None:
    met: list[Window] = []

    def remember(window: Window) -> list[list[int]] | None:
        met.append(window)
        return greedy.solve_greedy(window)

    simulate(trace32.jobs, trace32.cluster, Shockwave(trace32.cluster, solver=remember), estimator=regimes)
    sampled = [window for window in met if window.num_jobs > 20][:: len(met) // 5]
    assert len(sampled) >= 3
    for window in sampled:
        best = highs.best_rounds(window, time_limit_seconds=10.0)
        plan = greedy.solve_greedy(window)
        assert best is not None
        assert plan is not None
        ours, theirs = window.value(greedy.rounds_given(window, plan)), window.value(best)
        assert ours >= theirs - 0.003 * abs(theirs)


def test_the_logarithm_is_concave_and_ends_at_zero() -> None:
    slopes = [slope for slope, _ in highs._log_segments()]
    assert slopes == sorted(slopes, reverse=True)
    assert slopes[-1] + highs._log_segments()[-1][1] == pytest.approx(0.0)
