"""Files that describe jobs, one reader per format; each returns a JobFile, or raises with file:line and what it
expected.

`read_jobs` picks the reader by what the file looks like, unless told.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

from foresee.cluster.formats.kubernetes import read_kubernetes
from foresee.cluster.formats.pai import read_pai
from foresee.cluster.formats.record import JobFile, JobRecord, read_text
from foresee.cluster.formats.sacct import read_sacct
from foresee.cluster.formats.shockwave import read_trace
from foresee.cluster.formats.text import read_csv, read_json_jobs
from foresee.cluster.formats.traces import read_gavel, read_helios, read_philly
from foresee.errors import DataError
from foresee.io import bounded_json

__all__ = ["READERS", "JobFile", "JobRecord", "format_of", "read_jobs"]


# Names in the header by which a table is recognised.
COLUMNS_OF = {
    "philly": ("timestamp", "num_gpus"),
    "helios": ("gpu_num", "submit_time"),
    "pai": ("inst_num", "plan_gpu"),
}
GAVEL_TABS = 9

SHAPELESS = (csv.Error, TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError)


def _read_shockwave(path: Path) -> JobFile:
    trace = read_trace(path)
    return JobFile(records=tuple(JobRecord(job=job) for job in trace.jobs), cluster=trace.cluster)


READERS: dict[str, Callable[[Path], JobFile]] = {
    "csv": read_csv,
    "json": read_json_jobs,
    "shockwave": _read_shockwave,
    "philly": read_philly,
    "helios": read_helios,
    "pai": read_pai,
    "gavel": read_gavel,
    "sacct": read_sacct,
    "kueue": read_kubernetes,
    "volcano": read_kubernetes,
}


def read_jobs(path: Path, format: str | None = None) -> JobFile:
    name = format or format_of(path)
    if name not in READERS:
        raise DataError(f"{path}: format {name!r} is not known; choose one of {', '.join(READERS)}")
    try:
        read = READERS[name](path)
    except SHAPELESS as error:
        # Every field has its sentence in the readers; this is for files that only look like their format.
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise DataError(f"{path}: its parts are not where {name} has them ({reason}); give another format") from error
    if not read.records:
        raise DataError(f"{path}: no jobs with GPUs in it; expected at least one")
    return read


def format_of(path: Path) -> str:
    """The format a file seems to have, from its first line or its JSON keys."""
    text = read_text(path)
    if text.lstrip()[:1] in ("{", "["):
        return _json_format(path, text)
    header = text.split("\n", 1)[0].lower()
    if "jobid" in header and "|" in header:
        return "sacct"
    if header.count("\t") == GAVEL_TABS:
        return "gavel"
    if "num_inst" in header and "submit_time" in header:
        return "pai"
    return next((name for name, columns in COLUMNS_OF.items() if all(c in header for c in columns)), "csv")


def _json_format(path: Path, text: str) -> str:
    try:
        content = bounded_json.parse(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not valid JSON ({error.msg}); expected one JSON document") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON that can be read ({error}); expected one JSON document") from error
    if not isinstance(content, dict):
        return "json"
    if "steps_per_second" in content:
        return "shockwave"
    return "kueue" if "items" in content or "apiVersion" in content else "json"
