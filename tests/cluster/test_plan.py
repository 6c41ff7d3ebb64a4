"""Plans, explanations, questions and exports on a queue whose answers are known."""

import json
from dataclasses import replace

import pytest
import yaml

from foresee.cluster.analysis import analyse
from foresee.cluster.exports import export
from foresee.cluster.formats import JobRecord
from foresee.cluster.job import Cluster, Job, Regime, in_words, work_of_seconds
from foresee.cluster.metrics import makespan_bound, measure_by
from foresee.cluster.plan import Plan, make_plan
from foresee.cluster.questions import admit, explain, frontier, what_if
from foresee.errors import PlanError

CLUSTER = Cluster(gpus=2, round_seconds=100.0, restart_seconds=0.0)


def job(id: str, seconds: float, *, gpus: int = 1, arrival: float = 0.0, user: str = "", done: float = 0.0) -> Job:
    return Job(
        id=id, gpus=gpus, regimes=work_of_seconds(seconds), arrival_seconds=arrival, user=user, done_seconds=done
    )


JOBS = [job("1", 300, gpus=2, user="ann"), job("2", 200, user="bob"), job("3", 400, arrival=50, user="bob")]


@pytest.fixture
def plan() -> Plan:
    return make_plan(JOBS, CLUSTER, policy="fifo")


def test_a_plan_has_rounds_times_bound_and_gap(plan: Plan) -> None:
    assert plan.rounds == (("1",), ("1",), ("1",), ("2", "3"), ("2", "3"), ("3",), ("3",))
    assert [(f.start_seconds, f.finish_seconds) for f in plan.fates.values()] == [(0, 300), (300, 500), (300, 700)]
    assert plan.metrics.bound_seconds == 700  # 1 needs both GPUs, so 3 comes before or after it
    assert plan.metrics.gap == 0
    assert [fate.job.id for fate in plan.in_order()] == ["1", "2", "3"]
    assert plan.fates["2"].rho == pytest.approx(500 / (200 * 1.5))
    assert plan.fates["1"].wait_seconds == 0


def test_explain_says_whom_a_job_waits_for(plan: Plan) -> None:
    text = explain(plan, "3")
    assert "waits 2 rounds while 1 other job holds the GPUs: 1 with less work than it" in text
    assert "goes to 1." in text
    assert "starts at 5 min and ends at 12 min" in text
    assert "among the last to end" in text
    assert "starts with the first round" in explain(plan, "1")
    with pytest.raises(PlanError, match=r"job 'x' is not in this plan"):
        explain(plan, "x")


def test_what_if_more_gpus_or_another_policy(plan: Plan) -> None:
    more = what_if(plan, ["gpus=4"])
    assert more.after.metrics.makespan_seconds == 500
    assert [shift.id for shift in more.helped()] == ["3", "2"]
    assert more.hurt() == []
    shortest = what_if(plan, ["policy=srtf", "round=50"])
    assert shortest.after.policy == "srtf"
    assert shortest.after.cluster.round_seconds == 50.0
    assert [shift.id for shift in shortest.hurt()] == ["1"]
    assert plan.cluster.gpus == 2


@pytest.mark.parametrize("change", ["gpus", "colour=red", "gpus=many", "policy=best"])
def test_what_if_that_makes_no_sense(plan: Plan, change: str) -> None:
    with pytest.raises(PlanError):
        what_if(plan, [change])


def test_admit_shows_who_is_hurt(plan: Plan) -> None:
    answer = admit(make_plan(JOBS, CLUSTER, policy="srtf"), [job("new", 150, gpus=2)])
    assert answer.after.fates["new"].finish_seconds == 150
    assert answer.hurt()
    assert all(shift.later_seconds > 0 for shift in answer.hurt())


def test_a_paused_job_pays_to_come_back_and_a_running_one_does_not() -> None:
    first = job("first", 120)  # nobody pays in the very first round, so it takes that one
    for paused in (False, True):
        waits = replace(job("back", 2000, done=200), paused=paused)
        made = make_plan([first, waits], Cluster(gpus=1), policy="fifo", estimator="oracle")
        assert made.fates["back"].num_starts == 1
        assert made.fates["back"].finish_seconds == 120 + 20 + 1800
        assert made.fates["back"].num_pieces == (1 if paused else 2)
    alone = [replace(job("back", 2000, done=200), paused=paused) for paused in (False, True)]
    starts = [make_plan([one], Cluster(gpus=1)).fates["back"].num_starts for one in alone]
    assert starts == [0, 1]


def test_a_plan_begins_when_it_is_told_with_work_already_done() -> None:
    made = make_plan([job("old", 500, done=200), job("new", 100, arrival=900)], CLUSTER, start_seconds=900)
    assert made.fates["old"].start_seconds == 900
    assert made.fates["old"].finish_seconds == 1200
    assert made.metrics.bound_seconds == 1200
    assert made.metrics.utilisation == pytest.approx(400 / 600)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (job("wide", 10, gpus=3), "asks for 3 GPUs and the cluster has 2"),
        (job("none", 10, gpus=0), "asks for 0 GPUs"),
        (job("empty", 0), "expected regimes that each take a positive time"),
        (job("done", 10, done=10), "10 s of its 10 s are done"),
        (replace(job("both", 10, done=5), paused=True, started_seconds=0.0), "it is paused and running at once"),
        (job("early", 10, arrival=-1), "arrives at -1 s"),
        (job("1", 10), "its id is used twice"),
        (Job(id="w", gpus=1, regimes=work_of_seconds(1), weight=0), "its weight is 0"),
    ],
)
def test_jobs_that_cannot_be_planned(broken: Job, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make_plan([*JOBS, broken], CLUSTER)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gpus": 0}, "cluster of 0 GPUs"),
        ({"gpus": 1, "restart_seconds": 120.0}, "make rounds longer than a restart"),
        ({"gpus": 1, "gpus_per_server": 0}, "gpus_per_server=0"),
        ({"gpus": 1, "locality_penalty": 1.0}, "locality_penalty=1"),
    ],
)
def test_clusters_that_cannot_be(fields: dict[str, float], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Cluster(**fields)  # type: ignore[arg-type]


def test_empty_plan_and_unknown_estimator() -> None:
    with pytest.raises(PlanError, match="nothing to plan"):
        make_plan([], CLUSTER)
    with pytest.raises(PlanError, match="estimator 'guess' is not known"):
        make_plan(JOBS, CLUSTER, estimator="guess")


def test_locality_costs_time() -> None:
    spread = Cluster(gpus=4, round_seconds=100.0, restart_seconds=0.0, gpus_per_server=2, locality_penalty=0.5)
    close = make_plan([job("a", 100, gpus=2)], spread)
    assert close.metrics.makespan_seconds == 100
    held = [job("x", 1000), job("y", 1000, arrival=1), job("z", 100, gpus=2, arrival=2)]
    assert make_plan(held, spread, policy="fifo").fates["z"].finish_seconds == 200


def test_slurm_lines(plan: Plan) -> None:
    lines = export(plan, "slurm").splitlines()
    assert lines[1:] == [f"scontrol update JobId={id} Priority={p}" for id, p in (("1", 30), ("2", 20), ("3", 10))]
    with pytest.raises(PlanError, match="is no Slurm job id"):
        export(make_plan([job("a; rm", 10)], CLUSTER), "slurm")


@pytest.mark.parametrize(("format", "kind"), [("kueue", "Workload"), ("volcano", "Job")])
def test_manifests_are_yaml_with_falling_priorities(plan: Plan, format: str, kind: str) -> None:
    documents = list(yaml.safe_load_all(export(plan, format)))
    classes = {d["metadata"]["name"]: d["value"] for d in documents if d["kind"].endswith("PriorityClass")}
    jobs = [d for d in documents if d["kind"] == kind]
    assert [d["metadata"]["name"] for d in jobs] == ["1", "2", "3"]
    values = [classes[d["spec"]["priorityClassName"]] for d in jobs]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 3


def test_ray_order_and_unknown_export(plan: Plan) -> None:
    rows = [json.loads(line) for line in export(plan, "ray").splitlines()]
    assert [(row["submission_id"], row["not_before_seconds"]) for row in rows] == [("1", 0), ("2", 300), ("3", 300)]
    with pytest.raises(PlanError, match="export 'lsf' is not known"):
        export(plan, "lsf")


def test_bound_counts_late_arrivals() -> None:
    late = [job("a", 100, arrival=1000, gpus=2), job("b", 100, arrival=1000, gpus=2), job("c", 10)]
    assert makespan_bound(late, CLUSTER) == 1200


def test_bound_knows_gangs_that_cannot_run_side_by_side() -> None:
    eight = Cluster(gpus=8)
    wide = [job("a", 100, gpus=5), job("b", 100, gpus=5), job("c", 300, gpus=4), job("d", 900, gpus=1)]
    assert makespan_bound(wide[:2], eight) == 200
    assert makespan_bound(wide[:3], eight) == 500
    assert makespan_bound(wide, eight) == 900


def test_a_running_gang_is_not_stopped_for_a_small_job_that_can_wait() -> None:
    queue = [replace(job("runs", 7200, gpus=8, done=1200), started_seconds=3600.0), job("small", 14_400)]
    made = make_plan(queue, Cluster(gpus=8), start_seconds=4800)
    assert made.fates["runs"].start_seconds == 3600
    assert made.fates["runs"].finish_seconds == 4800 + 6000
    assert made.metrics.gap < 0.01
    assert made.fates["runs"].num_pieces == 1
    assert "It goes on to its end." in explain(made, "runs")


def test_metrics_per_user(plan: Plan) -> None:
    bob, ann = sorted(measure_by(plan.run, lambda job: job.user), key=lambda group: -group.num_jobs)
    assert (bob.name, bob.num_jobs, bob.gpu_seconds, bob.wait_mean_seconds) == ("bob", 2, 600, (300 + 250) / 2)
    assert ann.name == "ann"
    assert ann.worst_rho == pytest.approx(300 / (300 * 1.5))


def test_frontier_runs_from_completion_time_to_fairness() -> None:
    queue = [job(str(i), 400.0 + 900 * (i % 5), arrival=200.0 * i, gpus=1 + i % 2) for i in range(60)]
    points = {p.name: p for p in frontier(queue, CLUSTER, policies=("srtf", "longest_first"), fairness=(0, 1, 8))}
    assert list(points) == [
        "guarded, fairness 0", "guarded, fairness 1 (default)", "guarded, fairness 8", "srtf", "longest_first",
    ]  # fmt: skip
    quick, fair = points["guarded, fairness 0"].metrics, points["guarded, fairness 8"].metrics
    assert quick.jct_mean_seconds < fair.jct_mean_seconds
    assert quick.worst_rho_themis > fair.worst_rho_themis
    assert any(p.undominated for p in points.values())
    assert not all(p.undominated for p in points.values())


def test_study_of_a_trace() -> None:
    records = [
        JobRecord(job=job("a", 100, user="ann"), wait_seconds=10.0, status="Pass"),
        JobRecord(
            job=job("b", 100, gpus=2, arrival=100, user="bob"), wait_seconds=50.0, num_servers=2, utilisation=0.5
        ),
        JobRecord(job=job("c", 300, gpus=2, arrival=200, user="bob"), num_servers=1, utilisation=0.9),
    ]
    study = analyse(records)
    assert (study.num_jobs, study.gpu_seconds, study.mean_demand_gpus) == (3, 900.0, 4.5)
    one, two = study.by_gang
    assert (one.name, one.wait_median_seconds, two.wait_median_seconds, two.utilisation_mean) == ("1 GPU", 10, 50, 0.7)
    assert [(part.name, part.utilisation_mean) for part in study.by_spread] == [("1 server", 0.9), ("2 servers", 0.5)]
    assert [part.name for part in study.by_status] == ["Pass"]
    users = next(skew for skew in study.skews if skew.over == "users")
    assert users.num_owners == 2
    assert users.top_10_percent == pytest.approx(800 / 900)
    assert users.gini == pytest.approx(800 / 900 - 0.5)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (3599, "1 h 00 min"),
        (7260, "2 h 01 min"),
        (200_000, "2 d 08 h"),
        (-60, "-60 s"),
    ],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def test_regimes_of_a_job() -> None:
    regimes = (Regime(num_units=2, seconds_per_unit=10.0), Regime(num_units=1, seconds_per_unit=5.0))
    two = Job(id="j", gpus=1, regimes=regimes)
    assert (two.num_units, two.exclusive_seconds, two.seconds_after(1.5), two.seconds_after(9)) == (3, 25, 10, 0)
    assert (two.seconds_per_unit_at(1.9), two.seconds_per_unit_at(2.0), two.seconds_per_unit_at(7)) == (10, 5, 5)
