"""A run of several processes with a storage goes on after the loss of any folder, with the same bytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from run_results import dense_half, rows_in_folders
from warm_commands import Commands


@pytest.mark.parametrize("lost", ["run", "run/tables/shard-0", "run/checkpoints"])
def test_what_a_machine_took_with_it_comes_from_the_storage(
    commands: Commands, run_file: Path, tmp_path: Path, lost: str
) -> None:
    def train(*arguments: object) -> str:
        code, said = commands.run("train", run_file, *arguments)
        assert code == 0, said
        return said

    train("--set", f"run={tmp_path / 'plain'}")
    given = ["--set", f"storage=file://{tmp_path / 'storage'}", "--set", "train.commit_every_steps=5"]
    again = "--resume-or-begin" if lost == "run" else "--resume"
    train(*given, "--stop-after", "12", *([again] if lost == "run" else []))
    shutil.rmtree(tmp_path / lost)
    assert "from step 12 on" in train(*given, again)
    run = tmp_path / "run"
    assert dense_half(run, 25) == dense_half(tmp_path / "plain", 25)
    assert rows_in_folders(run) == rows_in_folders(tmp_path / "plain")
