"""The script of `foresee deploy slurm` on a real Slurm: the launcher's bytes, whatever part of the job is lost.

One Slurm with four nodes serves all tests; where it is not installed they say so and are skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm_cluster
from slurm_cluster import SlurmCluster
from warm_commands import Commands

from foresee.data.synthetic import tiny
from foresee.run.backup_shards import brought_run
from foresee.testing.engine_suite import NUM_SAMPLES, SETTINGS, result_of

LONG = os.environ.get("FORESEE_ENGINES") == "long"
ONLY_LONG = pytest.mark.skipif(not LONG, reason="one of the longer tests of Slurm: make chaos-machines")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WAIT_SECONDS = 240.0
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    if (lacking := slurm_cluster.missing()) is not None:
        pytest.skip(lacking)
    with slurm_cluster.slurm_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("slurm") / "log", seed=5, num_samples=NUM_SAMPLES).path


@pytest.fixture(scope="module")
def expected(
    cluster: SlurmCluster, log: Path, commands: Commands, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """What the launcher makes of the run, undisturbed."""
    run_file = tmp_path_factory.mktemp("undisturbed") / "run.yaml"
    run_file.write_text(f"log: {log}{SETTINGS}")
    code, text = commands.run("train", run_file)
    assert code == 0, text
    return result_of(run_file.parent / "run")


class Job:
    """One that was given to `sbatch`."""

    def __init__(self, cluster: SlurmCluster, folder: Path, *options: str) -> None:
        self.cluster, self.folder, self.run = cluster, folder, folder / "run"
        self.number = cluster.ask("sbatch", "--parsable", *options, str(folder / "job.sh"), folder=folder)

    @property
    def text(self) -> str:
        file = self.folder / f"slurm-{self.number}.out"
        return file.read_text("utf-8", "replace") if file.exists() else ""

    def until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not done():
            late = time.monotonic() > deadline
            assert not late, f"waited for {what}:\n{self.text}\n{self.cluster.details(self.number)}"
            time.sleep(0.1)

    def wait_for_step(self, step: int) -> None:
        self.until(lambda: self._steps() >= step or self.over, f"step {step}")
        assert not self.over, self.text

    def _steps(self) -> int:
        """Of a run with a storage: as the nodes have it on their own disks."""
        files = [self.run / "metrics.jsonl", *self.on_disks("run/metrics.jsonl")]
        lines = [it.read_text().splitlines() for it in files if it.exists()]
        return max((sum('"train"' in line for line in some) for some in lines), default=0)

    def on_disks(self, path: str) -> list[Path]:
        """What nodes have of this job on disks of their own."""
        return sorted(self.cluster.folder.glob(f"disk-node*/foresee-*-{self.number}/{path}"))

    def wait_for_another_turn(self, between: Callable[[], object] = lambda: None) -> None:
        """Slurm lets a job that was queued again wait for two minutes. Here some seconds are enough: in the one of its
        first end nodes would take it for that."""
        self.until(lambda: self.cluster.details(self.number)["Restarts"] == "1" or self.over, "another turn")
        assert not self.over, self.text
        self.until(lambda: self.cluster.state(self.number) == "PENDING", "the end of its first turn")
        between()
        self.cluster.ask("scontrol", "update", f"job={self.number}", "StartTime=now+3")

    @property
    def over(self) -> bool:
        return self.cluster.state(self.number) in OVER

    def end(self) -> str:
        """How Slurm says it ended: a state and an exit code."""
        self.until(lambda: self.over, "the end of the job")
        details = self.cluster.details(self.number)
        return f"{details['JobState']} {details['ExitCode']}"

    def processes(self, *words: str) -> list[int]:
        """Processes on any node whose command line holds these words."""
        found = []
        for host in slurm_cluster.NODES:
            for process_id in self.cluster.processes(host):
                line = command_line(process_id)
                if "python" in line[0] and all(word in line for word in words):
                    found.append(process_id)
        return found

    def kill(self, *words: str) -> None:
        os.kill(self.processes(*words)[0], signal.SIGKILL)


def command_line(process_id: int) -> list[str]:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return [""]


Submit = Callable[..., Job]


@pytest.fixture
def submit(cluster: SlurmCluster, log: Path, commands: Commands, tmp_path: Path) -> Iterator[Submit]:
    """Writes the script for a run on two nodes and submits it; nothing may be left on any node afterwards."""
    jobs: list[Job] = []

    def start(*options: str, settings: tuple[str, ...] = (), more: tuple[str, ...] = ()) -> Job:
        (tmp_path / "run.yaml").write_text(f"log: {log}{SETTINGS}")
        words = [*more, *(word for it in settings for word in ("--set", it))]
        words += ["--nodes", "2", "--command", f"{sys.executable} -m foresee", "--out", str(tmp_path / "job.sh")]
        code, text = commands.run("deploy", "slurm", tmp_path / "run.yaml", *words)
        assert code == 0, text
        jobs.append(Job(cluster, tmp_path, *options))
        return jobs[-1]

    yield start
    for job in jobs:
        if not job.over:
            cluster.ask("scancel", job.number)
        job.until(lambda job=job: not job.processes("foresee"), "the end of all parts")  # type: ignore[misc]
        assert not list(tmp_path.glob(".foresee-*")), "keys of a job that is over"


def test_a_job_ends_with_the_bytes_of_the_launcher(submit: Submit, expected: dict[str, bytes]) -> None:
    job = submit()
    assert job.end() == "COMPLETED 0:0", job.text
    assert result_of(job.run) == expected


@pytest.fixture
def submit_stored(submit: Submit, cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """The same for a run whose folder is a URL: nodes have disks of their own, and nothing of it stays on them."""
    monkeypatch.setenv("FORESEE_CACHE", str(tmp_path / "cache"))

    def start(*options: str) -> Job:
        return submit(*options, settings=(f"run={storage_of(tmp_path)}",), more=("--scratch", str(cluster.disk)))

    return start


def storage_of(folder: Path) -> str:
    return f"file://{folder}/storage/run"


def check_stored(job: Job, expected: dict[str, bytes]) -> None:
    """The bytes of the storage, and nothing anywhere else."""
    assert job.end() == "COMPLETED 0:0", job.text
    assert not job.run.exists()
    assert not (job.folder / "cache").exists(), "the folder of who has submitted it"
    assert job.on_disks("") == []
    assert result_of(brought_run(storage_of(job.folder))) == expected


@ONLY_LONG
def test_a_run_in_a_storage_needs_no_folder_that_nodes_share(submit_stored: Submit, expected: dict[str, bytes]) -> None:
    """A server loses its folder with itself; then the job has another turn, and no node has anything of it."""
    job = submit_stored()
    job.wait_for_step(25)
    assert {it.parts[-4] for it in job.on_disks("tables/shard-*")} == {"disk-node1", "disk-node2"}
    job.kill("serve", "4441")
    (folder,) = job.on_disks("tables/shard-1")
    shutil.rmtree(folder)
    job.until(lambda: "server 1 was lost" in job.text or job.over, "word of the server")
    job.wait_for_step(60)
    job.cluster.ask("scancel", "--batch", "--signal=TERM", job.number)
    job.wait_for_another_turn(between=job.cluster.empty_disks)
    check_stored(job, expected)
    assert "over 2 workers, from step " in job.text


@ONLY_LONG
def test_lost_parts_are_started_again_and_the_bytes_are_the_same(submit: Submit, expected: dict[str, bytes]) -> None:
    job = submit()
    for step, part, words in (
        (12, "server 1 was", ("serve", "4441")),
        (50, "planner was", ("plan-server",)),
        (90, "workers were", ("worker",)),
    ):
        job.wait_for_step(step)
        job.kill(*words)
        job.until(lambda part=part: f"{part} lost" in job.text or job.over, f"word of {part}")  # type: ignore[misc]
    assert job.end() == "COMPLETED 0:0", job.text
    assert job.text.count("restart 3 of at most") == 1
    assert result_of(job.run) == expected


@ONLY_LONG
def test_a_part_that_is_lost_once_too_often_ends_the_job(submit: Submit) -> None:
    job = submit(settings=("distributed.restarts_max=0",))
    job.wait_for_step(2)
    job.kill("serve", "4440")
    assert job.end() == "FAILED 1:0", job.text
    assert "one restart too many (at most 0)" in job.text


@ONLY_LONG
@pytest.mark.parametrize("setting", ["cache.rows=3"])
def test_a_mistake_ends_the_job_with_its_sentence(submit: Submit, setting: str) -> None:
    job = submit(settings=(setting,))
    assert job.end() == "FAILED 2:0", job.text
    assert "the smallest cache that works" in job.text


@ONLY_LONG
def test_before_its_time_is_over_a_job_commits_and_goes_on_in_another_turn(
    submit: Submit, expected: dict[str, bytes]
) -> None:
    """The signal of `--signal=B:TERM@180`, sent by hand."""
    job = submit()
    job.wait_for_step(15)
    job.cluster.ask("scancel", "--batch", "--signal=TERM", job.number)
    job.wait_for_another_turn()
    assert job.end() == "COMPLETED 0:0", job.text
    assert "go on with --resume" in job.text
    assert "over 2 workers, from step " in job.text
    assert result_of(job.run) == expected


@ONLY_LONG
def test_slurm_sends_that_signal(submit: Submit) -> None:
    job = submit("--time=2", "--signal=B:TERM@5", settings=("train.epochs=4000",))
    job.wait_for_another_turn()
    assert "go on with --resume" in job.text
    assert "the job is queued again" in job.text
    job.cluster.ask("scancel", job.number)
    assert job.end().startswith("CANCELLED")


@ONLY_LONG
@pytest.mark.parametrize(
    ("words", "state"),
    [(("--batch", "--signal=INT"), "FAILED 130:0"), ((), "CANCELLED")],
    ids=["commits", "at-once"],
)
def test_a_person_who_stops_it_may_submit_it_again(
    submit: Submit, expected: dict[str, bytes], words: tuple[str, ...], state: str
) -> None:
    job = submit()
    job.wait_for_step(15)
    job.cluster.ask("scancel", *words, job.number)
    assert job.end().startswith(state), job.text
    assert job.cluster.details(job.number)["Restarts"] == "0"
    job.until(lambda: not job.processes("foresee"), "the end of all parts")
    again = Job(job.cluster, job.folder)
    assert again.end() == "COMPLETED 0:0", again.text
    assert "over 2 workers, from step " in again.text
    assert result_of(again.run) == expected


@ONLY_LONG
def test_a_lost_node_gives_its_place_to_another(submit: Submit, expected: dict[str, bytes]) -> None:
    """The last test but one: the node stays lost."""
    job = submit()
    job.wait_for_step(15)
    job.cluster.lose("node2")
    job.wait_for_another_turn()
    assert job.end() == "COMPLETED 0:0", job.text
    nodes = job.cluster.details(job.number)["NodeList"]
    assert "node2" not in job.cluster.ask("scontrol", "show", "hostnames", nodes).split()
    assert result_of(job.run) == expected


@ONLY_LONG
def test_a_lost_node_takes_nothing_of_a_run_in_a_storage_with_it(
    submit_stored: Submit, cluster: SlurmCluster, expected: dict[str, bytes]
) -> None:
    """Worker 0, the planner and a server, and all that was on its disk. The last test: the node stays lost."""
    job = submit_stored()
    job.wait_for_step(25)
    lost = cluster.details(job.number)["BatchHost"]
    cluster.lose(lost)
    job.wait_for_another_turn()
    check_stored(job, expected)
    assert cluster.details(job.number)["BatchHost"] != lost
    assert "over 2 workers, from step " in job.text
