"""What Slurm's `sacct` prints.

In: `sacct -P --allocations --format=JobID,User,Partition,State,Submit,Start,Elapsed,Timelimit,NNodes,ReqTRES` (or
AllocTRES). Out: jobs with GPUs; those that are over are history if others are not, else they are a trace to study. A
job that is over took its Elapsed time; one that waits or runs is expected to take its Timelimit, and one without a
limit the longest limit of its partition. An array `7_[1-4]` is four jobs; the parts `8+0`, `8+1` of a heterogeneous
job are one gang.
Never: count job steps (ids with a dot), or jobs without GPUs; both are left out and noted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from foresee.cluster.formats.record import JobFile, JobRecord, Row, left_out
from foresee.cluster.formats.text import delimited_rows
from foresee.cluster.job import Job, in_words, work_of_seconds
from foresee.io.units import counted

REQUIRED = ("jobid", "state", "submit", "elapsed", "timelimit")
GPUS = re.compile(r"gres/gpu=(\d+)")
TYPED_GPUS = re.compile(r"gres/gpu:[^=,]+=(\d+)")
ARRAY = re.compile(r"(\d+)_\[([^\]]*)\]")
STEP = re.compile(r"\.(?![^\[]*\])")
"""A dot, but for those that stand for tasks Slurm did not print: `7_[1-4,...]`."""
TASKS_MAX = 100_000
"""Slurm's own largest array is smaller; a longer one is a typing error."""
RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "RESIZING")
QUEUED = ("PENDING", "REQUEUED", "SUSPENDED")
NO_LIMIT = ("UNLIMITED", "Partition_Limit", "")
NO_LIMIT_SECONDS = 86_400.0
"""Run time of a job without a limit when no job of the file has one."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The rows of one job: one, or as many as a heterogeneous job has components."""

    id: str
    rows: Sequence[Row]

    @property
    def first(self) -> Row:
        return self.rows[0]

    @property
    def gpus(self) -> int:
        return sum(map(_gpus, self.rows))

    @property
    def state(self) -> str:
        return self.first.text("state")

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING

    @property
    def is_over(self) -> bool:
        return self.state not in (*RUNNING, *QUEUED)

    @property
    def elapsed_seconds(self) -> float:
        return max(_seconds(row, "elapsed") for row in self.rows)

    @property
    def limit_seconds(self) -> float | None:
        """None: without a limit."""
        limited = [row for row in self.rows if row.text("timelimit") not in NO_LIMIT]
        return max((_seconds(row, "timelimit") for row in limited), default=None)

    @property
    def submitted(self) -> datetime:
        return self.first.moment("submit")

    @property
    def started(self) -> datetime | None:
        """Of a job that waits Slurm may print when it expects to start it; that is no start."""
        known = self.state not in QUEUED and self.first.text("start") not in ("", "Unknown", "None")
        return max(self.first.moment("start"), self.submitted) if known else None

    @property
    def latest(self) -> datetime:
        """The last moment known of the job: no earlier than its submission, nor than the end of what has run."""
        ran_until = self.started + timedelta(seconds=self.elapsed_seconds) if self.started else self.submitted
        return self.submitted if self.is_over else max(self.submitted, ran_until)


def read_sacct(path: Path) -> JobFile:
    rows = [row for row in delimited_rows(path, delimiter="|", required=REQUIRED) if not STEP.search(row.text("jobid"))]
    found = _jobs(rows)
    kept = [parts for parts in found if parts.gpus and not (parts.is_over and not parts.elapsed_seconds)]
    origin = min((parts.submitted for parts in kept), default=datetime.min)
    now = max((parts.latest for parts in kept), default=origin)
    has_queue = any(not parts.is_over for parts in kept)
    limits = _Limits(kept)
    records = [record for parts in kept for record in _records(parts, limits.of(parts), origin, has_queue)]
    throttled = sum("%" in parts.id for parts in kept)
    notes = [*left_out(len(found) - len(kept), "job", "without GPUs or run time"), *limits.notes()]
    if throttled:
        notes.append(f"the limit of tasks at once (%) of {counted(throttled, 'job array')} is not part of the plan")
    return JobFile(
        records=tuple(records),
        now_seconds=(now - origin).total_seconds() if has_queue else 0.0,
        notes=tuple(notes),
    )


def _jobs(rows: Sequence[Row]) -> list[_Parts]:
    """Rows by job, the components of a heterogeneous job (`8+0`, `8+1`) together."""
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        leader, plus, _ = row.text("jobid").partition("+")
        grouped.setdefault(leader if plus else f"{leader} {row.line}", []).append(row)
    return [_Parts(rows[0].text("jobid").partition("+")[0], rows) for rows in grouped.values()]


class _Limits:
    """Run times for jobs that have no limit, from those that have one."""

    def __init__(self, jobs: Sequence[_Parts]) -> None:
        self._unlimited = [parts for parts in jobs if not parts.is_over and parts.limit_seconds is None]
        self._longest: dict[str, float] = {}
        for parts in jobs:
            for key in ("", parts.first.text("partition")):
                self._longest[key] = max(self._longest.get(key, 0.0), parts.limit_seconds or 0.0)

    def of(self, parts: _Parts) -> float:
        """Run time in all of a job that is not over."""
        if (limit := parts.limit_seconds) is not None:
            return max(limit, parts.elapsed_seconds + 1)
        # Who has run that long already is as likely to run as long again.
        return max(self._assumed(parts), 2 * parts.elapsed_seconds)

    def _assumed(self, parts: _Parts) -> float:
        return self._longest.get(parts.first.text("partition")) or self._longest.get("") or NO_LIMIT_SECONDS

    def notes(self) -> list[str]:
        if not self._unlimited:
            return []
        assumed = sorted({in_words(self._assumed(parts)) for parts in self._unlimited})
        verb = "is" if len(self._unlimited) == 1 else "are"
        return [
            f"{counted(len(self._unlimited), 'job')} without a time limit {verb} taken to run {' or '.join(assumed)}, "
            "the longest limit of the partition"
        ]


def _records(parts: _Parts, work_seconds: float, origin: datetime, has_queue: bool) -> Iterator[JobRecord]:
    started = parts.started
    elapsed = parts.elapsed_seconds
    job = Job(
        id=parts.id,
        gpus=parts.gpus,
        regimes=work_of_seconds(elapsed if parts.is_over else work_seconds),
        arrival_seconds=(parts.submitted - origin).total_seconds(),
        done_seconds=elapsed if parts.is_running or parts.state == "SUSPENDED" else 0.0,
        paused=parts.state == "SUSPENDED",
        started_seconds=(started - origin).total_seconds() if started and parts.is_running else None,
        user=parts.first.text("user"),
        kind=parts.first.text("partition"),
    )
    record = JobRecord(
        job=job,
        wait_seconds=None if started is None else (started - parts.submitted).total_seconds(),
        num_servers=sum(row.count("nnodes") for row in parts.rows) if parts.first.has("nnodes") else None,
        status=parts.state,
        finished=has_queue and parts.is_over,
    )
    for id in _task_ids(parts.first):
        yield replace(record, job=replace(job, id=id or parts.id))


def _task_ids(row: Row) -> list[str]:
    """Ids of the tasks of an array such as `7_[1-4,9,20-30:5%2]`; one empty id for any other job."""
    found = ARRAY.fullmatch(row.text("jobid"))
    if found is None:
        return [""]
    tasks: list[int] = []
    for piece in found.group(2).partition("%")[0].split(","):
        bounds = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", piece.strip())
        if bounds is None:
            raise row.complain(
                f"jobid is {row.text('jobid')!r}; expected tasks such as 7_[1-4,9] (SLURM_BITSTR_LEN=0 prints all)"
            )
        first, last, step = int(bounds[1]), int(bounds[2] or bounds[1]), int(bounds[3] or 1)
        if step < 1 or last - first >= TASKS_MAX:
            raise row.complain(f"jobid is {row.text('jobid')!r}; expected an array of at most {TASKS_MAX:,} tasks")
        tasks.extend(range(first, last + 1, step))
    return [f"{found.group(1)}_{task}" for task in tasks]


def _gpus(row: Row) -> int:
    for name in ("reqtres", "alloctres"):
        if found := GPUS.search(row.text(name)):
            return int(found.group(1))
        if typed := TYPED_GPUS.findall(row.text(name)):
            return sum(map(int, typed))
    return 0


def _seconds(row: Row, name: str) -> float:
    """Slurm's [days-]hours:minutes:seconds."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?", row.text(name))
    if not found:
        raise row.complain(f"{name} is {row.text(name)!r}; expected a duration such as 1-02:30:00")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
