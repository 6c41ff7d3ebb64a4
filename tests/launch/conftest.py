"""One warm process for all tests that start commands, and a small log with a run file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from warm_commands import Commands

from foresee.data import ClickLog, tiny

RunFile = Callable[..., Path]


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with Commands(tmp_path_factory.mktemp("commands")) as commands:
        yield commands


@pytest.fixture(scope="session")
def small_log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("distributed") / "log", seed=5, num_samples=500)


@pytest.fixture
def run_file(tmp_path: Path, small_log: ClickLog) -> Path:
    """A run of 25 steps; its samples are placed so that the cache has no influence on the result."""
    file = tmp_path / "run.yaml"
    file.write_text(
        f"log: {small_log.path}\n"
        "run: run\n"
        "model: {name: dlrm, dim: 4, options: {bottom: [8], top: [8]}}\n"
        "cache: {rows: 100}\n"
        "train: {batch_size: 16, num_threads: 1, log_every_steps: 1}\n"
        "distributed: {workers: 2, servers: 2, placement: contiguous}\n"
    )
    return file
