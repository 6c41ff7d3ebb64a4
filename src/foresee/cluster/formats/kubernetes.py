"""Exports of Kueue workloads and Volcano jobs.

In: `kubectl get workloads -o json` (kueue.x-k8s.io) or `kubectl get vcjob -o json` (batch.volcano.sh). Out: jobs that
wait or run; finished ones are left out and noted. GPUs are summed over pod sets. Run time is the annotation
`foresee/run-seconds`, else the deadline the object declares.
Never: talk to a cluster; a file goes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from foresee.cluster.formats.record import JobFile, JobRecord, Row, left_out
from foresee.cluster.formats.text import json_rows
from foresee.cluster.job import Job, work_of_seconds

GPU_RESOURCE = "nvidia.com/gpu"
RUN_SECONDS = "foresee/run-seconds"


def read_kubernetes(path: Path) -> JobFile:
    rows = json_rows(path, "items")
    open_rows = [row for row in rows if not _is_over(row)]
    moments = [moment for row in open_rows for moment in (_created(row), _running_since(row)) if moment]
    origin, now = min(moments, default=datetime.min), max(moments, default=datetime.min)
    records = [_record(row, origin, now) for row in open_rows]
    notes = left_out(len(rows) - len(open_rows), "finished job")
    with_gpus = tuple(record for record in records if record.job.gpus)
    notes += left_out(len(records) - len(with_gpus), "job", "without GPUs")
    return JobFile(records=with_gpus, now_seconds=(now - origin).total_seconds(), notes=tuple(notes))


def _record(row: Row, origin: datetime, now: datetime) -> JobRecord:
    metadata, spec = _part(row, "metadata"), _part(row, "spec")
    seconds = _run_seconds(row, metadata, spec)
    since = _running_since(row)
    done = min((now - since).total_seconds(), seconds - 1) if since else 0.0
    labels = metadata.get("labels") or {}
    job = Job(
        id=_name(row),
        gpus=sum(_gpus(row, pods) for pods in _pod_sets(spec)),
        regimes=work_of_seconds(seconds),
        arrival_seconds=(_created(row) - origin).total_seconds(),
        done_seconds=max(0.0, done),
        started_seconds=(since - origin).total_seconds() if since else None,
        user=str(labels.get("user") or metadata.get("namespace") or ""),
        kind=str(spec.get("queueName") or spec.get("queue") or ""),
    )
    wait = (since - _created(row)).total_seconds() if since else None
    return JobRecord(job=job, wait_seconds=wait, status="RUNNING" if since else "PENDING")


def _part(row: Row, name: str) -> Mapping[str, Any]:
    part = row.fields.get(name)
    if not isinstance(part, dict):
        raise row.complain(f"{name} is {type(part).__name__}; expected the object of a Kueue Workload or a Volcano Job")
    return part


def _name(row: Row) -> str:
    name = _part(row, "metadata").get("name")
    if not name:
        raise row.complain("metadata.name is missing; expected the name of a Workload or Job")
    return str(name)


def _pod_sets(spec: Mapping[str, Any]) -> Iterable[tuple[object, Mapping[str, Any]]]:
    """(count, pod spec): Kueue has spec.podSets with count, Volcano spec.tasks with replicas."""
    for pods in [*(spec.get("podSets") or []), *(spec.get("tasks") or [])]:
        yield pods.get("count", pods.get("replicas", 1)), (pods.get("template") or {}).get("spec") or {}


def _gpus(row: Row, pods: tuple[object, Mapping[str, Any]]) -> int:
    count, pod = pods
    total = 0
    for container in pod.get("containers") or []:
        resources = container.get("resources") or {}
        wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.get(GPU_RESOURCE, 0)
        total += replace(row, fields={GPU_RESOURCE: wanted}).count(GPU_RESOURCE, least=0)
    return total * replace(row, fields={"count of pods": count}).count("count of pods", least=0)


def _run_seconds(row: Row, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> float:
    deadlines = [pod.get("activeDeadlineSeconds") for _, pod in _pod_sets(spec)]
    declared = [
        (metadata.get("annotations") or {}).get(RUN_SECONDS),
        spec.get("maximumExecutionTimeSeconds"),
        *deadlines,
    ]
    for value in declared:
        if value is not None:
            return replace(row, fields={"run time": value}).number("run time", above=0.0)
    raise row.complain(
        f"{_name(row)} has no run time; expected the annotation {RUN_SECONDS}, "
        "spec.maximumExecutionTimeSeconds (Kueue) or activeDeadlineSeconds of its pods"
    )


def _created(row: Row) -> datetime:
    return replace(row, fields=_part(row, "metadata")).moment("creationTimestamp")


def _conditions(row: Row) -> dict[str, Mapping[str, Any]]:
    status = row.fields.get("status")
    conditions = status.get("conditions") or [] if isinstance(status, dict) else []
    return {str(c.get("type") or c.get("status")): c for c in conditions if c.get("status") != "False"}


def _phase(row: Row) -> str:
    status = row.fields.get("status")
    state = status.get("state") or {} if isinstance(status, dict) else {}
    return str(state.get("phase") or "")


def _is_over(row: Row) -> bool:
    return "Finished" in _conditions(row) or _phase(row) in ("Completed", "Failed", "Aborted", "Terminated")


def _running_since(row: Row) -> datetime | None:
    conditions = _conditions(row)
    condition = conditions.get("Admitted") or (conditions.get("Running") if _phase(row) == "Running" else None)
    return replace(row, fields=condition).moment("lastTransitionTime") if condition else None
