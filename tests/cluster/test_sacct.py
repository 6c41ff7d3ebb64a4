"""`sacct -P` as real clusters print it: typed GPUs, arrays, no limits, running jobs, heterogeneous jobs."""

from dataclasses import replace
from pathlib import Path

import pytest

from foresee.cluster.exports import export
from foresee.cluster.formats import JobFile, read_jobs
from foresee.cluster.job import Cluster
from foresee.cluster.plan import make_plan
from foresee.cluster.questions import explain
from foresee.errors import DataError, PlanError

HEADER = "JobID|User|Partition|State|Submit|Start|Elapsed|Timelimit|NNodes|ReqTRES\n"
# Slurm 23.11 with typed GPUs, as sacct --allocations prints it.
EXCERPT = (
    HEADER
    + """\
998|ann|gpu|CANCELLED by 1001|2026-03-02T06:00:00|None|00:00:00|08:00:00|1|billing=8,cpu=8,gres/gpu:a100=1
999|ann|gpu|TIMEOUT|2026-03-02T06:10:00|2026-03-02T06:10:03|02:00:15|02:00:00|1|billing=8,cpu=8,gres/gpu=1,mem=64G
1001|ann|gpu|RUNNING|2026-03-02T08:00:00|2026-03-02T08:45:00|01:15:00|1-00:00:00|2|billing=96,cpu=96,gres/gpu:a100=16
1002|bob|gpu|PENDING|2026-03-02T08:30:00|Unknown|00:00:00|UNLIMITED|1|cpu=8,gres/gpu:a100=2,gres/gpu:h100=1
1003_[1-4]|eve|gpu|PENDING|2026-03-02T09:00:00|Unknown|00:00:00|02:00:00|1|cpu=4,gres/gpu:a100_1g.5gb=1,mem=16G
1004_[7,9-13:2%2]|eve|long|PENDING|2026-03-02T09:10:00|2026-03-05T00:00:00|00:00:00|Partition_Limit|1|gres/gpu=4
1005+0|dan|gpu|PENDING|2026-03-02T09:20:00|Unknown|00:00:00|06:00:00|1|cpu=4,gres/gpu:a100=8
1005+1|dan|cpu|PENDING|2026-03-02T09:20:00|Unknown|00:00:00|06:00:00|2|cpu=128,mem=512G
1005+2|dan|gpu|PENDING|2026-03-02T09:20:00|Unknown|00:00:00|06:00:00|1|cpu=4,gres/gpu:a100=4
1006|dan|gpu|SUSPENDED|2026-03-02T09:30:00|2026-03-02T09:31:00|00:10:00|01:00:00|1|gres/gpu:a100=1
"""
)


@pytest.fixture
def queue(tmp_path: Path) -> JobFile:
    path = tmp_path / "queue.txt"
    path.write_text(EXCERPT)
    return read_jobs(path)


def test_every_job_is_read_with_its_gpus_and_run_time(queue: JobFile) -> None:
    found = {job.id: (job.gpus, job.exclusive_seconds / 3600) for job in queue.jobs}
    assert found == {
        "1001": (16, 24),
        "1002": (3, 24),  # no limit: the longest of its partition
        **{f"1003_{task}": (1, 2) for task in (1, 2, 3, 4)},
        **{f"1004_{task}": (4, 24) for task in (7, 9, 11, 13)},
        "1005": (12, 6),
        "1006": (1, 1),
    }
    assert {job.id for job in queue.jobs if job.runs_at_begin} == {"1001"}
    assert {job.id for job in queue.jobs if job.paused} == {"1006"}  # suspended: it has run and pays to come back
    assert queue.records[0].job.id == "999"
    assert queue.now_seconds == (3 * 60 + 50) * 60  # 10:00, when the running job had run for 75 minutes
    assert queue.notes == (
        "1 job without GPUs or run time was left out",
        "2 jobs without a time limit are taken to run 24 h 00 min, the longest limit of the partition",
        "the limit of tasks at once (%) of 1 job array is not part of the plan",
    )


def test_a_running_job_keeps_its_gpus_and_has_waited_what_it_waited(queue: JobFile) -> None:
    made = make_plan(queue.jobs, Cluster(gpus=16), start_seconds=queue.now_seconds)
    running = made.fates["1001"]
    assert running.wait_seconds == 45 * 60
    assert running.finish_seconds == queue.now_seconds + (24 - 1.25) * 3600
    assert running.num_pieces == 1
    assert "It has been running since" in explain(made, "1001")
    assert "It waited 45 min and keeps its GPUs." in explain(made, "1001")
    other = replace(queue.jobs[0], id="other")
    with pytest.raises(PlanError, match=r"the jobs that are running hold 32 GPUs and the cluster has 24"):
        make_plan([*queue.jobs, other], Cluster(gpus=24), start_seconds=queue.now_seconds)


def test_the_order_names_every_waiting_task_as_scontrol_knows_it(queue: JobFile) -> None:
    made = make_plan(queue.jobs, Cluster(gpus=24), start_seconds=queue.now_seconds)
    lines = export(made, "slurm").splitlines()
    named = {line.split()[2].removeprefix("JobId=") for line in lines[1:]}
    assert named == {job.id for job in queue.jobs} - {"1001"}
    assert lines[0].startswith("# order of 11 jobs")


def test_a_file_without_any_limit_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "queue.txt"
    lines = [
        "7|a|p|RUNNING|2026-03-01T00:00:00|2026-03-01T00:00:00|2-00:00:00|UNLIMITED|1|gres/gpu=1",
        "8|a|p|PENDING|2026-03-01T00:00:00|Unknown|00:00:00|UNLIMITED|1|gres/gpu=1",
    ]
    path.write_text(HEADER + "\n".join(lines))
    runs, waits = read_jobs(path).jobs
    assert (runs.exclusive_seconds, waits.exclusive_seconds) == (4 * 86_400, 86_400)


@pytest.mark.parametrize("id", ["1_[1-4,...]", "1_[]", "1_[a]", "1_[1-9:0]", "1_[0-999999999]"])
def test_an_array_that_cannot_be_read_says_so(tmp_path: Path, id: str) -> None:
    path = tmp_path / "queue.txt"
    path.write_text(HEADER + f"{id}|a|p|PENDING|2026-03-01T00:00:00|Unknown|00:00:00|01:00:00|1|gres/gpu=1\n")
    with pytest.raises(DataError, match=r"queue.txt:2: jobid is '1_"):
        read_jobs(path)
