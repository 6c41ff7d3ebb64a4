"""Readers: what a good file gives, and where a bad one is wrong."""

import gzip
import json
from pathlib import Path

import pytest

from foresee.cluster.formats import format_of, read_jobs
from foresee.cluster.formats.shockwave import read_results, read_trace
from foresee.errors import DataError


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_csv_with_seconds_and_regimes(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "jobs.csv",
        "id,gpus,seconds,regimes,arrival,weight,user,done\na,2,600,,5,2,ann,60\nb,1,,11x62.5;10x40,0,,bob,\n",
    )
    first, second = read_jobs(path).jobs
    assert (first.id, first.gpus, first.exclusive_seconds, first.arrival_seconds) == ("a", 2, 600.0, 5.0)
    assert (first.weight, first.user, first.done_seconds, first.left_seconds) == (2.0, "ann", 60.0, 540.0)
    assert second.exclusive_seconds == 11 * 62.5 + 10 * 40
    assert second.seconds_after(11) == 400.0


def test_a_paused_job_is_told_from_a_running_one(tmp_path: Path) -> None:
    path = write(tmp_path, "jobs.csv", "id,gpus,seconds,done,paused\na,1,600,60,yes\nb,1,600,60,\nc,1,600,0,no\n")
    assert [job.runs_at_begin for job in read_jobs(path).jobs] == [False, True, False]
    (paused,) = read_jobs(
        write(tmp_path, "a.json", json.dumps({"id": 1, "gpus": 1, "seconds": 60, "done": 5, "paused": True}))
    ).jobs
    assert paused.paused


def test_json_array_object_and_single_job(tmp_path: Path) -> None:
    jobs = [{"id": 1, "gpus": 2, "regimes": [[3, 10.0], [2, 5]]}, {"id": 2, "gpus": 1, "seconds": 60}]
    for name, content in {"a.json": jobs, "b.json": {"jobs": jobs}}.items():
        read = read_jobs(write(tmp_path, name, json.dumps(content))).jobs
        assert [(job.id, job.exclusive_seconds) for job in read] == [("1", 40.0), ("2", 60.0)]
    (single,) = read_jobs(write(tmp_path, "c.json", json.dumps(jobs[1]))).jobs
    assert single.id == "2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,gpus,seconds\na,1,60\nb,two,60\n", r":3: gpus is 'two'; gpus must be a number of at least 1"),
        ("id,gpus,seconds\na,1.5,60\n", r":2: gpus is '1.5'; gpus must be a whole number"),
        ("id,gpus,seconds\na,0,60\n", r":2: gpus is '0'; gpus must be a number of at least 1"),
        ("id,gpus,seconds\na,1,-5\n", r":2: seconds is '-5'; seconds must be a number above 0"),
        ("id,gpus,seconds\na,1,nan\n", r":2: seconds is 'nan'"),
        ("id,gpus,seconds\n,1,60\n", r":2: id is missing"),
        ("id,gpus,seconds,done,paused\na,1,60,5,maybe\n", r":2: paused is 'maybe'; paused must be yes or no"),
        ("id,gpus,seconds\na,1\n", r":2: 2 cells, expected 3"),
        ("id,gpus,seconds,regimes\na,1,60,1x2\n", r":2: expected the work either as seconds or as regimes"),
        ("id,gpus,regimes\na,1,3\n", r":2: regimes is '3'; expected pieces of units and seconds per unit"),
        ("id,gpus,regimes\na,1,3xfast\n", r":2: seconds per unit of a regime is 'fast'"),
        ("name,cores\na,1\n", r":1: the header has name, cores and lacks id, gpus"),
        ("id,gpus,seconds\n", r"no jobs with GPUs in it"),
    ],
)
def test_bad_tables_say_where_and_what(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_jobs(write(tmp_path, "jobs.csv", text))


def test_bad_json_says_where(tmp_path: Path) -> None:
    text = '[\n {"id": "a", "gpus": 1, "seconds": 5},\n {"id": "b", "gpus": -1, "seconds": 5}\n]\n'
    with pytest.raises(DataError, match=r"jobs.json:3: gpus is -1"):
        read_jobs(write(tmp_path, "jobs.json", text))
    with pytest.raises(DataError, match=r"broken.json:2: not valid JSON"):
        read_jobs(write(tmp_path, "broken.json", '{"jobs": [\n}'))
    with pytest.raises(DataError, match=r"list.json:2: 5 found; expected an object"):
        read_jobs(write(tmp_path, "list.json", "[\n5]"))
    with pytest.raises(DataError, match=r"cannot be read"):
        read_jobs(tmp_path / "absent.json")


def test_philly_style_table(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv.gz"
    text = (
        "timestamp,duration,num_gpus,cluster,user,wait,servers,utilisation,status\n"
        "2017-10-09 07:01:55,66,1,vc1,ann,30,1,0.5,Pass\n2017-10-09 07:00:55,100,8,vc2,bob,,2,,Killed\n"
    )
    path.write_bytes(gzip.compress(text.encode()))
    first, second = read_jobs(path).records
    assert (first.job.gpus, first.job.arrival_seconds, first.wait_seconds, first.num_servers) == (8, 0.0, None, 2)
    assert (second.job.arrival_seconds, second.utilisation, second.job.kind) == (60.0, 0.5, "vc1")
    with pytest.raises(DataError, match=r"bad.csv:2: timestamp is 'yesterday'; timestamp must be a date and time"):
        read_jobs(write(tmp_path, "bad.csv", "timestamp,duration,num_gpus\nyesterday,1,1\n"))


SACCT = """JobID|User|Partition|State|Submit|Start|Elapsed|Timelimit|NNodes|ReqTRES
101|ann|gpu|COMPLETED|2024-01-01T00:00:00|2024-01-01T00:10:00|01:00:00|1-00:00:00|1|cpu=8,gres/gpu=4
101.batch||gpu|COMPLETED|2024-01-01T00:00:00|2024-01-01T00:10:00|01:00:00||1|cpu=8
102|bob|gpu|RUNNING|2024-01-01T00:30:00|2024-01-01T01:00:00|00:20:00|02:00:00|2|gres/gpu:a100=8,gres/gpu=8
103|eve|gpu|PENDING|2024-01-01T01:00:00|Unknown|00:00:00|04:00:00|1|gres/gpu=1
104|eve|cpu|PENDING|2024-01-01T01:00:00|Unknown|00:00:00|04:00:00|1|cpu=4
"""


def test_sacct(tmp_path: Path) -> None:
    path = write(tmp_path, "sacct.txt", SACCT)
    assert format_of(path) == "sacct"
    read = read_jobs(path)
    done, running, waiting = read.records
    assert [record.job.id for record in read.records] == ["101", "102", "103"]
    assert (done.job.exclusive_seconds, done.wait_seconds, done.job.gpus) == (3600.0, 600.0, 4)
    assert (running.job.exclusive_seconds, running.job.done_seconds, running.num_servers) == (7200.0, 1200.0, 2)
    assert (waiting.job.exclusive_seconds, waiting.job.arrival_seconds, waiting.job.done_seconds) == (
        14400.0,
        3600.0,
        0,
    )
    assert read.now_seconds == 4800.0
    assert [job.id for job in read.jobs] == ["102", "103"]
    assert read.notes == ("1 job without GPUs or run time was left out",)
    with pytest.raises(DataError, match=r"sacct.txt:2: elapsed is 'long'; expected a duration such as 1-02:30:00"):
        read_jobs(write(tmp_path, "sacct.txt", SACCT.replace("|01:00:00|1-00", "|long|1-00")))


def test_sacct_of_finished_jobs_only_is_a_trace(tmp_path: Path) -> None:
    read = read_jobs(write(tmp_path, "sacct.txt", "\n".join(SACCT.splitlines()[:3]) + "\n"))
    assert [job.id for job in read.jobs] == ["101"]
    assert read.now_seconds == 0.0


def workload(
    name: str, *, gpus: int = 2, count: int = 2, seconds: int | None = 3600, **status: object
) -> dict[str, object]:
    spec: dict[str, object] = {
        "queueName": "team",
        "podSets": [
            {
                "count": count,
                "template": {"spec": {"containers": [{"resources": {"requests": {"nvidia.com/gpu": gpus}}}]}},
            }
        ],
    }
    if seconds is not None:
        spec["maximumExecutionTimeSeconds"] = seconds
    metadata = {"name": name, "namespace": "ann", "creationTimestamp": "2024-01-01T00:00:00Z"}
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "metadata": metadata, "spec": spec, "status": status}


def test_kueue_export(tmp_path: Path) -> None:
    admitted = [{"type": "Admitted", "status": "True", "lastTransitionTime": "2024-01-01T00:10:00Z"}]
    finished = [{"type": "Finished", "status": "True", "lastTransitionTime": "2024-01-01T00:05:00Z"}]
    late = workload("late")
    late["metadata"] = {"name": "late", "creationTimestamp": "2024-01-01T00:20:00Z"}
    items = [
        workload("runs", conditions=admitted),
        workload("over", conditions=finished),
        late,
        workload("cpu", gpus=0),
    ]
    read = read_jobs(write(tmp_path, "workloads.json", json.dumps({"items": items})))
    runs, waits = read.records
    assert (runs.job.gpus, runs.job.done_seconds, runs.wait_seconds, runs.job.kind) == (4, 600.0, 600.0, "team")
    assert (waits.job.id, waits.job.arrival_seconds, waits.job.done_seconds) == ("late", 1200.0, 0.0)
    assert read.now_seconds == 1200.0
    assert len(read.notes) == 2


def test_kueue_export_without_run_time_says_what_to_add(tmp_path: Path) -> None:
    items = [workload("a"), workload("b", seconds=None)]
    path = write(tmp_path, "workloads.json", '{"items": [\n' + ",\n".join(map(json.dumps, items)) + "]}")
    with pytest.raises(
        DataError, match=r"workloads.json:3: b has no run time; expected the annotation foresee/run-seconds"
    ):
        read_jobs(path)


def test_volcano_export(tmp_path: Path) -> None:
    pod = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "4"}}}], "activeDeadlineSeconds": 900}
    item = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "metadata": {"name": "train", "namespace": "bob", "creationTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {"queue": "q", "tasks": [{"replicas": 2, "template": {"spec": pod}}]},
        "status": {
            "state": {"phase": "Running"},
            "conditions": [{"status": "Running", "lastTransitionTime": "2024-01-01T00:01:00Z"}],
        },
    }
    (record,) = read_jobs(write(tmp_path, "jobs.json", json.dumps({"items": [item]})), "volcano").records
    assert (record.job.gpus, record.job.exclusive_seconds, record.job.user, record.status) == (
        8,
        900.0,
        "bob",
        "RUNNING",
    )


def test_shockwave_files_that_are_not(tmp_path: Path) -> None:
    path = write(tmp_path, "trace.json", '{"steps_per_second": {}, "jobs": [{}], "gpus": 4, "round_seconds": 120}')
    with pytest.raises(DataError, match=r"not a Shockwave trace .*expected gpus, round_seconds"):
        read_trace(path)
    with pytest.raises(DataError, match=r"not a file of stored results"):
        read_results(path)


def test_published_files_are_recognised(published: Path) -> None:
    trace, philly = published / "shockwave_trace_64gpu.json.gz", published / "philly_jobs.csv.gz"
    assert (format_of(trace), format_of(philly)) == ("shockwave", "philly")
    read = read_jobs(trace)
    assert len(read.records) == 220
    assert read.cluster is not None
    assert read.cluster.gpus == 64


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"format 'xml' is not known; choose one of csv"):
        read_jobs(write(tmp_path, "a.csv", "id,gpus\n"), "xml")
