"""The fold at the end of a run: shown if it lasts, left out if asked, and nothing is lost when it is interrupted."""

from __future__ import annotations

import io
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from training_runs import everything, small_run, train_quietly

from foresee.data import tiny
from foresee.errors import StoreError
from foresee.run.progress import PATIENCE_SECONDS, FoldDisplay
from foresee.store.contract import Layout, Table
from foresee.store.disk import DiskStore, open_table
from foresee.store.disk import journal as journal_module
from foresee.store.disk.manifest import read_manifest
from foresee.testing.store_suite import assert_same, random_rows, read_rows


def test_a_short_fold_is_not_shown_and_a_long_one_is() -> None:
    for step_seconds, terminal in ((0.001, True), (PATIENCE_SECONDS, True), (PATIENCE_SECONDS, False)):
        text, ticks = io.StringIO(), count()
        console = Console(file=text, force_terminal=terminal, width=100)
        with FoldDisplay(console, clock=lambda ticks=ticks, each=step_seconds: next(ticks) * each) as shown:  # type: ignore[misc]
            for done in range(1, 5):
                shown(done, 4)
        assert ("4 rows of the log go into rows.npy" in text.getvalue()) == (step_seconds == PATIENCE_SECONDS)


def test_a_run_that_never_folds_ends_with_the_same_rows(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log")
    folded, unfolded = small_run(log, tmp_path / "a"), small_run(log, tmp_path / "b", tables={"fold": "never"})
    train_quietly(folded)
    train_quietly(unfolded)
    assert read_manifest(folded.tables_folder).chunks is None
    assert read_manifest(unfolded.tables_folder).chunks is not None
    with pytest.raises(StoreError, match="bring it there with foresee fold"):
        open_table(unfolded.tables_folder, "user")
    assert everything(unfolded) == everything(folded)


def test_ctrl_c_in_the_fold_at_the_end_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_FOLD_ROWS", 16)
    layout = Layout(tables=(Table("t", 100),), width=4, state_width=1, optimizer="x")
    store = DiskStore.create(tmp_path / "tables", layout)
    source = random_rows(np.random.default_rng(0), 100, layout, 1)
    store.write(np.arange(100), source)
    store.commit(1)
    seen: list[tuple[int, int]] = []

    def interrupt(done: int, total: int) -> None:
        seen.append((done, total))
        if done >= 32:
            raise KeyboardInterrupt

    store.fold_progress = interrupt
    store.close()
    assert seen == [(16, 100), (32, 100)]
    assert read_manifest(tmp_path / "tables").folding
    again: list[Any] = []
    store = DiskStore.open(tmp_path / "tables")
    store.fold_progress = lambda done, total: again.append(done)
    assert_same(read_rows(store, np.arange(100)), source)
    store.close()
    assert not again, "opening has finished it"
    assert open_table(tmp_path / "tables", "t")["version"].tolist() == [1] * 100
