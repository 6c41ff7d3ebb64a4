"""Rows of text files, each with its line number, and jobs as people write them down: a CSV or JSON table.

In: a path; compressed files (.gz) are read as they are. Out: rows; or jobs, of a table with id, gpus and either seconds
or regimes, optionally arrival, done, paused (it has done so much and waits again), started (it is running and keeps its
GPUs), weight, user, kind. Regimes are
`units x seconds_per_unit` pieces: `11x62.9;10x43.8` in CSV, `[[11, 62.9], [10, 43.8]]` in JSON.
Never: skip a bad row; each is an error that names the line and what was expected.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from foresee.cluster.formats.record import JobFile, JobRecord, Row, read_text
from foresee.cluster.job import Job, Regime, work_of_seconds
from foresee.errors import DataError
from foresee.io import bounded_json as json_fields


def delimited_rows(
    path: Path, *, delimiter: str = ",", required: Sequence[str], header: Sequence[str] | None = None
) -> list[Row]:
    """Rows of a table with a header, whose names are taken in lower case; `header` is for tables without one."""
    reader = csv.reader(io.StringIO(read_text(path)), delimiter=delimiter)
    header = [name.strip().lower() for name in next(reader, [])] if header is None else header
    if missing := [name for name in required if name not in header]:
        raise DataError(
            f"{path}:1: the header has {', '.join(header)[:300] or 'nothing'} and lacks {', '.join(missing)}; "
            f"expected at least {', '.join(required)}"
        )
    rows = []
    for cells in reader:
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) != len(header):
            raise DataError(f"{path}:{reader.line_num}: {len(cells)} cells, expected {len(header)} as in the header")
        rows.append(Row(path, reader.line_num, dict(zip(header, cells, strict=True))))
    return rows


def json_rows(path: Path, key: str) -> list[Row]:
    """Objects of the array under `key`, or of the file if it is an array, or the file's one object."""
    text = read_text(path)
    try:
        content = json_fields.parse(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not valid JSON ({error.msg}); expected one JSON document") from error
    if isinstance(content, dict) and key not in content:
        return [Row(path, 1, content)]
    elements = content[key] if isinstance(content, dict) else content
    if not isinstance(elements, list):
        raise DataError(
            f"{path}:1: {type(elements).__name__} found; expected an array of objects, or one under {key!r}"
        )
    begin = re.search(rf'"{key}"\s*:\s*\[', text) if isinstance(content, dict) else re.search(r"\[", text)
    lines = _lines_of_elements(text, begin.end() if begin else 0, len(elements))
    for line, element in zip(lines, elements, strict=True):
        if not isinstance(element, dict):
            raise DataError(
                f"{path}:{line}: {json_fields.shown(element)} found; expected an object that describes a job"
            )
    return [Row(path, line, element) for line, element in zip(lines, elements, strict=True)]


def _lines_of_elements(text: str, position: int, num_elements: int) -> list[int]:
    """Line on which each element of an array begins; `position` is just behind its bracket."""
    return list(_walk(text, position, num_elements))


def _walk(text: str, position: int, num_elements: int) -> Iterator[int]:
    decoder = json.JSONDecoder()
    for _ in range(num_elements):
        match = re.compile(r"[\s,]*").match(text, position)
        position = match.end() if match else position
        yield text.count("\n", 0, position) + 1
        _, position = decoder.raw_decode(text, position)


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
        paused=row.flag("paused"),
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
