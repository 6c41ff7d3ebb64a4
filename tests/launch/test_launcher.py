"""`foresee train --workers 2 --servers 2`: whatever ends it, it says so, and no process stays behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from run_results import num_steps_done
from warm_commands import Command, Commands, is_alive

from waiting import wait_until

PARTS = {"serve0", "serve1", "plan-server", "worker0", "worker1"}
ENDLESS = ("--set", "train.epochs=10000")


def started(commands: Commands, run_file: Path, *options: str) -> tuple[Command, dict[str, int]]:
    """A run that trains, and the processes of its parts."""
    launched = commands.start("train", run_file, *ENDLESS, *options)
    wait_until(lambda: num_steps_done(run_file.parent / "run") >= 2 or not is_alive(launched.process_id), "step 2")
    parts = launched.children()
    assert set(parts) == PARTS, launched.text()
    return launched, parts


def assert_all_gone(parts: dict[str, int]) -> None:
    wait_until(lambda: not any(is_alive(it) for it in parts.values()), f"the end of {parts}")


@pytest.mark.parametrize(
    ("part", "said"), [("serve1", "server 1"), ("plan-server", "planner"), ("worker1", "worker 1")]
)
def test_a_part_that_is_killed_once_too_often_takes_everything_down(
    commands: Commands, run_file: Path, part: str, said: str
) -> None:
    launched, parts = started(commands, run_file, "--set", "distributed.restarts_max=0")
    os.kill(parts[part], signal.SIGKILL)
    assert commands.wait(launched) == 1
    assert_all_gone(parts)
    assert f"foresee: {said} was killed by SIGKILL and everything else was taken down" in launched.text()


def test_a_server_in_memory_that_is_killed_ends_the_run(commands: Commands, run_file: Path) -> None:
    launched, parts = started(commands, run_file, "--set", "tables.store=memory")
    os.kill(parts["serve0"], signal.SIGKILL)
    assert commands.wait(launched) == 1
    assert_all_gone(parts)
    assert "a server that ends takes the run with it" in launched.text()


def test_an_error_in_a_worker_is_told_with_its_last_lines(commands: Commands, run_file: Path) -> None:
    launched = commands.start(
        "train", run_file, "--set", "model.name=own_models:FailsInWorkerOne", "--set", "model.options={}"
    )
    assert commands.wait(launched) == 1
    text = launched.text()
    assert "foresee: worker 1 ended with exit code 1" in text
    assert "ValueError: the third forward of worker 1 fails, as it should" in text
    assert launched.children() == {}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["model.name=no_such_package:Model"], "no_such_package"),
        (["train.batch_size=1"], "train.batch_size: 2 workers cannot share 1 samples; choose at least 2"),
        (["cache.rows=3"], "the smallest cache that works"),
        (["train.device=cuda"], "train.device"),
        (["distributed.elastic.workers_min=1"], "the nodes of this engine do not come and go"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing(
    commands: Commands, run_file: Path, settings: list[str], sentence: str
) -> None:
    code, text = commands.run("train", run_file, *(word for it in settings for word in ("--set", it)))
    assert code == 2, text
    assert sentence in text
    assert "Traceback" not in text
    assert not (run_file.parent / "run").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (None, 143)], ids=["signal", "file"])
def test_whoever_asks_stops_all_after_a_commit(
    commands: Commands, run_file: Path, number: signal.Signals | None, code: int
) -> None:
    launched, parts = started(commands, run_file)
    asked = run_file.parent / "run" / "stop"
    asked.touch() if number is None else launched.signal(number)
    assert commands.wait(launched) == code
    assert not asked.exists()
    assert_all_gone(parts)
    assert "go on with --resume" in launched.text()
    lines = (run_file.parent / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["kind"] == "commit"


def test_a_second_signal_ends_all_at_once(commands: Commands, run_file: Path) -> None:
    launched, parts = started(commands, run_file)
    os.kill(parts["serve0"], signal.SIGSTOP)  # so that the commit cannot end
    launched.signal(signal.SIGINT)
    wait_until(lambda: "stopping after a commit" in launched.text(), "an answer to the first signal")
    launched.signal(signal.SIGINT)
    assert commands.wait(launched) == 130
    assert_all_gone(parts)


def test_parts_end_with_a_launcher_that_was_killed(commands: Commands, run_file: Path) -> None:
    launched, parts = started(commands, run_file)
    launched.signal(signal.SIGKILL)
    assert commands.wait(launched) == -signal.SIGKILL
    assert_all_gone(parts)
