"""What is in manifests of `foresee deploy`, and strict schemas for them: Kubernetes', JobSet's and KubeRay's."""

from __future__ import annotations

import copy
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

VERSION = "1.30"
Manifests = list[dict[str, Any]]


def of_kind(manifests: Manifests, kind: str) -> dict[str, Any]:
    return next(it for it in manifests if it["kind"] == kind)


def jobs_of(manifests: Manifests) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in of_kind(manifests, "JobSet")["spec"]["replicatedJobs"]}


def pods_of(manifests: Manifests) -> dict[str, dict[str, Any]]:
    return {name: job["template"]["spec"]["template"]["spec"] for name, job in jobs_of(manifests).items()}


def options_of(command: list[str], option: str) -> list[str]:
    return [value for word, value in pairwise(command) if word == option]


def check(manifests: Manifests) -> None:
    """Raises for anything that Kubernetes, JobSet or KubeRay would not take, unknown fields included."""
    validate = pytest.importorskip("kubernetes_validate", reason="it is for tests: pip install '.[dev]'")
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="it is for tests: pip install '.[dev]'")
    jsonschema = pytest.importorskip("jsonschema", reason="it is for tests: pip install '.[dev]'")
    for manifest in manifests:
        if manifest["kind"] == "JobSet":
            taken = models.JobsetV1alpha2JobSet.from_dict(copy.deepcopy(manifest)).to_dict()
            assert without_templates(taken) == without_templates(manifest), "a field that JobSet does not have"
            for job in manifest["spec"]["replicatedJobs"]:
                batch = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, **job["template"]}
                validate.validate(batch, VERSION, strict=True)
        elif manifest["kind"] == "RayJob":
            schema = json.loads(Path(__file__).with_name("rayjob.schema.json").read_text())
            jsonschema.Draft202012Validator(schema).validate(manifest)
            cluster = manifest["spec"]["rayClusterSpec"]
            for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **group["template"]}
                validate.validate(pod, VERSION, strict=True)
        else:
            validate.validate(manifest, VERSION, strict=True)


def without_templates(manifest: dict[str, Any]) -> dict[str, Any]:
    """Those of jobs are checked as jobs."""
    copied = json.loads(json.dumps(manifest, default=str))
    for job in copied["spec"]["replicatedJobs"]:
        job.pop("template")
    return dict(copied)


def container_of(manifests: Manifests, name: str) -> dict[str, Any]:
    return dict(pods_of(manifests)[name]["containers"][0])


def cluster_of(manifests: Manifests) -> dict[str, Any]:
    return dict(of_kind(manifests, "RayJob")["spec"]["rayClusterSpec"])
