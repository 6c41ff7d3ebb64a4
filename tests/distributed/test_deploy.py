"""What `foresee deploy` writes: manifests that strict schemas accept, and a script that a shell can read."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import foresee
from foresee.data import ClickLog

VERSION = "1.30"


@pytest.fixture
def run_file(tmp_path: Path, small_log: ClickLog) -> Path:
    file = tmp_path / "run.yaml"
    file.write_text(
        f"log: {small_log.path}\nrun: first-run\nmodel: {{dim: 4}}\ncache: {{rows: 100}}\n"
        "train: {batch_size: 16}\ndistributed: {workers: 3, servers: 2, restarts_max: 7}\n"
    )
    return file


Written = Callable[..., str]


@pytest.fixture
def written(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """The text that `foresee deploy` writes for the run file."""

    def write(kind: str, *options: str) -> str:
        out = run_file.parent / "out"
        assert foresee("deploy", kind, run_file, *options, "--out", out, monkeypatch=monkeypatch) == 0
        assert out.stat().st_mode & 0o077 == 0, "it may hold a token"
        return out.read_text()

    return write


POD_OPTIONS = ("--image", "foresee:1", "--data-claim", "logs", "--log-folder", "criteo")


def check(manifests: list[dict[str, Any]]) -> None:
    """Raises for anything that Kubernetes or JobSet would not take, unknown fields included."""
    validate = pytest.importorskip("kubernetes_validate", reason="it is for tests: pip install '.[dev]'")
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="it is for tests: pip install '.[dev]'")
    for manifest in manifests:
        if manifest["kind"] == "JobSet":
            taken = models.JobsetV1alpha2JobSet.from_dict(copy.deepcopy(manifest)).to_dict()
            assert without_templates(taken) == without_templates(manifest)
            for job in manifest["spec"]["replicatedJobs"]:
                batch = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, **job["template"]}
                validate.validate(batch, VERSION, strict=True)
        elif manifest["kind"] == "RayJob":
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


@pytest.mark.parametrize(("kind", "more"), [("jobset", ()), ("kuberay", ("--nodes", "2"))])
def test_manifests_pass_strict_schemas(written: Written, kind: str, more: tuple[str, ...]) -> None:
    check(list(yaml.safe_load_all(written(kind, *POD_OPTIONS, *more))))


def _jobset(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    return next(dict(it) for it in manifests if it["kind"] == "JobSet")


PLANTED: list[Callable[[list[dict[str, Any]]], object]] = [
    lambda them: _jobset(them)["spec"].update(replicas=3),
    lambda them: _jobset(them)["spec"]["failurePolicy"].update(maxRestart=1),
    lambda them: _jobset(them)["spec"]["replicatedJobs"][0].update(replicas="two"),
    lambda them: _jobset(them)["spec"]["replicatedJobs"][0]["template"]["spec"].update(backOffLimit=0),
    lambda them: _jobset(them)["spec"]["replicatedJobs"][2]["template"]["spec"]["template"]["spec"]["containers"][
        0
    ].update(comand=["foresee"]),
    lambda them: them[2]["spec"].update(accessModes="ReadWriteMany"),
    lambda them: them[1].update(content={}),
]


@pytest.mark.parametrize("number", range(len(PLANTED)))
def test_planted_errors_are_caught(written: Written, number: int) -> None:
    manifests = list(yaml.safe_load_all(written("jobset", *POD_OPTIONS)))
    PLANTED[number](manifests)
    with pytest.raises(Exception, match=r"."):
        check(manifests)


def test_a_jobset_says_what_the_run_file_says(written: Written) -> None:
    jobset = _jobset(list(yaml.safe_load_all(written("jobset", *POD_OPTIONS))))
    jobs = {job["name"]: job for job in jobset["spec"]["replicatedJobs"]}
    assert {name: job["replicas"] for name, job in jobs.items()} == {"server": 2, "planner": 1, "worker": 3}
    assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 7
    command = jobs["worker"]["template"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command.count("--server") == 2
    assert command[command.index("--resume") + 1] == "auto"


def test_a_job_of_slurm_is_a_script(written: Written, tmp_path: Path) -> None:
    text = written("slurm", "--nodes", "2")
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n" in text
    assert "restarts_max=7" in text
    subprocess.run(["bash", "-n", "-c", text], check=True)


def test_a_name_that_kubernetes_refuses_is_a_sentence(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*POD_OPTIONS, "--set", "run=First_Run")
    assert foresee("deploy", "jobset", run_file, *options, monkeypatch=monkeypatch) == 2
    assert "give --name" in capsys.readouterr().err
