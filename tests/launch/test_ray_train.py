"""A loop of one's own inside Ray Train, on this machine: asked to stop by a file, and with a trainer killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from test_engines import LONG

from waiting import wait_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "with_ray_train.py"

WAIT_SECONDS = 200.0
"""Ray Train takes its time to let go of trainers whose node is gone."""
END_SECONDS = 380.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


Start = Callable[[Sequence[str], Path], "subprocess.Popen[bytes]"]
"""How a command is started, whose output goes into a file."""


def example(folder: Path, epochs: int, *options: str) -> list[str]:
    settings = ["--folder", str(folder), "--samples", "20000", "--epochs", str(epochs)]
    return [sys.executable, str(EXAMPLE), *settings, *options]


def on_this_machine(words: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    with open(output, "wb") as file:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"},
        )  # fmt: skip


class Fit:
    """The example under way."""

    def __init__(self, folder: Path, epochs: int, *options: str, start: Start = on_this_machine) -> None:
        pytest.importorskip("ray.train", reason="Ray Train is not here: pip install 'ray[train]'")
        self._folder, self._output = folder, folder.with_name(f"{folder.name}.txt")
        self._process = start(example(folder, epochs, *options), self._output)

    @property
    def said(self) -> str:
        """By the trainers of this fit and of those before it."""
        file = self._folder / "said.txt"
        return file.read_text() if file.exists() else ""

    def wait_for(self, what: str) -> re.Match[str]:
        over = self._process.poll
        wait_until(lambda: re.search(what, self.said) is not None or over() is not None, what, WAIT_SECONDS)
        found = re.search(what, self.said)
        assert found is not None, self._output.read_text("utf-8", "replace")
        return found

    def end(self) -> str:
        assert self._process.wait(END_SECONDS) == 0, self._output.read_text("utf-8", "replace")
        return self.said


def test_a_stop_reaches_a_loop_that_runs_in_a_thread(tmp_path: Path) -> None:
    asked = tmp_path / "run" / "stop"
    asked.parent.mkdir()
    asked.touch()
    said = Fit(tmp_path / "run", epochs=2).end()
    assert sorted(re.findall(r"trainer (\d) is process \d+, begins after step 0", said)) == ["0", "1"]
    assert sorted(re.findall(r"trainer (\d) has kept step 2 of 70", said)) == ["0", "1"]
    assert said.count("has kept step") == 2
    assert not asked.exists()


@pytest.mark.skipif(not LONG, reason="trains for a minute: FORESEE_ENGINES=long, or make chaos-machines")
def test_a_killed_trainer_and_a_stop_cost_no_byte(tmp_path: Path) -> None:
    expected = Fit(tmp_path / "undisturbed", epochs=40).end()
    fit = Fit(tmp_path / "disturbed", epochs=40)
    victim = fit.wait_for(r"trainer 1 is process (\d+), begins after step 0")
    fit.wait_for(r"has kept step 60 of")
    os.kill(int(victim[1]), signal.SIGKILL)
    begun = fit.wait_for(r"begins after step ([1-9]\d*)")
    (tmp_path / "disturbed" / "stop").touch()
    kept = int(re.findall(r"has kept step (\d+) of 1400", fit.end())[-1])
    assert int(begun[1]) < kept < 1400, "it was stopped before its end"
    onwards = Fit(tmp_path / "disturbed", epochs=40).end()
    assert f"begins after step {kept}\n" in onwards
    assert result(onwards) == result(expected)


def result(said: str) -> str:
    (found,) = re.findall(r"all rows and weights together: (\w+)", said)
    return str(found)
