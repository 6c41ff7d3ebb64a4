"""What Slurm's `sacct` prints.

In: `sacct -P --allocations --format=JobID,User,Partition,State,Submit,Start,Elapsed,Timelimit,NNodes,ReqTRES` (or
AllocTRES). Out: jobs with GPUs; those that are over are history if others are not, else they are a trace to study. A
job that is over took its Elapsed time; one that waits or runs is expected to take its Timelimit.
Never: count job steps (ids with a dot), or jobs without GPUs; both are left out and noted.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path

from foresee.cluster.formats.record import JobFile, JobRecord, Row
from foresee.cluster.formats.text import delimited_rows
from foresee.cluster.job import Job, work_of_seconds

REQUIRED = ("jobid", "state", "submit", "elapsed", "timelimit")
GPUS = re.compile(r"gres/gpu=(\d+)")


def read_sacct(path: Path) -> JobFile:
    rows = [row for row in delimited_rows(path, delimiter="|", required=REQUIRED) if "." not in row.text("jobid")]
    with_gpus = [(row, gpus) for row in rows if (gpus := _gpus(row)) and (_is_queue(row) or _seconds(row, "elapsed"))]
    origin = min((row.moment("submit") for row, _ in with_gpus), default=datetime.min)
    now = max((_latest(row) for row, _ in with_gpus), default=origin)
    has_queue = any(_is_queue(row) for row, _ in with_gpus)
    records = tuple(_record(row, gpus, origin, has_queue) for row, gpus in with_gpus)
    left_out = len(rows) - len(records)
    return JobFile(
        records=records,
        now_seconds=(now - origin).total_seconds() if has_queue else 0.0,
        notes=(f"{left_out} jobs without GPUs or run time were left out",) if left_out else (),
    )


def _record(row: Row, gpus: int, origin: datetime, has_queue: bool) -> JobRecord:
    elapsed = _seconds(row, "elapsed")
    running = row.text("state") == "RUNNING"
    work = max(_seconds(row, "timelimit"), elapsed + 1) if _is_queue(row) else elapsed
    job = Job(
        id=row.text("jobid"),
        gpus=gpus,
        regimes=work_of_seconds(work),
        arrival_seconds=(row.moment("submit") - origin).total_seconds(),
        done_seconds=elapsed if running else 0.0,
        user=row.text("user"),
        kind=row.text("partition"),
    )
    started = _started(row)
    return JobRecord(
        job=job,
        wait_seconds=None if started is None else (started - row.moment("submit")).total_seconds(),
        num_servers=row.count("nnodes") if row.has("nnodes") else None,
        status=row.text("state"),
        finished=has_queue and not _is_queue(row),
    )


def _is_queue(row: Row) -> bool:
    return row.text("state") in ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED")


def _started(row: Row) -> datetime | None:
    return row.moment("start") if row.text("start") not in ("", "Unknown", "None") else None


def _latest(row: Row) -> datetime:
    """The last moment this row knows of: no earlier than its submission, nor than the end of what has run."""
    started = _started(row)
    ran_until = started + timedelta(seconds=_seconds(row, "elapsed")) if started else row.moment("submit")
    return max(row.moment("submit"), ran_until) if _is_queue(row) else row.moment("submit")


def _gpus(row: Row) -> int:
    for name in ("reqtres", "alloctres"):
        if found := GPUS.search(row.text(name)):
            return int(found.group(1))
    return 0


def _seconds(row: Row, name: str) -> float:
    """Slurm's [days-]hours:minutes:seconds."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?", row.text(name))
    if not found:
        raise row.complain(f"{name} is {row.text(name)!r}; expected a duration such as 1-02:30:00")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
