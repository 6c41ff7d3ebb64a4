"""Small runs for the tests of training: a configuration for a log, everything a run leaves, and training in silence."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from foresee.data.click_log import ClickLog
from foresee.run.config import RunConfig
from foresee.run.config_file import make_run
from foresee.run.session import Outcome, train
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore
from foresee.store.row_groups import group_folders


def small_run(log: ClickLog, run: Path, **sections: Any) -> RunConfig:
    """A run of 25 steps over a tiny log, with what the sections say on top."""
    content: dict[str, Any] = {
        "log": str(log.path),
        "run": str(run),
        "model": {"name": "dlrm", "dim": 4, "options": {"bottom": [8], "top": [8]}},
        "cache": {"rows": 150},
        "train": {"batch_size": 32, "num_threads": 1, "log_every_steps": 5},
    }
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section} if isinstance(section, dict) else section
    return make_run(content, where="test")


def train_quietly(config: RunConfig, **options: Any) -> tuple[Outcome, str]:
    """The outcome and what was printed."""
    text = io.StringIO()
    return train(config, console=Console(file=text, width=200), **options), text.getvalue()


def everything(config: RunConfig) -> dict[str, bytes]:
    """All bytes that a finished run is about: rows with state and versions, dense weights, optimiser, random state."""
    found: dict[str, bytes] = {"values": b"", "state": b"", "versions": b""}
    for folder in group_folders(config.tables_folder) or [config.tables_folder]:
        store = DiskStore.open(folder)
        try:
            rows = Rows.empty(store.layout.num_rows, store.layout)
            store.read(np.arange(store.layout.num_rows), rows)
            step = store.committed_step
        finally:
            store.close()
        for name in ("values", "state", "versions"):
            found[name] += getattr(rows, name).tobytes()
    for file in sorted((config.run / "checkpoints" / f"step-{step:09d}").iterdir()):
        found[file.name] = file.read_bytes()
    return found
