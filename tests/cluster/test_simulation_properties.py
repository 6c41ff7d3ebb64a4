"""What must hold for every policy, whatever the queue."""

from dataclasses import replace

import cluster_strategies as strategies
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foresee.cluster.estimators import ESTIMATORS, oracle
from foresee.cluster.job import Cluster, Job, work_of_seconds
from foresee.cluster.metrics import makespan_bound, measure, rho_static, rho_themis
from foresee.cluster.placement import Placement, choose, speed_of
from foresee.cluster.policies import POLICIES
from foresee.cluster.policies.guarded import STARVED_LATENESS, Guarded
from foresee.cluster.simulation import Run, simulate

QUICK = [name for name in POLICIES if name != "shockwave_highs"]


def check_run(run: Run, jobs: list[Job]) -> None:
    """Capacity, gangs, no idle GPUs that a waiting job could use, work served, and the bound."""
    outcomes = {outcome.job.id: outcome for outcome in run.outcomes}
    assert outcomes.keys() == {job.id for job in jobs}
    for index, round in enumerate(run.rounds):
        used = sum(outcomes[id].job.gpus for id in round.ids)
        assert used <= run.cluster.gpus
        assert len(set(round.ids)) == len(round.ids)
        live = [o for o in run.outcomes if o.first_round <= index < o.end_round]
        assert round.num_live == len(live)
        waiting = [outcome for outcome in live if outcome.job.id not in round.ids]
        assert all(outcome.job.gpus > run.cluster.gpus - used for outcome in waiting)
        if run.cluster.gpus_per_server:
            for id in round.ids:
                assert sum(gpus for _, gpus in round.placement[id]) == outcomes[id].job.gpus
    for outcome in run.outcomes:
        assert outcome.served_seconds == pytest.approx(outcome.job.exclusive_seconds, abs=1e-6)
        assert outcome.finish_seconds >= outcome.job.arrival_seconds + outcome.job.exclusive_seconds - 1e-6
    assert run.makespan_seconds >= makespan_bound(jobs, run.cluster) - 1e-6


@pytest.mark.parametrize("policy", QUICK)
@settings(max_examples=25, deadline=None)
@given(jobs=strategies.jobs(), cluster=strategies.clusters(), estimator=st.sampled_from(sorted(ESTIMATORS)))
def test_every_policy_keeps_the_rules(policy: str, jobs: list[Job], cluster: Cluster, estimator: str) -> None:
    check_run(simulate(jobs, cluster, POLICIES[policy](cluster), estimator=ESTIMATORS[estimator]), jobs)


@settings(max_examples=4, deadline=None)
@given(jobs=strategies.jobs(num_max=4), cluster=strategies.clusters())
def test_the_solver_keeps_the_rules(jobs: list[Job], cluster: Cluster) -> None:
    check_run(simulate(jobs, cluster, POLICIES["shockwave_highs"](cluster), estimator=oracle), jobs)


@pytest.mark.parametrize("policy", QUICK)
@settings(max_examples=10, deadline=None)
@given(jobs=strategies.jobs(num_max=6), cluster=strategies.clusters())
def test_equal_jobs_may_be_permuted(policy: str, jobs: list[Job], cluster: Cluster) -> None:
    """Which of several equal jobs is which changes no figure."""
    twins = [replace(job, id=f"{job.id}-{copy}") for job in jobs for copy in range(2)]
    shuffled = [replace(job, id=f"{job.id}-{copy}") for job in jobs for copy in (1, 0)]
    first = measure(simulate(twins, cluster, POLICIES[policy](cluster), estimator=oracle))
    second = measure(simulate(shuffled, cluster, POLICIES[policy](cluster), estimator=oracle))
    assert first == second


@settings(max_examples=60, deadline=None)
@given(jobs=strategies.jobs(), cluster=strategies.clusters())
def test_limits_of_guarded(jobs: list[Job], cluster: Cluster) -> None:
    """Nothing but completion time, restarts free, estimates and weights the same: it is shortest first."""
    free = replace(cluster, restart_seconds=0.0, locality_penalty=0.0)
    order = Guarded(free, fairness=0.0, guard_makespan=False)
    run = simulate(jobs, free, order, estimator=oracle, assumed_error=0.0)
    plain = simulate(jobs, free, POLICIES["srtf"](free), estimator=oracle)
    if max(outcome.jct_seconds / outcome.job.exclusive_seconds for outcome in plain.outcomes) < STARVED_LATENESS:
        assert [round.ids for round in run.rounds] == [round.ids for round in plain.rounds]


@settings(max_examples=100, deadline=None)
@given(jobs=strategies.jobs(), cluster=strategies.clusters(), more=st.integers(1, 4))
def test_more_gpus_never_worsen_the_bound(jobs: list[Job], cluster: Cluster, more: int) -> None:
    larger = replace(cluster, gpus=cluster.gpus + more)
    assert makespan_bound(jobs, larger) <= makespan_bound(jobs, cluster)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12), gpus=st.integers(1, 5))
def test_one_gpu_jobs_reach_the_bound_up_to_rounds(lengths: list[int], gpus: int) -> None:
    """McNaughton: without restarts and with whole rounds, guarded ends close to the bound."""
    jobs = [Job(id=str(i), gpus=1, regimes=work_of_seconds(120.0 * n)) for i, n in enumerate(lengths)]
    cluster = Cluster(gpus=gpus, restart_seconds=0.0)
    run = simulate(jobs, cluster, Guarded(cluster), estimator=oracle)
    assert run.makespan_seconds <= 1.05 * makespan_bound(jobs, cluster) + 4 * cluster.round_seconds


@settings(max_examples=40, deadline=None)
@given(jobs=strategies.jobs(), cluster=strategies.clusters())
def test_both_fairness_definitions_agree_when_nobody_contends(jobs: list[Job], cluster: Cluster) -> None:
    roomy = replace(cluster, gpus=100, gpus_per_server=None)
    run = simulate(jobs, roomy, POLICIES["fifo"](roomy), estimator=oracle)
    assert rho_static(run) == pytest.approx(rho_themis(run))
    assert min(rho_static(run)) >= 1 - 1e-9


def test_placement_keeps_running_gangs_and_charges_spread_ones() -> None:
    cluster = Cluster(gpus=8, gpus_per_server=4, locality_penalty=0.5)
    assert speed_of(((0, 4),), cluster) == 1.0
    assert speed_of(((0, 2), (1, 2)), cluster) == 0.5
    assert speed_of(((0, 4), (1, 2)), cluster) == 1.0


def chosen(cluster: Cluster, gangs: dict[str, int], previous: Placement, waited: float, cost: float) -> Placement:
    return choose(
        gangs, gangs, previous, cluster, spread_cost_seconds=lambda id: cost, waited_seconds=lambda id: waited
    )


def test_a_gang_waits_for_a_close_place_only_while_that_is_worth_it() -> None:
    cluster = Cluster(gpus=8, gpus_per_server=4, locality_penalty=0.5)
    held: Placement = {"x": ((0, 2),), "y": ((1, 2),)}
    gangs = {"x": 2, "y": 2, "gang": 4, "p": 2, "q": 2}
    patient = chosen(cluster, gangs, held, waited=100.0, cost=1000.0)
    assert set(patient) == {"x", "y", "p", "q"}
    late = chosen(cluster, gangs, held, waited=2000.0, cost=1000.0)
    assert late["gang"] == ((0, 2), (1, 2))
    # With nobody behind it to use the GPUs it is spread rather than kept waiting.
    alone = chosen(cluster, {"x": 2, "y": 2, "gang": 4}, held, waited=0.0, cost=1000.0)
    assert "gang" in alone


def test_a_spread_gang_moves_together_when_there_is_room_and_time_to_win() -> None:
    cluster = Cluster(gpus=8, gpus_per_server=4, locality_penalty=0.5)
    spread: Placement = {"gang": ((0, 2), (1, 2))}
    assert chosen(cluster, {"gang": 4}, spread, waited=0.0, cost=1000.0)["gang"] == ((0, 4),)
    assert chosen(cluster, {"gang": 4}, spread, waited=0.0, cost=100.0)["gang"] == spread["gang"]


def test_locality_counts_in_the_plan() -> None:
    """Gangs of four among short jobs of two: they wait for a close place instead of running at half their speed."""
    cluster = Cluster(gpus=8, gpus_per_server=4, locality_penalty=0.5)
    short = [Job(id=f"s{i}", gpus=2, regimes=work_of_seconds(300.0), arrival_seconds=60.0 * i) for i in range(40)]
    gangs = [Job(id=f"g{i}", gpus=4, regimes=work_of_seconds(6000.0), arrival_seconds=600.0 * i) for i in range(4)]
    run = simulate([*short, *gangs], cluster, Guarded(cluster), estimator=oracle)
    spread = sum(speed_of(r.placement[id], cluster) < 1 for r in run.rounds for id in r.ids if id.startswith("g"))
    rounds = sum(id.startswith("g") for r in run.rounds for id in r.ids)
    assert spread / rounds < 0.05
