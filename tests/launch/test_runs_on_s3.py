"""Runs whose commits are on a real S3 server: killed, cut off and refused, and enough to go on from alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from training_runs import everything, small_run, train_quietly
from warm_commands import Commands

from foresee.data import ClickLog, tiny
from foresee.run import backup
from foresee.run.callbacks import StepResult
from foresee.run.config_file import dump_run
from foresee.run.folder import BEHIND_FILE
from s3_server import ENVIRONMENT, Network, url_of


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "log", seed=3, num_samples=800)


def test_a_run_that_was_killed_goes_on_from_s3_alone(
    network: Network, log: ClickLog, tmp_path: Path, commands: Commands
) -> None:
    """Killed between a pack and the pointer to it, with a server that was away for a while; its folder is lost.

    The run is long enough for the first commit to be copied before the last step, which commits in any case.
    """
    plain = small_run(log, tmp_path / "plain", train={"epochs": 40})
    train_quietly(plain)
    storage, settings = url_of(network.port, "runs/killed"), {"commit_every_steps": 4, "epochs": 40}
    config = small_run(log, tmp_path / "run", storage=storage, train=settings)
    file, faults = tmp_path / "run.yaml", tmp_path / "faults"
    file.write_text(dump_run(config))
    faults.mkdir()
    (faults / "one.json").write_text(
        json.dumps({"part": "train", "point": "copying", "occurrence": 2, "signal": "SIGKILL"})
    )
    network.slow_downs, network.cuts_at_bytes = 1, [60_000]
    killed = commands.start("train", file, environment={**ENVIRONMENT, "FORESEE_FAULTS": str(faults)})
    assert commands.wait(killed) == -9, killed.text()
    assert (network.refused, network.cut) == (1, 1)
    shutil.rmtree(config.run)
    again = commands.start("train", file, "--resume", environment=ENVIRONMENT)
    assert commands.wait(again) == 0, again.text()
    assert "from step 4 on" in again.text()
    assert everything(config) == everything(plain)


def test_uploads_go_on_when_the_server_is_back(network: Network, log: ClickLog, tmp_path: Path) -> None:
    """Training does not wait for it, and the end of the run does."""
    storage = url_of(network.port, "runs/away")
    config = small_run(log, tmp_path / "run", storage=storage, train={"commit_every_steps": 4})

    class Leave:
        def after(self, done: StepResult) -> None:
            network.away = 5 <= done.steps_done < 20

    outcome, said = train_quietly(config, callbacks=[Leave()])
    assert outcome.finished
    assert "run and s3://bucket/runs/away;" in said
    before = everything(config)
    shutil.rmtree(config.run)
    _, said = train_quietly(config, resume=True)
    assert "all 20 steps were done already" in said
    assert everything(config) == before


def test_a_storage_that_is_away_at_the_end_is_told_and_marked(
    network: Network, log: ClickLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = url_of(network.port, "runs/behind")
    config = small_run(log, tmp_path / "run", storage=storage, train={"commit_every_steps": 4})

    class Leave:
        def after(self, done: StepResult) -> None:
            network.away = done.steps_done >= 12

    with monkeypatch.context() as patched:
        patched.setattr(backup, "BEHIND_SECONDS_MAX", 0.3)
        _, said = train_quietly(config, callbacks=[Leave()])
    assert "not all is in the storage" in said
    assert "kept in" in said
    assert "run and s3://bucket/runs/behind;" not in said
    assert (config.run / BEHIND_FILE).exists()
    network.away = False
    before = everything(config)
    train_quietly(config, resume=True)
    assert not (config.run / BEHIND_FILE).exists()
    shutil.rmtree(config.run)
    train_quietly(config, resume=True)
    assert everything(config) == before


def test_a_bucket_that_is_not_there_is_a_sentence_and_nothing_is_begun(
    s3_port: int, log: ClickLog, tmp_path: Path, commands: Commands
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(dump_run(small_run(log, tmp_path / "run", storage=url_of(s3_port, "x", "nowhere"))))
    command = commands.start("train", file, environment=ENVIRONMENT)
    assert commands.wait(command) == 2
    assert "foresee: s3://nowhere/x: there is no bucket 'nowhere'; make it" in command.text()
    wrong = {**ENVIRONMENT, "AWS_SECRET_ACCESS_KEY": "another"}
    command = commands.start("train", file, "--set", f"storage={url_of(s3_port, 'x')}", environment=wrong)
    assert commands.wait(command) == 2
    assert "check the URL, its options and your credentials" in command.text()
    assert not (tmp_path / "run").exists()
