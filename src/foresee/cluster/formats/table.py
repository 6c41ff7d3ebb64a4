"""Jobs as people write them down: a CSV or JSON table.

In: a file with id, gpus and either seconds or regimes; optionally arrival, done, started (it is running and
keeps its GPUs), weight, user, kind. Out: jobs.
Regimes are `units x seconds_per_unit` pieces: `11x62.9;10x43.8` in CSV, `[[11, 62.9], [10, 43.8]]` in JSON.
Never: skip a bad row; each is an error that names the line and what was expected.
"""

from __future__ import annotations

from pathlib import Path

from foresee.cluster.formats.record import JobFile, JobRecord, Row
from foresee.cluster.formats.text import delimited_rows, json_rows
from foresee.cluster.job import Job, Regime, work_of_seconds


def read_csv(path: Path) -> JobFile:
    return JobFile(records=tuple(JobRecord(job=_job(row)) for row in delimited_rows(path, required=("id", "gpus"))))


def read_json_jobs(path: Path) -> JobFile:
    return JobFile(records=tuple(JobRecord(job=_job(row)) for row in json_rows(path, "jobs")))


def _job(row: Row) -> Job:
    if not row.has("id"):
        raise row.complain("id is missing; every job needs an id of its own")
    return Job(
        id=row.text("id"),
        gpus=row.count("gpus"),
        regimes=_work(row),
        arrival_seconds=row.number("arrival", default=0.0, least=0.0),
        done_seconds=row.number("done", default=0.0, least=0.0),
        started_seconds=row.number("started", least=0.0) if row.has("started") else None,
        weight=row.number("weight", default=1.0, above=0.0),
        user=row.text("user"),
        kind=row.text("kind"),
    )


def _work(row: Row) -> tuple[Regime, ...]:
    if row.has("seconds") == row.has("regimes"):
        raise row.complain("expected the work either as seconds or as regimes, exactly one of the two")
    if row.has("seconds"):
        return work_of_seconds(row.number("seconds", above=0.0))
    return tuple(_regime(row, *piece) for piece in _pieces(row))


def _pieces(row: Row) -> list[tuple[object, object]]:
    regimes = row.fields["regimes"]
    pieces = [piece.split("x") for piece in regimes.split(";")] if isinstance(regimes, str) else regimes
    if not isinstance(pieces, list) or not all(isinstance(piece, list) and len(piece) == 2 for piece in pieces):
        raise row.complain(
            f"regimes is {regimes!r}; expected pieces of units and seconds per unit, "
            "such as 11x62.9;10x43.8 or [[11, 62.9], [10, 43.8]]"
        )
    return [(units, seconds) for units, seconds in pieces]


def _regime(row: Row, units: object, seconds: object) -> Regime:
    piece = Row(row.path, row.line, {"units of a regime": units, "seconds per unit of a regime": seconds})
    return Regime(
        num_units=piece.number("units of a regime", above=0.0),
        seconds_per_unit=piece.number("seconds per unit of a regime", above=0.0),
    )
