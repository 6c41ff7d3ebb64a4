"""Each policy's idea on a queue small enough to see it, and the published trace for the ones that are compared."""

import math
import sys
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foresee.cluster.estimators import ASSUMED_ERROR, oracle, reactive, regimes
from foresee.cluster.formats.shockwave import Trace
from foresee.cluster.job import Cluster, Job, work_of_seconds
from foresee.cluster.metrics import measure
from foresee.cluster.policies import POLICIES, PUBLISHED, policy_named, shares
from foresee.cluster.policies.allox import allox
from foresee.cluster.policies.guarded import (
    NO_LAXITY,
    RANKED,
    SHORT,
    Guarded,
    attainable_seconds,
    believe,
    never_certain,
)
from foresee.cluster.policies.orders import fifo, las, longest_first, srsf, srtf
from foresee.cluster.policies.shares import Shares
from foresee.cluster.policies.shockwave import Shockwave
from foresee.cluster.policies.themis import best_subset, kept_fractions
from foresee.cluster.published_profiles import PublishedProfiles
from foresee.cluster.simulation import Live, simulate
from foresee.errors import InputError, PlanError


def job(id: str, seconds: float, *, gpus: int = 1, arrival: float = 0.0, weight: float = 1.0) -> Job:
    return Job(id=id, gpus=gpus, regimes=work_of_seconds(seconds), arrival_seconds=arrival, weight=weight)


def live(id: str, remaining: float, *, gpus: int = 1, arrival: float = 0.0, served: float = 0.0, **more: float) -> Live:
    described = job(id, served + remaining, gpus=gpus, arrival=arrival, weight=more.get("weight", 1.0))
    return Live(
        job=described,
        remaining_seconds=remaining,
        served_seconds=served,
        units_done=served,
        seconds_per_unit=1.0,
        running=bool(more.get("running", False)),
        waited_seconds=more.get("waited", 0.0),
        steps_per_second=more.get("steps_per_second", 1.0),
        first_estimate_seconds=more.get("first", 0.0),
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


def test_guarded_puts_the_job_without_laxity_before_longer_ones_and_behind_short_ones() -> None:
    queue = [live("short", 100), live("mid", 500), live("long", 5000)]
    order = Guarded(Cluster(gpus=2))
    assert order(0.0, queue) == ["short", "long", "mid"]
    assert (order.reason("short"), order.reason("long"), order.reason("mid")) == (SHORT, NO_LAXITY, RANKED)
    assert Guarded(Cluster(gpus=2), guard_makespan=False)(0.0, queue) == ["short", "mid", "long"]


@pytest.mark.parametrize(("spare", "first"), [(119.0, "long"), (121.0, "mid"), (239.0, "mid")])
def test_a_job_becomes_urgent_one_round_before_its_last_chance(spare: float, first: str) -> None:
    """The work of all sets the goal at 9,700 s; by the most it likely has, `long` could wait `spare` seconds more."""
    long = (9_700 - spare) * math.exp(-ASSUMED_ERROR)
    others = [live("mid", 2_000), live("end", 20_000 - 2_000 - long)]
    queue = [live("long", long), *others]
    beliefs = [never_certain(believe(entry)) for entry in queue]
    assert attainable_seconds(queue, beliefs, 2) == pytest.approx(10_000.0)
    order = [id for id in Guarded(Cluster(gpus=2))(0.0, queue) if id != "end"]
    assert order[0] == first


def test_the_later_a_job_is_the_shorter_it_counts() -> None:
    """`old` is three times as long and four times as late."""
    queue = [live("new", 1_000, arrival=9_000.0), live("old", 3_000, arrival=0.0)]
    cluster = Cluster(gpus=2)
    ranked = {fairness: Guarded(cluster, fairness, guard_makespan=False)(9_000.0, queue)[0] for fairness in (0, 1, 4)}
    assert ranked == {0: "new", 1: "old", 4: "old"}
    heavier = [queue[0], live("old", 3_000, arrival=8_000.0, weight=3.0)]
    assert Guarded(cluster, guard_makespan=False)(9_000.0, heavier)[0] == "old"


def test_nobody_starves_under_a_stream_of_shorter_jobs() -> None:
    """Shortest first serves the wide job only when the stream ends, after 40 hours."""
    stream = [job(f"s{i}", 1_500, gpus=2, arrival=720.0 * i) for i in range(200)]
    cluster = Cluster(gpus=4)
    wide = job("wide", 3_600, gpus=4)
    ends = {}
    for name in ("srtf", "guarded"):
        run = simulate([wide, *stream], cluster, POLICIES[name](cluster), estimator=oracle)
        ends[name] = next(o.finish_seconds for o in run.outcomes if o.job.id == "wide")
    assert ends["srtf"] > 140_000
    assert ends["guarded"] < 50_000


def test_guarded_does_not_take_turns_between_two_urgent_jobs() -> None:
    cluster = Cluster(gpus=4)
    here, other = live("here", 5000, running=True), live("other", 5100)
    assert Guarded(cluster)(0.0, [here, other])[0] == "here"
    assert Guarded(cluster)(0.0, [here, live("other", 5300)])[0] == "other"


def test_an_unsure_job_counts_as_short_when_ranked_and_as_long_when_guarded() -> None:
    sure, unsure = never_certain(believe(live("a", 1000))), never_certain(believe(live("b", 1000, error=1.0)))
    assert unsure.likely_least < sure.likely_least < 1000 < sure.likely_most < unsure.likely_most


def test_watching_a_job_takes_the_error_out_of_its_estimate() -> None:
    """Estimated at 4,000 s, run for 500 s, 3,000 s left: it goes twice as fast as was thought."""
    watched = believe(live("a", 3000, served=500, first=4000, error=1.0))
    assert watched.seconds == pytest.approx(1500, rel=0.02)
    assert watched.spread < 0.11
    # Where estimates have always been right, a fast start is chance rather than an error.
    assert believe(live("a", 3000, served=500, first=4000, error=0.01)).seconds == pytest.approx(3000, rel=0.02)
    assert believe(live("a", 3000, error=1.0)).seconds == 3000


def test_a_job_that_outruns_its_estimate_is_not_taken_to_end_now() -> None:
    assert believe(live("a", 1.0, served=10_000, first=5_000, error=0.5)).seconds == pytest.approx(4_008, rel=0.01)


@settings(max_examples=100, deadline=None)
@given(
    gangs=st.lists(st.integers(1, 8), min_size=1, max_size=12),
    lengths=st.lists(st.floats(10, 10_000), min_size=12, max_size=12),
    gpus=st.integers(8, 20),
)
@pytest.mark.parametrize(
    "rule",
    [
        shares.max_min,
        shares.gandiva_fair,
        shares.ossp,
        shares.ossp_as_published,
        shares.finish_time_fairness,
        lambda now, live, gpus: shares.FinishTimeFairnessAsPublished()(now, live, gpus),
        shares.mst,
    ],
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


def test_what_a_linear_program_leaves_open_is_settled_in_the_middle() -> None:
    """With GPUs to spare a job may have anything from the half it needs to all; without, it has the least."""
    _, short = shares.ossp_as_published(0.0, [live("a", 500_000.0), live("b", 250_000.0)], 4)
    assert short == pytest.approx(0.5 + 1 / 12**0.5, abs=0.02)  # 1/(x-1/2) + 1/x = 1/(1-x), at hardly any price
    tight = shares.ossp_as_published(0.0, [live(str(i), 100.0) for i in range(100)], 1)
    assert (tight >= 0.0095).all()
    assert tight.sum() <= 1


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


@pytest.mark.parametrize(
    ("name", "makespan", "jct"),
    [
        ("max_min", 33_208, 11_274),
        ("gandiva_fair", 32_367, 12_574),
        ("allox", 32_489, 9_926),
        ("mst", 31_909, 9_655),
        ("finish_time_fairness", 31_929, 11_302),
        ("ossp", 24_205, 19_807),
    ],
)
def test_other_policies_as_published_are_within_three_per_cent(
    trace32: Trace, name: str, makespan: float, jct: float
) -> None:
    metrics = measure(simulate(trace32.jobs, trace32.cluster, PUBLISHED[name](trace32.cluster), estimator=reactive))
    assert metrics.makespan_seconds == pytest.approx(makespan, rel=0.03)
    assert metrics.jct_mean_seconds == pytest.approx(jct, rel=0.03)


def test_without_scipy_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    queue = [live("a", 100), live("b", 200)]
    for name in ("allox", "shockwave_highs"):
        with pytest.raises(InputError, match=r"scipy is not installed, .*pip install 'foresee\[cluster\]'"):
            POLICIES[name](Cluster(gpus=2))(0.0, queue)


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
