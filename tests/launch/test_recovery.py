"""Parts that are killed are started again, and the run ends with the bytes of one that nobody disturbed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from run_results import Bytes, dense_half, num_steps_done, rows_in_folders
from warm_commands import SPEECHLESS, Command, Commands, is_alive

from waiting import wait_until

EPOCHS = 4
NUM_STEPS = 25 * EPOCHS
OPTIONS = ("--set", f"train.epochs={EPOCHS}", "--set", "train.commit_every_steps=10")


@pytest.fixture(scope="module")
def undisturbed(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bytes]:
    """What a run leaves that nobody disturbs, by its settings; trained once for each."""
    known: dict[tuple[str, ...], Bytes] = {}

    def results(run_file: Path, *options: str) -> Bytes:
        if options not in known:
            folder = tmp_path_factory.mktemp("undisturbed")
            code, text = commands.run("train", run_file, *options, "--set", f"run={folder / 'run'}")
            assert code == 0, text
            known[options] = everything(folder / "run")
        return known[options]

    return results


def everything(run: Path) -> Bytes:
    return {**rows_in_folders(run), **dense_half(run, NUM_STEPS)}


def wait_for_step(launched: Command, run: Path, step: int) -> None:
    wait_until(lambda: num_steps_done(run) >= step or not is_alive(launched.process_id), f"step {step}")
    assert num_steps_done(run) < NUM_STEPS, "the run was over before it could be disturbed"


@pytest.mark.parametrize(
    ("part", "words"),
    [("worker0", True), ("worker1", False), ("serve0", False), ("serve1", True), ("plan-server", False)],
)
def test_a_killed_part_is_started_again(
    commands: Commands, run_file: Path, undisturbed: Callable[..., Bytes], part: str, words: bool
) -> None:
    """Also where no error says anything: what is done about it follows from its class."""
    expected, run = undisturbed(run_file, *OPTIONS), run_file.parent / "run"
    launched = commands.start("train", run_file, *OPTIONS, environment={} if words else {SPEECHLESS: "1"})
    wait_for_step(launched, run, 12)
    os.kill(launched.children()[part], signal.SIGKILL)
    assert commands.wait(launched) == 0, launched.text()
    assert "was killed by SIGKILL" in launched.text()
    assert everything(run) == expected


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("part", ["worker1", "serve0", "plan-server"])
@pytest.mark.parametrize("workers", [2, 3])
def test_a_clipped_run_killed_late_ends_with_the_same_bytes(
    commands: Commands, run_file: Path, undisturbed: Callable[..., Bytes], workers: int, part: str
) -> None:
    """The rows of the first steps after a recovery come from the store, and the norm is the same nevertheless."""
    more = {"distributed.workers": workers, "distributed.placement": "location_aware", "train.clip_norm": 0.05}
    options = (*OPTIONS, *(word for key, value in more.items() for word in ("--set", f"{key}={value}")))
    expected, run = undisturbed(run_file, *options), run_file.parent / "run"
    launched = commands.start("train", run_file, *options)
    wait_for_step(launched, run, 62)
    os.kill(launched.children()[part], signal.SIGKILL)
    assert commands.wait(launched) == 0, launched.text()
    assert "was killed by SIGKILL" in launched.text()
    assert everything(run) == expected


def test_a_killed_launcher_leaves_a_run_that_goes_on(
    commands: Commands, run_file: Path, undisturbed: Callable[..., Bytes]
) -> None:
    expected, run = undisturbed(run_file, *OPTIONS), run_file.parent / "run"
    launched = commands.start("train", run_file, *OPTIONS)
    wait_for_step(launched, run, 12)
    parts = launched.children()
    launched.signal(signal.SIGKILL)
    assert commands.wait(launched) == -signal.SIGKILL
    wait_until(lambda: not any(is_alive(it) for it in parts.values()), "the end of its parts")
    code, text = commands.run("train", run_file, *OPTIONS, "--resume")
    assert code == 0, text
    assert everything(run) == expected


def test_servers_in_memory_roll_back_when_a_trainer_is_killed(
    commands: Commands, run_file: Path, undisturbed: Callable[..., Bytes]
) -> None:
    expected, run = undisturbed(run_file, *OPTIONS), run_file.parent / "run"
    launched = commands.start("train", run_file, *OPTIONS, "--set", "tables.store=memory")
    wait_for_step(launched, run, 12)
    os.kill(launched.children()["worker1"], signal.SIGKILL)
    assert commands.wait(launched) == 0, launched.text()
    assert "worker 1 was killed by SIGKILL; all trainers go on from the last commit" in launched.text()
    assert dense_half(run, NUM_STEPS)["model"] == expected["model"]


def test_a_run_that_is_done_says_so_when_it_is_resumed(commands: Commands, run_file: Path) -> None:
    for resume in ([], ["--resume"]):
        code, text = commands.run("train", run_file, *resume)
        assert code == 0, text
        assert "done: 25 steps" in text
