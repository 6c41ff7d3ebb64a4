"""Each policy's idea on a queue small enough to see it, and the published trace for the ones that are compared."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foresee.cluster.estimators import regimes
from foresee.cluster.formats.shockwave import Trace
from foresee.cluster.job import Cluster, Job, work_of_seconds
from foresee.cluster.metrics import measure
from foresee.cluster.policies import POLICIES, policy_named, shares
from foresee.cluster.policies.allox import allox
from foresee.cluster.policies.guarded import attainable_seconds, guarded, slack_from_error
from foresee.cluster.policies.orders import fifo, las, longest_first, srsf, srtf
from foresee.cluster.policies.published_profiles import PublishedProfiles
from foresee.cluster.policies.shares import Shares
from foresee.cluster.policies.shockwave import Shockwave
from foresee.cluster.policies.themis import best_subset, kept_fractions
from foresee.cluster.simulation import Live, simulate
from foresee.errors import PlanError


def live(id: str, remaining: float, *, gpus: int = 1, arrival: float = 0.0, served: float = 0.0, **more: float) -> Live:
    job = Job(id=id, gpus=gpus, regimes=work_of_seconds(served + remaining), arrival_seconds=arrival)
    return Live(
        job=job,
        remaining_seconds=remaining,
        served_seconds=served,
        units_done=served,
        seconds_per_unit=1.0,
        running=bool(more.get("running", False)),
        waited_seconds=more.get("waited", 0.0),
        steps_per_second=more.get("steps_per_second", 1.0),
        estimate_error=more.get("error", 0.0),
    )


QUEUE = [live("long", 9000, arrival=1), live("wide", 1000, gpus=4, arrival=0), live("short", 2000, arrival=2)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (fifo, ["wide", "long", "short"]),
        (srtf, ["wide", "short", "long"]),
        (srsf, ["short", "wide", "long"]),
        (longest_first, ["long", "short", "wide"]),
    ],
)
def test_plain_orders(order: object, expected: list[str]) -> None:
    assert callable(order)
    assert order(0.0, QUEUE) == expected


def test_las_prefers_who_has_had_little_and_lifts_the_starved() -> None:
    fresh, old = live("fresh", 100, arrival=50), live("old", 100, served=5000)
    assert las(0.0, [old, fresh]) == ["fresh", "old"]
    starved = live("starved", 100, served=5000, waited=50_000)
    assert las(0.0, [fresh, starved]) == ["starved", "fresh"]


def test_guarded_puts_the_job_without_laxity_first() -> None:
    cluster = Cluster(gpus=2)
    queue = [live("short", 100), live("mid", 500), live("long", 5000)]
    assert attainable_seconds(queue, 2) == 5000
    assert guarded(cluster, 0.0)(0.0, queue) == ["long", "short", "mid"]
    assert guarded(cluster, -math.inf)(0.0, queue) == ["short", "mid", "long"]


@pytest.mark.parametrize(("spare", "first"), [(119.0, "long"), (120.0, "long"), (121.0, "short"), (239.0, "short")])
def test_a_job_becomes_urgent_one_round_before_its_last_chance(spare: float, first: str) -> None:
    """`end` sets the goal at 10,000 s; the long job could wait `spare` seconds and still make it."""
    queue = [live("long", 10_000 - spare), live("short", 100), live("end", 10_000)]
    order = guarded(Cluster(gpus=2), 0.0)(0.0, queue)
    assert order[0] == "end"
    assert order[1] == first


def test_guarded_does_not_take_turns_between_two_urgent_jobs() -> None:
    cluster = Cluster(gpus=1)
    here, other = live("here", 5000, running=True), live("other", 5100)
    assert guarded(cluster, 1.0)(0.0, [here, other]) == ["here", "other"]
    assert guarded(cluster, 1.0)(0.0, [here, live("other", 5300)]) == ["other", "here"]


def test_slack_follows_the_error() -> None:
    assert slack_from_error(0.0) == 0.0
    assert slack_from_error(0.03) == pytest.approx(0.048, abs=1e-3)
    assert slack_from_error(0.2) < slack_from_error(0.5) < 1.0
    # The queue's own error moves the goal: what has laxity with good estimates has none with bad ones.
    queue = [live("short", 100), live("mid", 3000), live("long", 5000)]
    bad = [live("short", 100, error=0.5), live("mid", 3000, error=0.5), live("long", 5000, error=0.5)]
    assert guarded(Cluster(gpus=2))(0.0, queue) == ["long", "short", "mid"]
    assert guarded(Cluster(gpus=2))(0.0, bad) == ["long", "mid", "short"]


@settings(max_examples=100, deadline=None)
@given(
    gangs=st.lists(st.integers(1, 8), min_size=1, max_size=12),
    lengths=st.lists(st.floats(10, 10_000), min_size=12, max_size=12),
    gpus=st.integers(8, 20),
)
@pytest.mark.parametrize(
    "rule", [shares.max_min, shares.gandiva_fair, shares.ossp, shares.finish_time_fairness, shares.mst]
)
def test_shares_are_shares(rule: shares.ShareRule, gangs: list[int], lengths: list[float], gpus: int) -> None:
    queue = [live(str(i), length, gpus=gang) for i, (gang, length) in enumerate(zip(gangs, lengths, strict=False))]
    found = rule(0.0, queue, gpus)
    assert ((found >= 0) & (found <= 1 + 1e-9)).all()
    if rule is not shares.gandiva_fair:  # it ignores gangs, so what it hands out may exceed what there is
        assert np.dot(found, [float(gang) for gang in gangs]) <= gpus * (1 + 1e-6)


def test_shares_by_hand() -> None:
    two = [live("a", 1000, gpus=1, steps_per_second=1.0), live("b", 3000, gpus=3, steps_per_second=9.0)]
    assert shares.max_min(0.0, two, 2) == pytest.approx([1.0, 1 / 3])
    assert shares.gandiva_fair(0.0, two, 1) == pytest.approx([0.5, 0.5])
    assert shares.ossp(0.0, two, 4) == pytest.approx([1 / 3, 1.0])
    assert shares.mst(0.0, two, 3) == pytest.approx([0.0, 1.0])


def test_finish_time_fairness_equalises_rho() -> None:
    queue = [live("a", 1000), live("b", 4000), live("c", 2000, gpus=2)]
    found = shares.finish_time_fairness(0.0, queue, 2)
    isolated = np.minimum(1, 2 / 3 / np.array([1, 1, 2]))
    remaining = np.array([1000, 4000, 2000])
    rho = (remaining / found) / (remaining / isolated)
    assert rho.max() == pytest.approx(rho.min(), rel=1e-6)


def test_held_shares_keep_a_new_job_waiting() -> None:
    cluster = Cluster(gpus=4)
    held, prompt = Shares(cluster, shares.max_min, hold_seconds=1000.0), Shares(cluster, shares.max_min)
    first = [live("a", 5000)]
    for order in (held, prompt):
        order(0.0, first)
    later: Sequence[Live] = [live("a", 4900, served=100), live("b", 100, arrival=120)]
    assert held(120.0, later) == ["a"]
    assert set(prompt(120.0, later)) == {"a", "b"}
    assert set(held(1000.0, later)) == {"a", "b"}


def test_allox_starts_the_shortest_and_never_stops_anyone() -> None:
    queue = [live("runs", 9000, running=True), live("long", 5000), live("short", 100), live("mid", 1000)]
    assert allox(Cluster(gpus=3))(0.0, queue)[:1] == ["runs"]
    assert set(allox(Cluster(gpus=3))(0.0, queue)[1:3]) <= {"short", "mid", "long"}
    two_free = allox(Cluster(gpus=4))(0.0, queue)
    assert two_free[1] == "short"


@settings(max_examples=60, deadline=None)
@given(
    gangs=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    gains=st.lists(st.floats(0.01, 1.0), min_size=8, max_size=8),
    gpus=st.integers(4, 8),
)
def test_the_auction_is_the_best_subset_and_keeps_fractions(gangs: list[int], gains: list[float], gpus: int) -> None:
    gains = gains[: len(gangs)]
    chosen = best_subset(gains, gangs, gpus)
    value = sum(gains[index] for index in chosen)
    for mask in range(2 ** len(gangs)):
        picked = [index for index in range(len(gangs)) if mask >> index & 1]
        if sum(gangs[index] for index in picked) <= gpus:
            assert value >= sum(gains[index] for index in picked) - 1e-9
    assert sum(gangs[index] for index in chosen) <= gpus
    assert all(0 < kept <= 1 for kept in kept_fractions(gains, gangs, gpus, chosen))


def test_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(PlanError, match=r"'best' is not known: choose one of fifo, srtf"):
        policy_named("best")


def test_shockwave_is_close_to_the_stored_run(trace32: Trace) -> None:
    order = Shockwave(trace32.cluster, restate=PublishedProfiles(trace32.cluster.round_seconds))
    metrics = measure(simulate(trace32.jobs, trace32.cluster, order, estimator=regimes))
    assert metrics.makespan_seconds == pytest.approx(24_197, rel=0.03)
    assert metrics.jct_mean_seconds == pytest.approx(9_958, rel=0.03)


def test_the_default_beats_shockwave_in_all_four_respects(trace32: Trace) -> None:
    found = {
        name: measure(simulate(trace32.jobs, trace32.cluster, POLICIES[name](trace32.cluster), estimator=regimes))
        for name in ("guarded", "shockwave")
    }
    ours, theirs = found["guarded"], found["shockwave"]
    assert ours.makespan_seconds <= theirs.makespan_seconds
    assert ours.jct_mean_seconds <= 0.8 * theirs.jct_mean_seconds
    assert ours.worst_rho <= theirs.worst_rho
    assert ours.unfair_share <= theirs.unfair_share
