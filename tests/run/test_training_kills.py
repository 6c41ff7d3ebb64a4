"""Processes that end: by Ctrl-C, by SIGTERM, by kill -9 at any moment. After --resume the bytes are the same."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from training_runs import everything, small_run, train_quietly

from foresee.data import ClickLog, tiny
from foresee.run.config import RunConfig
from foresee.run.folder import RunFolder

WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "log", num_samples=4000)


def _start(config: RunConfig, *, resume: bool) -> int:
    """Trains in a child of this process, which has everything imported and compiled; gives its process id."""
    child = os.fork()
    if child:
        return child
    try:
        outcome, _ = train_quietly(config, resume=resume)
        os._exit(outcome.exit_code)
    except BaseException:
        os._exit(99)


def _wait_for_step(config: RunConfig, step: int) -> None:
    """Until the child has trained so far, seen from outside."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        if any(line["step"] >= step for line in RunFolder(config.run).read_metrics()):
            return
        time.sleep(0.002)
    pytest.fail(f"the child did not reach step {step} in {WAIT_SECONDS:.0f} seconds")


def _exit_code(child: int) -> int:
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.fixture(scope="module")
def uninterrupted(log: ClickLog, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    config = small_run(log, tmp_path_factory.mktemp("whole") / "run", train={"epochs": 3})
    train_quietly(config)
    return everything(config)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_loop_after_a_step_and_keeps_it(
    log: ClickLog, tmp_path: Path, uninterrupted: dict[str, bytes], number: signal.Signals, code: int
) -> None:
    for attempt in range(10):  # on a machine that stalls, a run may be over before the signal is sent
        config = small_run(log, tmp_path / f"run-{attempt}", train={"epochs": 3, "log_every_steps": 1})
        child = _start(config, resume=False)
        _wait_for_step(config, 20)
        os.kill(child, number)
        if (found := _exit_code(child)) != 0:
            break
    assert found == code
    commits = [line["step"] for line in RunFolder(config.run).read_metrics() if line["kind"] == "commit"]
    assert len(commits) == 1
    assert 20 <= commits[0] < 300
    outcome, _ = train_quietly(config, resume=True)
    assert outcome.counters.num_steps == 300 - commits[0]
    assert everything(config) == uninterrupted


@pytest.mark.parametrize("seed", range(3))
def test_kill_9_at_any_moment_then_resume(
    log: ClickLog, tmp_path: Path, uninterrupted: dict[str, bytes], seed: int
) -> None:
    rng = random.Random(seed)
    config = small_run(log, tmp_path / "run", train={"epochs": 3, "commit_every_steps": 4, "log_every_steps": 1})
    killed = 0
    for _ in range(1000):
        child = _start(config, resume=killed > 0)
        seen = max((line["step"] for line in RunFolder(config.run).read_metrics()), default=0) if killed else 0
        if killed < 5:
            _wait_for_step(config, seen + 1)
            time.sleep(rng.random() * 0.1)
            os.kill(child, signal.SIGKILL)
        code = _exit_code(child)
        if code == 0 and killed:
            break
        if code == 0:  # it was over before it was killed, as on a machine that stalls: again from the start
            shutil.rmtree(config.run)
            continue
        assert code == -signal.SIGKILL
        killed += 1
    assert killed >= 1
    assert everything(config) == uninterrupted
