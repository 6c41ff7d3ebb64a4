"""What `foresee deploy` writes for a run that has a storage: nothing is shared, and whoever starts again has it all."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from manifests import Manifests, check, cluster_of, container_of, jobs_of, of_kind, options_of, pods_of
from ports import free_ports
from run_results import Bytes, dense_half, num_steps_done, rows_in_folders
from warm_commands import Command, Commands

from command_line import foresee
from foresee.data import ClickLog
from foresee.io.storage import Storage
from foresee.launch.deploy.sizes import sizes_of
from foresee.run.backup_shards import brought_run
from foresee.run.config_file import load_run
from s3_server import url_of

STORAGE = "s3://bucket/runs/first-run?endpoint_override=127.0.0.1:9000&scheme=http&region=us east"
"""Nobody looks there before the run begins."""
IMAGE = ("--image", "foresee:1")
KEYS = ("--env-secret", "storage-keys")
CLAIM = ("--data-claim", "logs", "--log-folder", "criteo")
GIBIBYTE = 1 << 30


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory, small_log: ClickLog) -> Path:
    file = tmp_path_factory.mktemp("deploy") / "run.yaml"
    file.write_text(
        f"log: file://{small_log.path}\nrun: {STORAGE}\nmodel: {{dim: 4, options: {{bottom: [8], top: [8]}}}}\n"
        "cache: {rows: 100}\ntables: {folder: somewhere}\n"
        "train: {batch_size: 16, num_threads: 1, log_every_steps: 1, commit_every_steps: 5}\n"
        "distributed: {workers: 2, servers: 3, placement: contiguous}\n"
    )
    return file


Written = Callable[..., str]


@pytest.fixture
def written(run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """What a kind of deployment writes."""

    def write(kind: str, *options: str) -> str:
        out = tmp_path / kind
        assert foresee("deploy", kind, run_file, *options, "--out", out, monkeypatch=monkeypatch) == 0
        return out.read_text()

    return write


@pytest.fixture
def jobset(written: Written) -> Manifests:
    return list(yaml.safe_load_all(written("jobset", *IMAGE, *KEYS)))


@pytest.fixture
def kuberay(written: Written) -> Manifests:
    return list(yaml.safe_load_all(written("kuberay", *IMAGE, *KEYS, "--nodes", "2")))


PLANTED: dict[str, Callable[[Manifests], object]] = {
    "a limit misspelt": lambda them: pods_of(them)["server"]["volumes"][-1]["emptyDir"].update(sizelimit="1Gi"),
    "a limit that is a list": lambda them: pods_of(them)["server"]["volumes"][-1]["emptyDir"].update(sizeLimit=["1Gi"]),
    "a secret's name as a word": lambda them: container_of(them, "worker")["envFrom"][0].update(secretRef="keys"),
    "a secret of no kind": lambda them: container_of(them, "worker")["envFrom"][0].update(secretReference={}),
    "variables as a map": lambda them: pods_of(them)["worker"]["containers"][0].update(envFrom={"secretRef": {}}),
}


def test_manifests_pass_strict_schemas(jobset: Manifests, kuberay: Manifests) -> None:
    check(jobset)
    check(kuberay)


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_errors_are_caught(jobset: Manifests, planted: str) -> None:
    PLANTED[planted](jobset)
    with pytest.raises(Exception, match=r"."):
        check(jobset)


def test_a_planted_error_of_a_ray_pod_is_caught(kuberay: Manifests) -> None:
    cluster_of(kuberay)["workerGroupSpecs"][0]["template"]["spec"]["volumes"][-1]["emptyDir"].update(sizelimit="1Gi")
    with pytest.raises(Exception, match=r"."):
        check(kuberay)


def test_pods_need_no_volume_that_others_see(jobset: Manifests, kuberay: Manifests, run_file: Path) -> None:
    assert "PersistentVolumeClaim" not in {it["kind"] for it in jobset}
    assert "persistentVolumeClaim" not in json.dumps([jobset, kuberay])
    sizes = sizes_of(load_run(run_file))
    for part, num_bytes in (("server", sizes.shard_bytes), ("worker", sizes.run_bytes)):
        pod = pods_of(jobset)[part]
        limit = pod["volumes"][-1]["emptyDir"]["sizeLimit"]
        assert int(limit.removesuffix("Gi")) * GIBIBYTE >= num_bytes
        assert pod["containers"][0]["resources"]["requests"]["ephemeral-storage"] == limit
    (group,) = cluster_of(kuberay)["workerGroupSpecs"]
    limit = group["template"]["spec"]["volumes"][-1]["emptyDir"]["sizeLimit"]
    assert int(limit.removesuffix("Gi")) * GIBIBYTE >= 2 * sizes.shard_bytes + sizes.run_bytes, "two of three servers"


def test_every_path_of_a_command_is_mounted(jobset: Manifests) -> None:
    for pod in pods_of(jobset).values():
        (container,) = pod["containers"]
        assert {it["name"] for it in container["volumeMounts"]} == {it["name"] for it in pod["volumes"]}
        mounts = [it["mountPath"] for it in container["volumeMounts"]]
        paths = [word.split("=")[-1] for word in container["command"] if word.split("=")[-1].startswith("/")]
        assert len(paths) >= 3
        for path in paths:
            assert any(path == it or path.startswith(f"{it}/") for it in mounts), path


def test_the_urls_go_through_as_they_are(
    jobset: Manifests, kuberay: Manifests, written: Written, run_file: Path
) -> None:
    log = load_run(run_file).log
    expected = [f"log={log}", f"storage={STORAGE}", "tables.folder=null"]
    assert options_of(container_of(jobset, "server")["command"], "--storage") == [STORAGE]
    for part in ("planner", "worker"):
        given = options_of(container_of(jobset, part)["command"], "--set")
        assert [it for it in given if it in expected] == expected
        assert "run=/scratch/first-run" in given
    entry = shlex.split(of_kind(kuberay, "RayJob")["spec"]["entrypoint"])
    # On its way, older releases of `ray job submit` quote as Windows does, and a shell reads that.
    for line in (shlex.join(entry), subprocess.list2cmdline(entry)):
        words = said_by(
            f"foresee() {{ printf '%s\\0' \"$@\"; }}; export -f foresee; {line.replace('sh -c', 'bash -c', 1)}"
        )
        assert [it for it in options_of(words, "--set") if it in expected] == expected
        assert words[-1] == "--resume-or-begin"
    text = written("slurm", "--nodes", "2", "--scratch", "/local disk/$USER")
    words = said_by(text.partition("job=$SLURM_JOB_ID")[0] + "printf '%s\\0' \"${settings[@]}\"")
    given = options_of(words, "--set")
    assert [it for it in given if it in expected] == expected
    (run,) = [it for it in given if it.startswith("run=")]
    assert run.startswith("run=/local disk/somebody/foresee-first-run-")
    assert run.endswith("-77/run")
    assert f"--storage {shlex.quote(STORAGE)} &" in text
    assert "#SBATCH --job-name=first-run\n" in text


def said_by(script: str) -> list[str]:
    """The words that a script for bash prints, as a job of Slurm."""
    environment = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "77", "USER": "somebody"}
    said = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, check=True, text=True)
    return said.stdout.split("\0")[:-1]


def test_a_job_has_folders_that_no_other_has(written: Written) -> None:
    line = next(it for it in written("slurm").splitlines() if it.startswith("scratch="))
    assert line.startswith('scratch="${TMPDIR:-/tmp}"/foresee-first-run-')
    assert line not in written("slurm").splitlines()


def test_credentials_are_a_name_and_nothing_else(jobset: Manifests, kuberay: Manifests, written: Written) -> None:
    groups = [cluster_of(kuberay)["headGroupSpec"], *cluster_of(kuberay)["workerGroupSpecs"]]
    pods = [*pods_of(jobset).values(), *(it["template"]["spec"] for it in groups)]
    for pod in pods:
        assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "storage-keys"}}]
    assert len(pods) == 5
    assert "envFrom" not in written("jobset", *IMAGE)


def test_what_has_no_url_is_on_a_volume(written: Written, small_log: ClickLog, tmp_path: Path) -> None:
    """The log, the run, or both."""
    plain = ("--set", f"run={tmp_path / 'first-run'}")
    for options, claims, has_rows in (
        ((*CLAIM, "--set", f"log={small_log.path}"), {"logs"}, False),
        (("--data-claim", "runs", *plain), {"runs", "first-run-rows"}, True),
        ((*CLAIM, *plain), {"logs", "first-run-rows"}, True),
    ):
        found = list(yaml.safe_load_all(written("jobset", *IMAGE, *options)))
        check(found)
        volumes = [it for pod in pods_of(found).values() for it in pod["volumes"]]
        assert {it["persistentVolumeClaim"]["claimName"] for it in volumes if "persistentVolumeClaim" in it} == claims
        assert any("emptyDir" in it for it in volumes) is not has_rows
        check(list(yaml.safe_load_all(written("kuberay", *IMAGE, *options))))


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        ("jobset", (*IMAGE, "--set", "log=here"), "log is here, which pods do not see; say with --data-claim and"),
        ("kuberay", (*IMAGE, "--set", "log=here", "--data-claim", "x"), "or give --set log=URL"),
        ("jobset", (*IMAGE, "--set", "run=first"), "run is first, which has no storage"),
        ("kuberay", (*IMAGE, "--log-folder", "criteo"), "--log-folder criteo is a folder of a volume; give its claim"),
        ("slurm", ("--set", "run=first", "--scratch", "/x"), "--scratch /x is for runs whose commits are copied"),
    ],
)
def test_what_is_missing_is_a_sentence(
    run_file: Path, kind: str, options: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert foresee("deploy", kind, run_file, *options, monkeypatch=monkeypatch) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1


def test_the_log_of_a_bucket_is_measured(
    s3_port: int, small_log: ClickLog, tmp_path: Path, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes and layout follow from its description and first batch, which are read there."""
    url = url_of(s3_port, "logs/small")
    out = tmp_path / "job.sh"
    copy_log(small_log, url)
    options = ("--set", f"log={url}", "--out", str(out))
    assert foresee("deploy", "slurm", run_file, *options, monkeypatch=monkeypatch) == 0
    words = said_by(out.read_text().partition("job=$SLURM_JOB_ID")[0] + "printf '%s\\0' \"${settings[@]}\"")
    assert f"log={url}" in options_of(words, "--set")
    here = load_run(run_file, [f"log={small_log.path}"])
    assert sizes_of(load_run(run_file, [f"log={url}"])) == sizes_of(here)


def copy_log(log: ClickLog, url: str) -> None:
    """As another tool would copy it to a bucket."""
    storage = Storage.open(url)
    for path in sorted(log.path.rglob("*")):
        if path.is_file():
            storage.put(path.relative_to(log.path).as_posix(), lambda path=path: [path.read_bytes()])  # type: ignore[misc]


class Pods:
    """The commands of a JobSet as processes of this machine, each with folders that end with it.

    Names of the cluster become addresses of this machine, without TLS: certificates are for those names.
    """

    def __init__(self, commands: Commands, manifests: Manifests, folder: Path) -> None:
        self._commands, self._manifests, self._folder, self._lives = commands, manifests, folder, 0
        texts = of_kind(manifests, "ConfigMap")["data"]
        for name, text in texts.items():
            (folder / name).write_text(text)

    def start(self, *more: str) -> dict[str, Command]:
        """All pods; `more` is for workers."""
        self._lives += 1
        jobs = jobs_of(self._manifests)
        servers = jobs["server"]["replicas"]
        ports, given = free_ports(servers + 2), {}
        for part, job in jobs.items():
            for index in range(job["replicas"]):
                container, name = container_of(self._manifests, part), f"{part} {index}"
                port = ports[index] if part == "server" else ports[servers]
                words = [self._here(it, name, index, ports) for it in container["command"][1:]]
                words = without(words, "--host", "--tls-certificate", "--tls-key", "--tls-root-certificate")
                words = [
                    str(port) if before == "--port" else it for before, it in zip(["", *words], words, strict=False)
                ]
                place = {"RANK": str(index), "WORLD_SIZE": str(jobs["worker"]["replicas"])} if part == "worker" else {}
                place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[-1]), "GLOO_SOCKET_IFNAME": "lo"}
                words += more if part == "worker" else ()
                given[name] = self._commands.start(*words, environment=place)
        return given

    def folder_of(self, name: str) -> Path:
        """What is the pod's own."""
        return self._folder / f"life-{self._lives}" / name.replace(" ", "-")

    def _here(self, word: str, name: str, index: int, ports: list[int]) -> str:
        word = word.replace("$(JOB_INDEX)", str(index)).replace("/run/foresee/config", str(self._folder))
        if word.startswith("grpc+tls://"):
            part = word.removeprefix("grpc+tls://first-run-")
            return f"grpc://127.0.0.1:{ports[-2] if part.startswith('planner') else ports[int(part.split('-')[1])]}"
        for path in ("/rows", "/scratch"):
            if word == path or word.startswith(f"run={path}"):
                word = word.replace(path, f"{self.folder_of(name)}{path}")
        return word

    def lose(self, survivor: str | None = None) -> None:
        """All of them, with what they had; a survivor finds its own again."""
        self._commands.end_all()
        if survivor is not None:
            name = self.folder_of(survivor).name
            (self._folder / f"life-{self._lives + 1}").mkdir()
            shutil.move(self.folder_of(survivor), self._folder / f"life-{self._lives + 1}" / name)
        shutil.rmtree(self._folder / f"life-{self._lives}")


def without(words: list[str], *options: str) -> list[str]:
    at = [number for number, word in enumerate(words) if word in options]
    return [word for number, word in enumerate(words) if number not in at and number - 1 not in at]


@pytest.fixture
def pods(
    commands: Commands, written: Written, tmp_path: Path, small_log: ClickLog, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pods]:
    monkeypatch.setenv("FORESEE_CACHE", str(tmp_path / "cache"))
    options = ("--set", f"run=file://{tmp_path}/first-run", "--set", "distributed.servers=2")
    found = list(yaml.safe_load_all(written("jobset", *IMAGE, *options)))
    yield Pods(commands, found, tmp_path)
    commands.end_all()


@pytest.fixture(scope="module")
def expected(commands: Commands, run_file: Path) -> tuple[Bytes, Bytes]:
    """What the launcher makes of the run, undisturbed and without a storage."""
    folder = run_file.parent / "plain"
    options = ("--set", f"run={folder}", "--set", "tables.folder=null", "--set", "distributed.servers=2")
    code, said = commands.run("train", run_file, *options)
    assert code == 0, said
    return dense_half(folder, 25), rows_in_folders(folder)


def result_at(url: str) -> tuple[Bytes, Bytes]:
    folder = brought_run(url)
    return dense_half(folder, 25), rows_in_folders(folder)


def test_pods_that_are_all_started_again_go_on_from_the_storage(
    pods: Pods, commands: Commands, tmp_path: Path, expected: tuple[Bytes, Bytes]
) -> None:
    started = pods.start("--stop-after", "12")
    for name in ("worker 0", "worker 1"):
        assert commands.wait(started[name]) == 0, started[name].text()
    pods.lose()
    started = pods.start()
    for name in ("worker 0", "worker 1"):
        assert commands.wait(started[name]) == 0, started[name].text()
    assert "from step 12 on" in started["worker 0"].text()
    commands.end_all()
    assert result_at(f"file://{tmp_path}/first-run") == expected


@pytest.mark.parametrize("survivor", [None, "server 0"], ids=["all lost", "a server stays"])
def test_a_first_commit_of_which_rows_are_missing_is_done_again(
    pods: Pods, commands: Commands, tmp_path: Path, expected: tuple[Bytes, Bytes], survivor: str | None
) -> None:
    """The dense half was copied, and one of two servers; then machines are lost."""
    started = pods.start("--stop-after", "5")
    for name in ("worker 0", "worker 1"):
        assert commands.wait(started[name]) == 0, started[name].text()
    shutil.rmtree(tmp_path / "first-run" / "tables" / "shard-1-of-2")
    pods.lose(survivor)
    started = pods.start()
    for name in ("worker 0", "worker 1"):
        assert commands.wait(started[name]) == 0, started[name].text()
    assert "from the start" in started["worker 0"].text()
    commands.end_all()
    assert num_steps_done(brought_run(f"file://{tmp_path}/first-run")) == 25
    assert result_at(f"file://{tmp_path}/first-run") == expected
