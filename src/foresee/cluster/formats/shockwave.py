"""Shockwave's traces with per-job regimes, and its stored results.

In: `shockwave_trace_*gpu.json(.gz)` and `shockwave_reference_32gpu.json(.gz)`. Out: jobs with step profiles, and
results with schedule, JCTs, fairness and utilisation as published.
Never: simulate anything; the numbers are passed on as they stand in the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foresee.cluster.batch_scaling import StepProfile
from foresee.cluster.formats.record import read_text
from foresee.cluster.job import Cluster, Job, Regime
from foresee.errors import DataError
from foresee.io import bounded_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    cluster: Cluster
    jobs: tuple[Job, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredResult:
    """One published run."""

    makespan_seconds: float
    utilisation: float
    jct_seconds: tuple[float, ...]
    rho_static: tuple[float, ...]
    rho_themis: tuple[float, ...]
    schedule: tuple[tuple[str, ...], ...]


def read_trace(path: Path) -> Trace:
    content = read_json(path)
    try:
        jobs = tuple(_job(entry, content) for entry in content["jobs"])
        cluster = Cluster(gpus=content["gpus"], round_seconds=float(content["round_seconds"]))
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise DataError(
            f"{path}: not a Shockwave trace ({type(error).__name__}: {str(error)[:200]}); expected gpus, "
            "round_seconds, dataset_size, steps_per_second and jobs with id, model, batch_size, gpus, mode, arrival, "
            "steps, regimes"
        ) from error
    return Trace(cluster=cluster, jobs=jobs)


def _job(entry: Mapping[str, Any], content: Mapping[str, Any]) -> Job:
    regimes = tuple(
        Regime(batch_size=int(batch), num_units=float(epochs), seconds_per_unit=float(seconds))
        for batch, epochs, seconds in entry["regimes"]
    )
    profile = StepProfile(
        model=entry["model"],
        mode=entry["mode"],
        batch_size=int(entry["batch_size"]),
        gpus=int(entry["gpus"]),
        num_steps=int(entry["steps"]),
        dataset_size=int(content["dataset_size"][entry["model"]]),
        steps_per_second=_speeds(content["steps_per_second"], entry["model"], int(entry["gpus"])),
        run_seconds_max=float(int(1.5 * int(entry["exclusive_seconds"]))),
    )
    return Job(
        id=str(entry["id"]),
        gpus=int(entry["gpus"]),
        regimes=regimes,
        arrival_seconds=float(entry["arrival"]),
        kind=entry["model"],
        steps=profile,
    )


def _speeds(table: Mapping[str, float], model: str, gpus: int) -> dict[int, float]:
    """Steps per second by batch size, from keys such as `LM (batch size 20)|2`."""
    prefix, suffix = f"{model} (batch size ", f")|{gpus}"
    return {
        int(key[len(prefix) : -len(suffix)]): speed
        for key, speed in table.items()
        if key.startswith(prefix) and key.endswith(suffix)
    }


def read_results(path: Path) -> dict[str, StoredResult]:
    """All stored runs, by name (`tacc_32gpus/shockwave/simulation`)."""
    content = read_json(path)
    try:
        return {name: _result(entry) for name, entry in content["results"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not a file of stored results ({type(error).__name__}: {error}); expected results with makespan, "
            "cluster_util, jct, rho_static, rho_themis and schedule"
        ) from error


def _result(entry: Mapping[str, Any]) -> StoredResult:
    return StoredResult(
        makespan_seconds=entry["makespan"],
        utilisation=entry["cluster_util"],
        jct_seconds=tuple(entry["jct"]),
        rho_static=tuple(entry["rho_static"]),
        rho_themis=tuple(entry["rho_themis"]),
        schedule=tuple(tuple(str(id) for id in ids) for ids in entry["schedule"]),
    )


def read_json(path: Path) -> Any:
    """The content of a JSON file, compressed or not."""
    try:
        return bounded_json.parse(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not valid JSON ({error.msg}); expected one JSON document") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON that can be read ({error}); expected one JSON document") from error
