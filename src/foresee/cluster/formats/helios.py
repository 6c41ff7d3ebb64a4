"""`cluster_log.csv` of the Helios traces (Hu et al., SC '21): one finished Slurm job per row.

In: CSV with job_id, gpu_num, submit_time and duration; also user, vc, node_num, state and queue, which the public
files have. Out: records, in order of arrival, the first arriving at zero.
Never: keep jobs without GPUs or run time (half of the public rows); they are left out and noted.
"""

from __future__ import annotations

from pathlib import Path

from foresee.cluster.formats.record import JobFile, JobRecord, Row, left_out
from foresee.cluster.formats.text import delimited_rows
from foresee.cluster.job import Job, work_of_seconds

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
