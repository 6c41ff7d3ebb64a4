"""What `foresee deploy` writes: manifests that strict schemas accept and that fit together, a script for a shell."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from manifests import Manifests, check, cluster_of, container_of, jobs_of, of_kind, options_of, pods_of

from command_line import foresee
from foresee.data import ClickLog
from foresee.launch.deploy.sizes import Sizes, sizes_of
from foresee.run.config_file import load_run

POD_OPTIONS = ("--image", "foresee:1", "--data-claim", "logs", "--log-folder", "criteo")
OVERRIDES = ("--set", "train.epochs=3")


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory, small_log: ClickLog) -> Path:
    file = tmp_path_factory.mktemp("deploy") / "run.yaml"
    file.write_text(
        f"log: {small_log.path}\nrun: first-run\nmodel: {{dim: 4}}\ncache: {{rows: 100}}\n"
        "train: {batch_size: 16}\n"
        "distributed: {workers: 3, servers: 2, restarts_max: 7, resources: {worker: {CPU: 4, GPU: 1}, "
        "server: {CPU: 2}}}\n"
    )
    return file


@pytest.fixture(scope="module")
def texts(run_file: Path) -> dict[str, str]:
    """What it writes, by kind."""
    more = {"slurm": ("--nodes", "2"), "jobset": POD_OPTIONS, "kuberay": (*POD_OPTIONS, "--nodes", "2")}
    found = {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for kind, options in more.items():
            out = run_file.with_name(kind)
            assert foresee("deploy", kind, run_file, *OVERRIDES, *options, "--out", out, monkeypatch=monkeypatch) == 0
            assert out.stat().st_mode & 0o077 == 0, "it may hold a token"
            found[kind] = out.read_text()
    return found


@pytest.fixture
def jobset(texts: dict[str, str]) -> Manifests:
    return list(yaml.safe_load_all(texts["jobset"]))


@pytest.fixture
def kuberay(texts: dict[str, str]) -> Manifests:
    return list(yaml.safe_load_all(texts["kuberay"]))


@pytest.fixture(scope="module")
def sizes(run_file: Path) -> Sizes:
    return sizes_of(load_run(run_file, OVERRIDES[1:]))


def test_manifests_pass_strict_schemas(jobset: Manifests, kuberay: Manifests) -> None:
    check(jobset)
    check(kuberay)


PLANTED: dict[str, Callable[[Manifests], object]] = {
    "a number of no kind": lambda them: of_kind(them, "JobSet")["spec"].update(replicas=3),
    "a key misspelt": lambda them: of_kind(them, "JobSet")["spec"]["failurePolicy"].update(maxRestart=1),
    "a number as a word": lambda them: jobs_of(them)["server"].update(replicas="two"),
    "a key of a job misspelt": lambda them: jobs_of(them)["server"]["template"]["spec"].update(backOffLimit=0),
    "a key of a container misspelt": lambda them: pods_of(them)["worker"]["containers"][0].update(comand=["foresee"]),
    "a port as text": lambda them: pods_of(them)["server"]["containers"][0]["ports"][0].update(containerPort="4440"),
    "a word for a list": lambda them: of_kind(them, "PersistentVolumeClaim")["spec"].update(
        accessModes="ReadWriteMany"
    ),
    "a secret of numbers": lambda them: of_kind(them, "Secret")["stringData"].update(token=7),
    "a map of something else": lambda them: of_kind(them, "ConfigMap").update(content={}),
}
PLANTED_FOR_RAY: dict[str, Callable[[Manifests], object]] = {
    "a key misspelt": lambda them: of_kind(them, "RayJob")["spec"].update(entryPoint="foresee"),
    "a number as a word": lambda them: of_kind(them, "RayJob")["spec"].update(backoffLimit="seven"),
    "a key of the cluster misspelt": lambda them: cluster_of(them)["headGroupSpec"].update(rayStartParam={}),
    "a start parameter that is a number": lambda them: cluster_of(them)["headGroupSpec"].update(
        rayStartParams={"num-cpus": 0}
    ),
    "a group without a template": lambda them: cluster_of(them)["workerGroupSpecs"][0].pop("template"),
    "a key of a pod misspelt": lambda them: cluster_of(them)["workerGroupSpecs"][0]["template"]["spec"].update(
        volume=[]
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_errors_are_caught(jobset: Manifests, planted: str) -> None:
    PLANTED[planted](jobset)
    with pytest.raises(Exception, match=r"."):
        check(jobset)


@pytest.mark.parametrize("planted", PLANTED_FOR_RAY)
def test_planted_errors_of_ray_are_caught(kuberay: Manifests, planted: str) -> None:
    PLANTED_FOR_RAY[planted](kuberay)
    with pytest.raises(Exception, match=r"."):
        check(kuberay)


def test_a_jobset_has_as_many_parts_as_the_run_file_says(jobset: Manifests) -> None:
    assert {name: job["replicas"] for name, job in jobs_of(jobset).items()} == {"server": 2, "planner": 1, "worker": 3}
    command = container_of(jobset, "worker")["command"]
    assert options_of(command, "--resume") == ["auto"]
    environment = {it["name"]: it.get("value") for it in container_of(jobset, "worker")["env"]}
    assert (environment["WORLD_SIZE"], environment["OMP_NUM_THREADS"]) == ("3", "4")


def test_what_was_set_is_set_for_every_part(jobset: Manifests, kuberay: Manifests, texts: dict[str, str]) -> None:
    for part in ("planner", "worker"):
        given = options_of(container_of(jobset, part)["command"], "--set")
        assert given[0] == "train.epochs=3"
        assert "log=/data/criteo" in given
    assert "--set train.epochs=3 " in of_kind(kuberay, "RayJob")["spec"]["entrypoint"]
    assert "settings=(--set train.epochs=3 " in texts["slurm"]


def test_parts_ask_for_what_they_need(jobset: Manifests, sizes: Sizes) -> None:
    for name, size in (("server", sizes.server), ("planner", sizes.planner), ("worker", sizes.worker)):
        resources, memory = container_of(jobset, name)["resources"], f"{size.memory_mebibytes}Mi"
        assert resources["requests"] == {"cpu": str(size.cores), "memory": memory}
        assert resources["limits"] == {"memory": memory} | ({"nvidia.com/gpu": "1"} if name == "worker" else {})
    assert (sizes.server.cores, sizes.worker.cores) == (2, 4)
    claim = of_kind(jobset, "PersistentVolumeClaim")["spec"]["resources"]["requests"]["storage"]
    assert int(claim.removesuffix("Gi")) << 30 >= 2 * sizes.shard_bytes


def test_parts_listen_where_workers_look_for_them(jobset: Manifests) -> None:
    ports = {name: pod["containers"][0]["ports"][0]["containerPort"] for name, pod in pods_of(jobset).items()}
    for part in ("server", "planner"):
        assert options_of(container_of(jobset, part)["command"], "--port") == [str(ports[part])]
        assert options_of(container_of(jobset, part)["command"], "--host") == ["0.0.0.0"]
    worker = container_of(jobset, "worker")
    servers = [f"grpc+tls://first-run-server-{i}-0.first-run:{ports['server']}" for i in range(2)]
    assert options_of(worker["command"], "--server") == servers
    assert options_of(worker["command"], "--planner") == [
        f"grpc+tls://first-run-planner-0-0.first-run:{ports['planner']}"
    ]
    environment = {it["name"]: it.get("value") for it in worker["env"]}
    assert environment["MASTER_PORT"] == str(ports["worker"])
    assert environment["MASTER_ADDR"] == "first-run-worker-0-0.first-run"
    assert len(set(ports.values())) == 3
    network = of_kind(jobset, "JobSet")["spec"]["network"]
    assert (network["subdomain"], network["enableDNSHostnames"]) == ("first-run", True)


def test_certificates_are_for_the_names_that_workers_call(jobset: Manifests) -> None:
    secret = of_kind(jobset, "Secret")["stringData"]
    signed, authority = (x509.load_pem_x509_certificate(secret[it].encode()) for it in ("tls.crt", "ca.crt"))
    signed.verify_directly_issued_by(authority)
    names = signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.DNSName
    )
    command = container_of(jobset, "worker")["command"]
    called = [
        it.split("//")[1].split(":")[0] for option in ("--server", "--planner") for it in options_of(command, option)
    ]
    assert set(names) == set(called)
    assert len(secret["token"]) == 64
    for part in ("server", "planner", "worker"):
        tokens = [
            it["valueFrom"]["secretKeyRef"] for it in container_of(jobset, part)["env"] if it["name"] == "FORESEE_TOKEN"
        ]
        assert tokens == [{"name": "first-run", "key": "token"}]
        assert secret["token"] not in json.dumps(container_of(jobset, part))
    assert of_kind(jobset, "Secret")["metadata"]["name"] == "first-run"


def test_every_path_of_a_command_is_mounted(jobset: Manifests) -> None:
    for name, pod in pods_of(jobset).items():
        container, volumes = pod["containers"][0], {it["name"]: it for it in pod["volumes"]}
        mounts = {it["mountPath"]: volumes[it["name"]] for it in container["volumeMounts"]}
        paths = [word.split("=")[-1] for word in container["command"] if word.split("=")[-1].startswith("/")]
        paths = [
            path for path in paths if not (name != "server" and path == "/rows")
        ]  # only servers open their folders
        assert len(paths) >= 3
        for path in paths:
            assert any(path == it or path.startswith(f"{it}/") for it in mounts), path
        assert mounts["/run/foresee/secrets"]["secret"] == {"secretName": "first-run", "defaultMode": 0o400}
        assert mounts["/data"]["persistentVolumeClaim"] == {"claimName": "logs"}
    rows = next(it for it in container_of(jobset, "server")["volumeMounts"] if it["mountPath"] == "/rows")
    assert rows["subPathExpr"] == "shard-$(JOB_INDEX)", "a folder for each server"
    assert pods_of(jobset)["server"]["volumes"][-1]["persistentVolumeClaim"] == {"claimName": "first-run-rows"}
    assert of_kind(jobset, "PersistentVolumeClaim")["metadata"]["name"] == "first-run-rows"
    texts = of_kind(jobset, "ConfigMap")["data"]
    assert json.loads(texts["layout.json"])["width"] == 4
    assert yaml.safe_load(texts["run.yaml"])["run"] == "first-run"


def test_exit_codes_decide_what_is_started_again(jobset: Manifests) -> None:
    policy = of_kind(jobset, "JobSet")["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 7
    assert policy["rules"] == [
        {"name": "mistakes", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    ]
    assert of_kind(jobset, "JobSet")["spec"]["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["worker"]}
    for name, job in jobs_of(jobset).items():
        spec = job["template"]["spec"]
        codes = {"containerName": name, "operator": "In", "values": [2]}
        assert spec["podFailurePolicy"]["rules"] == [{"action": "FailJob", "onExitCodes": codes}]
        assert (spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"]) == (0, "Never")
        assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 60, "time for a commit"


def test_a_job_on_ray_has_room_for_every_part(kuberay: Manifests, sizes: Sizes) -> None:
    spec = of_kind(kuberay, "RayJob")["spec"]
    shell, option, line = shlex.split(spec["entrypoint"])
    assert (shell, option) == ("sh", "-c")
    assert "--workers 3 --servers 2" in line
    assert line.endswith(" --resume-or-begin")
    subprocess.run(["sh", "-n", "-c", line], check=True)
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert (group["replicas"], spec["backoffLimit"]) == (2, 7)
    assert container["resources"]["requests"]["cpu"] == str(2 * 4 + 1 * 2 + 1), (
        "two of three workers, a server, the planner"
    )
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    needed = 2 * sizes.worker.memory_bytes + sizes.server.memory_bytes + sizes.planner.memory_bytes
    assert int(container["resources"]["requests"]["memory"].removesuffix("Mi")) << 20 >= needed
    for it in (group, spec["rayClusterSpec"]["headGroupSpec"]):
        pod = it["template"]["spec"]
        assert {it["name"] for it in pod["containers"][0]["volumeMounts"]} == {it["name"] for it in pod["volumes"]}


def test_a_job_of_slurm_is_a_script(texts: dict[str, str], sizes: Sizes) -> None:
    text = texts["slurm"]
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH --cpus-per-task=6\n" in text, "(2·4 + 2 + 1) / 2"
    memory = 2 * sizes.worker.memory_mebibytes + sizes.server.memory_mebibytes + sizes.planner.memory_mebibytes
    assert f"#SBATCH --mem={memory}M\n#SBATCH --gpus-per-node=2\n" in text
    assert "restarts_max=7" in text
    subprocess.run(["bash", "-n", "-c", text], check=True)


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("jobset", (*POD_OPTIONS, "--set", "run=First_Run"), "give --name"),
        (
            "jobset",
            (*POD_OPTIONS, "--set", "tables.store=memory"),
            "rows would be gone with the first server that is lost",
        ),
        ("slurm", ("--set", "tables.store=memory"), "give --set tables.store=disk"),
        ("slurm", ("--out", "no/such/folder/job.sh"), "cannot be written (No such file or directory)"),
    ],
)
def test_what_cannot_be_is_a_sentence(
    run_file: Path, kind: str, options: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert foresee("deploy", kind, run_file, *options, monkeypatch=monkeypatch) == 2
    assert sentence in capsys.readouterr().err
