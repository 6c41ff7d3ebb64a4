"""Alibaba's PAI traces of 2020 (Weng et al., NSDI '22).

In: `pai_task_table.csv`, whose columns are job_name, task_name, inst_num, status, start_time, end_time, plan_cpu,
plan_mem, plan_gpu (per cent of a GPU), gpu_type, with or without that line at its head; or the job table of the
published simulator (job_id, num_gpu, num_inst, submit_time, duration). Out: records in order of arrival. The tasks of
a job are one gang, from the first start to the last end; a job that shares a GPU is planned with a whole one.
Never: keep jobs without GPUs or without a start and an end; they are left out and noted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from foresee.cluster.formats.record import JobFile, JobRecord, Row, left_out, read_text
from foresee.cluster.formats.text import delimited_rows
from foresee.cluster.job import Job, work_of_seconds

TASK_COLUMNS = (
    "job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
    "gpu_type",
)  # fmt: skip
JOB_COLUMNS = ("job_id", "num_gpu", "num_inst", "submit_time", "duration")


def read_pai(path: Path) -> JobFile:
    head = read_text(path).split("\n", 1)[0].lower()
    records, total = _of_jobs(path) if "num_inst" in head and "duration" in head else _of_tasks(path, head)
    first = min((record.job.arrival_seconds for record in records), default=0.0)
    shifted = sorted((_shifted(record, first) for record in records), key=lambda record: record.job.arrival_seconds)
    return JobFile(
        records=tuple(shifted), notes=tuple(left_out(total - len(shifted), "job", "without GPUs or run time"))
    )


def _of_jobs(path: Path) -> tuple[list[JobRecord], int]:
    rows = delimited_rows(path, required=JOB_COLUMNS)
    return [record for row in rows if (record := _job_record(row)) is not None], len(rows)


def _job_record(row: Row) -> JobRecord | None:
    gpus = math.ceil(row.number("num_gpu", default=0.0, least=0.0) * row.number("num_inst", default=1.0, least=1.0))
    seconds = row.number("duration", default=0.0)
    if not gpus or seconds <= 0:
        return None
    job = _job(row, row.text("job_id"), gpus, row.number("submit_time"), seconds, row.text("user"))
    return JobRecord(job=job, wait_seconds=row.number("wait_time", least=0.0) if row.has("wait_time") else None)


def _of_tasks(path: Path, head: str) -> tuple[list[JobRecord], int]:
    header = None if "job_name" in head else TASK_COLUMNS
    grouped: dict[str, list[Row]] = {}
    for row in delimited_rows(path, required=TASK_COLUMNS, header=header):
        grouped.setdefault(row.text("job_name"), []).append(row)
    records = [_task_record(tasks) for tasks in grouped.values()]
    return [record for record in records if record is not None], len(grouped)


def _task_record(tasks: Sequence[Row]) -> JobRecord | None:
    timed = [row for row in tasks if row.has("start_time") and row.has("end_time")]
    share = sum(row.number("plan_gpu", default=0.0, least=0.0) * _instances(row) for row in timed)
    if not share:
        return None
    start = min(row.number("start_time", least=0.0) for row in timed)
    seconds = max(row.number("end_time", least=0.0) for row in timed) - start
    if seconds <= 0:
        return None
    first = timed[0]
    job = _job(first, first.text("job_name"), math.ceil(share / 100), start, seconds, first.text("user"))
    return JobRecord(job=job, status=first.text("status"))


def _instances(row: Row) -> float:
    return row.number("inst_num", default=1.0, least=0.0)


def _job(row: Row, id: str, gpus: int, arrival: float, seconds: float, user: str) -> Job:
    return Job(
        id=id,
        gpus=gpus,
        regimes=work_of_seconds(seconds),
        arrival_seconds=arrival,
        user=user,
        kind=row.text("gpu_type") or row.text("task_name"),
    )


def _shifted(record: JobRecord, first_seconds: float) -> JobRecord:
    job = replace(record.job, arrival_seconds=record.job.arrival_seconds - first_seconds)
    return replace(record, job=job)
