"""The contract of an engine as executable tests: real runs of two servers, a planner and two workers, and real kills.

    class TestMyEngine(EngineSuite):
        options = ("--on", "my_engine")

Each test trains for some seconds. Parts are killed by the process ids in `RUN/logs/parts.json`, so all of them have to
be on this machine, in one process namespace. What a run leaves is compared with one that the local engine trained and
nobody disturbed: rows, their state, their versions and the weights, byte for byte.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from foresee.data.synthetic import tiny
from foresee.run.build import open_log, open_tables
from foresee.run.folder import open_run
from foresee.store.contract import Rows

NUM_SAMPLES, BATCH_SIZE, EPOCHS = 500, 16, 8
NUM_STEPS = NUM_SAMPLES * 8 // 10 // BATCH_SIZE * EPOCHS
WAIT_SECONDS = 240.0
SETTINGS = f"""
run: run
model: {{name: dlrm, dim: 4, options: {{bottom: [8], top: [8]}}}}
cache: {{rows: 100}}
train: {{batch_size: {BATCH_SIZE}, epochs: {EPOCHS}, num_threads: 1, log_every_steps: 1, commit_every_steps: 10}}
distributed: {{workers: 2, servers: 2, placement: contiguous}}
"""


class Launched:
    """A `foresee train` under way."""

    def __init__(self, run_file: Path, options: tuple[str, ...]) -> None:
        self.run = run_file.parent / "run"
        self._output = run_file.parent / "output.txt"
        words = [sys.executable, "-m", "foresee", "train", str(run_file), *options]
        with open(self._output, "ab") as file:
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    @property
    def text(self) -> str:
        return self._output.read_text("utf-8", "replace")

    @property
    def parts(self) -> dict[str, int]:
        """Process ids by name, in the order in which the parts were started; 0 for one that waits for a place."""
        file = self.run / "logs" / "parts.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}

    @property
    def num_steps(self) -> int:
        file = self.run / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        steps = [json.loads(line) for line in lines if line.endswith("}")]
        return max((int(line["step"]) for line in steps if line["kind"] == "train"), default=0)

    def wait_for_step(self, step: int) -> None:
        until(lambda: self.num_steps >= step or self._process.poll() is not None, f"step {step}", self)
        assert self._process.poll() is None, f"the run was over before step {step}:\n{self.text}"

    def kill_part(self, name: str) -> None:
        until(lambda: self.parts.get(name, 0) > 0, f"{name}", self)
        os.kill(self.parts[name], signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Its exit code, when it has ended by itself."""
        until(lambda: self._process.poll() is not None, "the end of the run", self)
        code = self._process.poll()
        assert code is not None
        return code

    def give_up(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def until(done: Callable[[], bool], what: str, launched: Launched) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not done():
        assert time.monotonic() < deadline, f"waited {WAIT_SECONDS:.0f} s for {what}:\n{launched.text}"
        time.sleep(0.02)


def is_alive(process_id: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def result_of(run: Path) -> dict[str, bytes]:
    """Everything that a finished run has learned."""
    config = open_run(run)
    with open_tables(config, open_log(config)) as tables:
        rows = Rows.empty(tables.layout.num_rows, tables.layout)
        tables.store.read(np.arange(tables.layout.num_rows), rows)
    weights = run / "checkpoints" / f"step-{NUM_STEPS:09d}" / "model.safetensors"
    return {
        "values": rows.values.tobytes(), "state": rows.state.tobytes(), "versions": rows.versions.tobytes(),
        "weights": weights.read_bytes(),
    }  # fmt: skip


class EngineSuite:
    """What an engine must do."""

    options: ClassVar[tuple[str, ...]] = ()
    """How `foresee train` is told to use it."""

    @pytest.fixture(scope="class")
    @classmethod
    def log(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tiny(tmp_path_factory.mktemp("engine") / "log", seed=5, num_samples=NUM_SAMPLES).path

    @pytest.fixture(scope="class")
    @classmethod
    def expected(cls, log: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
        """What one machine makes of the run, undisturbed."""
        run_file = tmp_path_factory.mktemp("undisturbed") / "run.yaml"
        run_file.write_text(f"log: {log}{SETTINGS}")
        launched = Launched(run_file, ())
        assert launched.end() == 0, launched.text
        return result_of(launched.run)

    @pytest.fixture
    def launch(self, log: Path, tmp_path: Path) -> Iterator[Callable[..., Launched]]:
        """Starts `foresee train` on the engine; when the test is over, nothing of it may be left."""
        started: list[Launched] = []
        run_file = tmp_path / "run.yaml"
        run_file.write_text(f"log: {log}{SETTINGS}")

        def start(*options: str) -> Launched:
            started.append(Launched(run_file, (*self.options, *options)))
            return started[-1]

        yield start
        for launched in started:
            launched.give_up()
        seen = [pid for launched in started for pid in launched.parts.values() if pid]
        deadline = time.monotonic() + WAIT_SECONDS
        while any(is_alive(pid) for pid in seen):
            assert time.monotonic() < deadline, f"parts were left behind: {[pid for pid in seen if is_alive(pid)]}"
            time.sleep(0.05)

    def test_a_run_that_loses_every_kind_of_part_ends_with_the_same_bytes(
        self, launch: Callable[..., Launched], expected: dict[str, bytes]
    ) -> None:
        launched = launch()
        for step, part in ((12, "server 1"), (50, "planner"), (90, "worker 1"), (130, "worker 0")):
            launched.wait_for_step(step)
            launched.kill_part(part)
            until(lambda part=part: launched.text.count(f"{part} was killed") > 0, f"word of {part}", launched)  # type: ignore[misc]
        assert launched.end() == 0, launched.text
        assert result_of(launched.run) == expected

    def test_servers_and_planner_are_there_before_workers(self, launch: Callable[..., Launched]) -> None:
        launched = launch("--stop-after", "3")
        assert launched.end() == 0, launched.text
        assert list(launched.parts) == ["server 0", "server 1", "planner", "worker 0", "worker 1"]

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_stop_commits_and_resuming_ends_with_the_same_bytes(
        self, launch: Callable[..., Launched], expected: dict[str, bytes], number: signal.Signals, code: int
    ) -> None:
        launched = launch()
        launched.wait_for_step(15)
        launched.send(number)
        assert launched.end() == code, launched.text
        assert "go on with --resume" in launched.text
        assert not any(is_alive(pid) for pid in launched.parts.values() if pid)
        assert launch("--resume").end() == 0
        assert result_of(launched.run) == expected

    def test_a_part_that_is_killed_once_too_often_ends_the_run(self, launch: Callable[..., Launched]) -> None:
        launched = launch("--set", "distributed.restarts_max=0")
        launched.wait_for_step(2)
        launched.kill_part("server 0")
        assert launched.end() == 1, launched.text
        assert "server 0 was killed by SIGKILL and everything else was taken down" in launched.text

    def test_a_killed_controller_takes_everything_along_and_the_run_goes_on(
        self, launch: Callable[..., Launched], expected: dict[str, bytes]
    ) -> None:
        launched = launch()
        launched.wait_for_step(12)
        launched.send(signal.SIGKILL)
        launched.end()
        until(lambda: not any(is_alive(pid) for pid in launched.parts.values() if pid), "the end of parts", launched)
        again = launch("--resume")
        assert again.end() == 0, again.text
        assert result_of(again.run) == expected

    def test_a_mistake_is_a_sentence(self, launch: Callable[..., Launched]) -> None:
        launched = launch("--set", "cache.rows=3")
        assert launched.end() == 2
        assert "the smallest cache that works" in launched.text
        assert "Traceback" not in launched.text
