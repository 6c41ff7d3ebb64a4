"""Traces of Gavel (Narayanan et al., OSDI '20) and of what was built on it.

In: a `.trace` file, ten fields with tabs between: job type, command, folder, name of the steps argument, whether it
needs data, steps, GPUs, weight, SLO, arrival. Speeds are not in it: they are taken from `simulation_throughputs.json`
(or `physical_cluster_throughputs.json`) in the trace's folder or one above, for the GPU type V100. Out: jobs.
Never: guess a speed; a job type and number of GPUs that the table lacks is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foresee.cluster.formats.record import JobFile, JobRecord, Row, left_out
from foresee.cluster.formats.shockwave import read_json
from foresee.cluster.formats.text import delimited_rows
from foresee.cluster.job import Job, Regime, work_of_seconds
from foresee.errors import DataError

COLUMNS = (
    "job type", "command", "folder", "steps argument", "needs data", "steps", "gpus", "weight", "slo", "arrival",
)  # fmt: skip

SPEED_FILES = ("simulation_throughputs.json", "physical_cluster_throughputs.json")

FOLDERS_UP = 3

GPU_TYPE = "v100"


def read_gavel(path: Path) -> JobFile:
    rows = delimited_rows(path, delimiter="\t", required=COLUMNS, header=COLUMNS)
    where, speeds = _speeds(path)
    records = [JobRecord(job=_job(row, index, where, speeds)) for index, row in enumerate(rows)]
    return JobFile(records=tuple(sorted(records, key=lambda record: record.job.arrival_seconds)))


def _speeds(path: Path) -> tuple[Path, Mapping[str, Any]]:
    folders = [path.resolve().parent, *path.resolve().parent.parents][: FOLDERS_UP + 1]
    for candidate in (folder / name for folder in folders for name in SPEED_FILES):
        if candidate.is_file():
            table = read_json(candidate)
            if not isinstance(table, dict) or not isinstance(table.get(GPU_TYPE), dict):
                raise DataError(f"{candidate}: no speeds of {GPU_TYPE} in it; expected an object under {GPU_TYPE!r}")
            return candidate, table[GPU_TYPE]
    raise DataError(f"{path}: the speeds of its jobs are not beside it; put {SPEED_FILES[0]} of Gavel into its folder")


def _job(row: Row, index: int, where: Path, speeds: Mapping[str, Any]) -> Job:
    kind, gpus = row.text("job type"), row.count("gpus")
    entry = speeds.get(f"('{kind}', {gpus})")
    speed = entry.get("null") if isinstance(entry, dict) else None
    if not isinstance(speed, int | float) or not speed > 0:
        raise row.complain(f"{kind} on {gpus} GPUs has no speed in {where}; expected steps per second above 0")
    return Job(
        id=str(index),
        gpus=gpus,
        regimes=(Regime(num_units=float(row.count("steps")), seconds_per_unit=1 / speed),),
        arrival_seconds=row.number("arrival", least=0.0),
        weight=row.number("weight", above=0.0),
        kind=kind,
    )


REQUIRED = ("job_id", "gpu_num", "submit_time", "duration")


def read_helios(path: Path) -> JobFile:
    table = delimited_rows(path, required=REQUIRED)
    kept = [row for row in table if row.count("gpu_num", least=0) and row.number("duration", least=0.0)]
    rows = sorted(((row.moment("submit_time"), row) for row in kept), key=lambda pair: pair[0])
    records = tuple(_record(row, (moment - rows[0][0]).total_seconds()) for moment, row in rows)
    return JobFile(records=records, notes=tuple(left_out(len(table) - len(kept), "job", "without GPUs or run time")))


def _record(row: Row, arrival_seconds: float) -> JobRecord:
    job = Job(
        id=row.text("job_id"),
        gpus=row.count("gpu_num"),
        regimes=work_of_seconds(row.number("duration", above=0.0)),
        arrival_seconds=arrival_seconds,
        user=row.text("user"),
        kind=row.text("vc"),
    )
    return JobRecord(
        job=job,
        wait_seconds=row.number("queue", least=0.0) if row.has("queue") else None,
        num_servers=row.count("node_num") if row.has("node_num") else None,
        status=row.text("state"),
    )


def read_philly(path: Path) -> JobFile:
    table = delimited_rows(path, required=("timestamp", "duration", "num_gpus"))
    rows = sorted(((row.moment("timestamp"), row) for row in table), key=lambda pair: pair[0])
    records = [
        _philly_record(row, (moment - rows[0][0]).total_seconds(), index) for index, (moment, row) in enumerate(rows)
    ]
    return JobFile(records=tuple(records))


def _philly_record(row: Row, arrival_seconds: float, index: int) -> JobRecord:
    job = Job(
        id=row.text("jobid", default=f"row-{index + 1}"),
        gpus=row.count("num_gpus"),
        regimes=work_of_seconds(row.number("duration", above=0.0)),
        arrival_seconds=arrival_seconds,
        user=row.text("user"),
        kind=row.text("cluster") or row.text("vc"),
    )
    return JobRecord(
        job=job,
        wait_seconds=row.number("wait", least=0.0) if row.has("wait") else None,
        num_servers=row.count("servers") if row.has("servers") else None,
        utilisation=row.number("utilisation", least=0.0) if row.has("utilisation") else None,
        status=row.text("status"),
    )
