"""Tables in the style of the Philly study: one finished job per row.

In: CSV with timestamp, duration and num_gpus; optionally jobid, user, cluster (or vc), wait, servers, utilisation,
status. Out: records, in order of arrival, the first arriving at zero.
Never: invent what the public table leaves out (it has no users, waits or servers); such columns stay empty.
"""

from __future__ import annotations

from pathlib import Path

from foresee.cluster.formats.record import JobFile, JobRecord, Row
from foresee.cluster.formats.text import delimited_rows
from foresee.cluster.job import Job, work_of_seconds


def read_philly(path: Path) -> JobFile:
    table = delimited_rows(path, required=("timestamp", "duration", "num_gpus"))
    rows = sorted(((row.moment("timestamp"), row) for row in table), key=lambda pair: pair[0])
    records = [_record(row, (moment - rows[0][0]).total_seconds(), index) for index, (moment, row) in enumerate(rows)]
    return JobFile(records=tuple(records))


def _record(row: Row, arrival_seconds: float, index: int) -> JobRecord:
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
