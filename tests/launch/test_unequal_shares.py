"""Three workers share a batch of 16: the remainder is shared out, and the step stays that of the whole batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_results import Bytes, dense_half, rows_in_folders
from safetensors.numpy import load
from warm_commands import Commands

NUM_STEPS = 25
SGD = ("tables.optimizer.name=sgd", "train.optimizer.name=sgd", "train.optimizer.lr=0.1")


def trained(commands: Commands, run_file: Path, run: str, *settings: str, options: tuple[str, ...] = ()) -> Path:
    """The run folder of so many workers."""
    folder = run_file.parent / run
    words = [word for it in (f"run={folder}", *settings) for word in ("--set", it)]
    code, text = commands.run("train", run_file, *words, *options)
    assert code == 0, text
    return folder


def results(run: Path) -> tuple[Bytes, Bytes]:
    return rows_in_folders(run), dense_half(run, NUM_STEPS)


def test_planned_equals_unplanned_where_the_batch_does_not_divide(commands: Commands, run_file: Path) -> None:
    three = "distributed.workers=3"
    unplanned = trained(commands, run_file, "unplanned", three, "cache.planner=none")
    planned = trained(commands, run_file, "planned", three, "cache.rows=60")
    assert results(planned) == results(unplanned)


@pytest.mark.parametrize("placement", ["contiguous", "herald", "location_aware"])
def test_every_sample_weighs_the_same(commands: Commands, run_file: Path, placement: str) -> None:
    """A mean over workers of means over 6, 5 and 5 samples would be another step than that of one process."""
    one = trained(commands, run_file, "one", *SGD, "distributed.workers=1")
    three = trained(commands, run_file, "three", *SGD, "distributed.workers=3", f"distributed.placement={placement}")
    (rows, dense), (rows_of_one, dense_of_one) = results(three), results(one)
    values, expected = (np.frombuffer(it["values"], np.float32) for it in (rows, rows_of_one))
    np.testing.assert_allclose(values, expected, rtol=0, atol=2e-6)
    weights, expected_weights = load(dense["model"]), load(dense_of_one["model"])
    for name, weight in weights.items():
        np.testing.assert_allclose(weight, expected_weights[name], rtol=0, atol=2e-6)


def test_three_workers_go_on_where_two_stopped(commands: Commands, run_file: Path) -> None:
    run = trained(commands, run_file, "run", options=("--stop-after", "11"))
    once_more = trained(commands, run_file, "again", options=("--stop-after", "11"))
    for folder, planner in ((run, "lookahead"), (once_more, "none")):
        settings = ("distributed.workers=3", f"cache.planner={planner}")
        trained(commands, run_file, folder.name, *settings, options=("--resume",))
    assert results(run) == results(once_more)
