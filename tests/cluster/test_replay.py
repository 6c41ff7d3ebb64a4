"""The simulator against the published schedules: every second must agree."""

from dataclasses import replace

import pytest

from foresee.cluster.formats.shockwave import StoredResult, Trace
from foresee.cluster.job import Cluster, Job, work_of_seconds
from foresee.cluster.metrics import measure, rho_static, rho_themis
from foresee.cluster.reproduction import replay
from foresee.errors import PlanError

STORED = [
    "allox",
    "finish_time_fairness",
    "gandiva_fair",
    "max_min_fairness",
    "max_sum_throughput_perf",
    "min_total_duration",
    "new_orig_hyperparam_shockwave",
    "old_shockwave",
    "shockwave",
]


@pytest.mark.parametrize("name", STORED)
def test_stored_schedule_gives_the_stored_seconds(
    name: str, trace32: Trace, results32: dict[str, StoredResult]
) -> None:
    stored = results32[f"tacc_32gpus/{name}/simulation"]
    run = replay(trace32.jobs, trace32.cluster, stored.schedule)
    assert [outcome.job.id for outcome in run.outcomes] == [job.id for job in trace32.jobs]
    assert [outcome.jct_seconds for outcome in run.outcomes] == pytest.approx(list(stored.jct_seconds), abs=1e-6)
    assert run.makespan_seconds == pytest.approx(stored.makespan_seconds, abs=1e-6)
    assert measure(run).utilisation == pytest.approx(stored.utilisation, abs=1e-4)
    # The stored ratios are rounded to five places.
    assert rho_static(run) == pytest.approx(list(stored.rho_static), abs=5.1e-6)
    assert rho_themis(run) == pytest.approx(list(stored.rho_themis), abs=5.1e-6)


def test_a_cheaper_restart_does_not_replay(trace32: Trace, results32: dict[str, StoredResult]) -> None:
    """The comparison has teeth: one second of restart cost less and the schedule no longer fits its jobs."""
    stored = results32["tacc_32gpus/shockwave/simulation"]
    cheaper = replace(trace32.cluster, restart_seconds=19.0)
    try:
        run = replay(trace32.jobs, cheaper, stored.schedule)
    except PlanError:
        return
    assert [outcome.jct_seconds for outcome in run.outcomes] != pytest.approx(list(stored.jct_seconds), abs=1e-6)


def test_a_schedule_that_cannot_be_carried_out_names_its_round() -> None:
    work = work_of_seconds(100.0)
    jobs = [Job(id="a", gpus=2, regimes=work), Job(id="b", gpus=1, regimes=work)]
    cluster = Cluster(gpus=2)
    with pytest.raises(PlanError, match=r"round 0 .* needs more than 2 GPUs"):
        replay(jobs, cluster, [["a", "b"]])
    with pytest.raises(PlanError, match=r"round 1 .* runs job 'a', not live then"):
        replay(jobs, cluster, [["a"], ["a"]])
    with pytest.raises(PlanError, match=r"1 job unfinished, the first 'b'"):
        replay(jobs, cluster, [["a"]])
