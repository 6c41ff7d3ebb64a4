"""A plan kept for several workers: trained by it, a run ends with the bytes of one that is planned as it goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from run_results import dense_half, rows_in_folders
from warm_commands import Commands

from foresee.plan.format.folder import open_plan, save_plan

NUM_STEPS = 25


def wrong_plan(folder: Path) -> Path:
    """The plan with two rows of one write-back swapped, every checksum right."""
    plan = open_plan(folder / "plan")
    records = list(plan.records())
    number = next(k for k in range(len(records) // 2, len(records)) if len(records[k].evict) > 1)
    evict = records[number].evict
    swapped = replace(evict, row=np.concatenate([evict.row[1::-1], evict.row[2:]]))
    records[number] = replace(records[number], evict=swapped)
    save_plan(folder / "wrong", plan.header, records)
    return folder / "wrong"


def test_a_saved_plan_trains_to_the_same_bytes(commands: Commands, run_file: Path) -> None:
    folder, placed = run_file.parent, ("--set", "distributed.placement=location_aware")
    code, text = commands.run("train", run_file, *placed, "--set", f"run={folder / 'planned'}")
    assert code == 0, text
    code, text = commands.run("plan", run_file, *placed, "--out", folder / "plan", "--steps", 5)
    assert code == 0, text
    assert "--plan" in text
    code, text = commands.run("check", folder / "plan")
    assert code == 0, text
    # The workers are stopped in the middle, and go on by a plan that is made from there on.
    code, text = commands.run("train", run_file, *placed, "--plan", folder / "plan", "--stop-after", 20)
    assert code == 0, text
    log = "".join(it.read_text() for it in sorted((folder / "run" / "logs").iterdir()))
    assert "giving out" in log
    code, text = commands.run("train", run_file, *placed, "--plan", folder / "plan", "--resume")
    assert code == 0, text
    assert rows_in_folders(folder / "run") == rows_in_folders(folder / "planned")
    assert dense_half(folder / "run", NUM_STEPS) == dense_half(folder / "planned", NUM_STEPS)
    code, text = commands.run(
        "train", run_file, *placed, "--replace", "--plan", folder / "plan", "--set", "cache.rows=90"
    )
    assert code != 0
    assert "was planned with capacity_rows 100, this run has 90" in text
    code, text = commands.run("train", run_file, *placed, "--replace", "--plan", wrong_plan(folder))
    assert code == 2, text
    assert "the plan is wrong: step" in text
    alone = ("--set", "distributed.workers=1", "--set", "distributed.servers=0", "--replace")
    code, text = commands.run("train", run_file, *alone, "--plan", folder / "plan")
    assert code == 2, text
    assert "is a plan for 2 workers" in text
