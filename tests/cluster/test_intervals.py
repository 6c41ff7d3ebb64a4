"""Intervals hold as often as they say, are points where all is known, and grow with what is not."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from foresee.cluster.estimators import oracle
from foresee.cluster.generator import STUDIES, generate
from foresee.cluster.job import Cluster, Job, work_of_seconds
from foresee.cluster.plan import COVERAGE, make_plan, predict
from foresee.cluster.policies import POLICIES
from foresee.cluster.policies.guarded import NO_LAXITY, RANKED, SHORT
from foresee.cluster.questions import explain
from foresee.errors import PlanError
from foresee.tools.cli.cluster import app

CLUSTER = Cluster(gpus=2)
JOBS = [Job(id=str(i), gpus=1 + i % 2, regimes=work_of_seconds(900.0 + 700 * i)) for i in range(7)]


def test_what_is_known_exactly_is_a_point() -> None:
    made = make_plan(JOBS, CLUSTER, estimator="oracle", intervals=True)
    for fate in made.fates.values():
        assert fate.interval is not None
        assert fate.interval.start_least == fate.interval.start_most == fate.start_seconds
        assert fate.interval.finish_least == fate.interval.finish_most == fate.finish_seconds


def test_intervals_grow_with_the_error_and_with_arrivals_to_come() -> None:
    widths = {}
    history = [Job(id=f"h{i}", gpus=1, regimes=work_of_seconds(600.0), arrival_seconds=600.0 * i) for i in range(10)]
    for name, error, before in (("small", 0.05, ()), ("large", 0.8, ()), ("busy", 0.05, history)):
        made = make_plan(JOBS, CLUSTER, intervals=True, error=error, history=before, start_seconds=6_000.0)
        around = [fate.interval for fate in made.fates.values() if fate.interval]
        widths[name] = float(np.mean([i.finish_most - i.finish_least for i in around]))
    assert widths["large"] > 3 * widths["small"]
    assert widths["busy"] > 1.5 * widths["small"]


def test_nobody_arrives_once_submissions_close() -> None:
    history = [Job(id=f"h{i}", gpus=2, regimes=work_of_seconds(900.0), arrival_seconds=600.0 * i) for i in range(10)]
    widths = []
    for closes in (6_000.0, 7_000.0, 20_000.0):
        found = predict(
            JOBS, CLUSTER, POLICIES["srtf"], estimator=oracle, errors={}, start_seconds=6_000.0, history=history,
            closes_seconds=closes,
        )  # fmt: skip
        widths.append(sum(interval.finish_most - interval.finish_least for interval in found.values()))
    assert widths[0] == 0.0 < widths[1] < widths[2]


def test_four_times_in_five_the_truth_lies_within() -> None:
    """Run times truly off by a log-normal factor of the spread the plan was told of."""
    assert COVERAGE == 0.8
    within = []
    for seed in range(12):
        rng = np.random.default_rng([7, seed])
        jobs = [Job(id=f"{seed}-{i}", gpus=1, regimes=work_of_seconds(float(rng.uniform(600, 6000)))) for i in range(8)]
        true = [
            Job(id=job.id, gpus=1, regimes=work_of_seconds(job.exclusive_seconds * float(np.exp(0.5 * rng.normal()))))
            for job in jobs
        ]
        made = make_plan(jobs, CLUSTER, policy="fifo", intervals=True, error=0.5)
        happened = make_plan(true, CLUSTER, policy="fifo")
        for id, fate in made.fates.items():
            assert fate.interval is not None
            within.append(fate.interval.finish_least <= happened.fates[id].finish_seconds <= fate.interval.finish_most)
    assert 0.7 <= np.mean(within) <= 0.9


def test_the_command_and_its_page_show_them(tmp_path: Path) -> None:
    jobs, page, out = tmp_path / "jobs.csv", tmp_path / "page.html", tmp_path / "plan.json"
    jobs.write_text("id,gpus,seconds\na,2,3600\nb,1,7200\nc,2,1800\n")
    arguments = ["plan", str(jobs), "--gpus", "2", "--error", "0.5", "--page", str(page), "--json", str(out)]
    result = CliRunner(env={"COLUMNS": "220"}).invoke(app, arguments)
    assert result.exit_code == 0
    assert "80 % within" in result.output
    interval = json.loads(out.read_text())["jobs"][-1]["interval"]
    assert interval["finish_least"] < interval["finish_most"]
    assert "When each job starts and ends" in page.read_text(encoding="utf-8")
    plain = CliRunner(env={"COLUMNS": "220"}).invoke(app, [*arguments[:4], "--no-intervals"])
    assert " – " not in plain.output


def test_explain_gives_the_reason_of_the_policy() -> None:
    made = make_plan(JOBS, CLUSTER)
    text = " ".join(explain(made, id) for id in made.fates)
    assert any(f"It starts because {reason}." in text for reason in (SHORT, NO_LAXITY, RANKED))
    assert "Of those it waits for most ran because" in text
    assert "because" not in explain(make_plan(JOBS, CLUSTER, policy="fifo"), "6")


@pytest.mark.parametrize("study", STUDIES)
def test_generated_traces_have_their_load_and_their_study(study: str) -> None:
    jobs = generate(study, num_jobs=400, gpus=32, load=1.5, seed=3)
    assert jobs == generate(study, num_jobs=400, gpus=32, load=1.5, seed=3)
    assert jobs != generate(study, num_jobs=400, gpus=32, load=1.5, seed=4)
    span = max(job.arrival_seconds for job in jobs)
    work = sum(job.gpus * job.exclusive_seconds for job in jobs)
    assert work / span / 32 == pytest.approx(1.5, rel=0.1)
    assert {job.gpus for job in jobs} <= set(STUDIES[study].gangs)
    changing = np.mean([job.changes_speed for job in jobs])
    assert changing == pytest.approx(STUDIES[study].regime_share, abs=0.1)
    together = len(jobs) / len({job.arrival_seconds for job in jobs})
    assert together == pytest.approx(STUDIES[study].burst_mean, rel=0.35)


@pytest.mark.parametrize("wrong", [{"study": "x"}, {"num_jobs": 0}, {"load": 0.0}, {"seed": -1}])
def test_traces_that_cannot_be_generated(wrong: dict[str, object]) -> None:
    with pytest.raises(PlanError):
        generate(**{"study": "pai", "num_jobs": 5, "gpus": 8, "load": 1.0, "seed": 1, **wrong})  # type: ignore[arg-type]
