"""The fold at the end of a run: left out if the log is large, shown if it lasts, and nothing is lost without it."""

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
from foresee.engine.optimizers import RowwiseAdagrad
from foresee.engine.tables import Tables
from foresee.errors import ConfigError, StoreError
from foresee.run.config import TablesConfig
from foresee.run.progress import PATIENCE_SECONDS, FoldDisplay
from foresee.store.disk import DiskStore, open_table
from foresee.store.disk import journal as journal_module
from foresee.store.disk import store as store_module
from foresee.store.disk.folder import FoldAtEnd, FoldLines
from foresee.store.disk.manifest import read_manifest
from foresee.store.layout import Layout, Table
from foresee.testing.store_suite import assert_same, random_rows, read_rows
from foresee.tools.cli.check import fold

OPTIMIZER = RowwiseAdagrad(lr=0.1)


def test_a_short_fold_is_not_shown_and_a_long_one_is() -> None:
    for step_seconds, terminal in ((0.001, True), (PATIENCE_SECONDS, True), (PATIENCE_SECONDS, False)):
        text, ticks = io.StringIO(), count()
        console = Console(file=text, force_terminal=terminal, width=100)
        with FoldDisplay(console, clock=lambda ticks=ticks, each=step_seconds: next(ticks) * each) as shown:  # type: ignore[misc]
            for done in range(1, 5):
                shown(done, 4)
        assert ("writing 4 rows of the log to rows.npy" in text.getvalue()) == (step_seconds == PATIENCE_SECONDS)


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
    assert not again, "opening does not finish it"
    assert not read_manifest(tmp_path / "tables").half_folded, "nor does it write anything"
    store.close()
    assert again[-1] == 100, "closing does: the log is small"
    assert open_table(tmp_path / "tables", "t")["version"].tolist() == [1] * 100


# A log that is large -----------------------------------------------------------------------------------------------


@pytest.fixture
def every_log_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "FOLD_BYTES_MAX", 0)


@pytest.mark.usefixtures("every_log_is_large")
def test_a_run_with_a_large_log_says_that_it_stays(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log")
    left, folded = small_run(log, tmp_path / "a"), small_run(log, tmp_path / "b", tables={"fold": "always"})
    _, said = train_quietly(left)
    assert "GB of rows stay in the log" in said
    assert f"foresee fold {left.tables_folder}" in " ".join(said.split())
    assert read_manifest(left.tables_folder).chunks is not None
    _, said = train_quietly(folded)
    assert "stay in the log" not in said
    assert read_manifest(folded.tables_folder).chunks is None
    assert everything(left) == everything(folded)
    # Nothing is left to train: nothing is written to the tables either.
    before = (left.tables_folder / "rows.npy").stat().st_mtime_ns
    _, said = train_quietly(left, resume=True)
    assert "steps were done already" in said
    assert "GB of rows stay in the log" in said
    assert (left.tables_folder / "rows.npy").stat().st_mtime_ns == before
    fold([left.run])
    assert read_manifest(left.tables_folder).chunks is None


@pytest.mark.usefixtures("every_log_is_large")
@pytest.mark.parametrize(
    ("fold", "stays", "told"), [("auto", True, True), ("always", False, False), ("never", True, False)]
)
def test_tables_of_a_loop_fold_as_they_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fold: FoldAtEnd, stays: bool, told: bool
) -> None:
    log, folder = tiny(tmp_path / "log", num_samples=200), tmp_path / "tables"
    with Tables.on_disk(folder, log, dim={"user": 4, "default": 6}, optimizer=OPTIMIZER, fold=fold) as tables:
        tables.set_values("user", np.ones_like(tables.values("user")))
    manifest = read_manifest(folder / "width-4")
    assert (manifest.chunks is not None) == stays
    assert ("rows stay in the log" in capsys.readouterr().err) == told
    with Tables.on_disk(folder, log, dim={"user": 4, "default": 6}, optimizer=OPTIMIZER) as tables:
        assert (tables.values("user") == 1).all()


def test_a_small_log_is_folded_without_a_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, folder = tiny(tmp_path / "log", num_samples=200), tmp_path / "tables"
    with Tables.on_disk(folder, log, dim=4, optimizer=OPTIMIZER) as tables:
        tables.set_values("user", np.ones_like(tables.values("user")))
    assert read_manifest(folder).chunks is None
    assert not capsys.readouterr().err
    with pytest.raises(ConfigError, match="fold is 'at_end'; give one of auto, always, never"):
        Tables.on_disk(folder, log, dim=4, optimizer=OPTIMIZER, fold="at_end")  # type: ignore[arg-type]


def test_a_fold_that_lasts_is_printed_now_and_then(tmp_path: Path) -> None:
    said, now = list[str](), [0.0]
    lines = FoldLines(tmp_path, said.append, lambda: now[0])
    for second in range(40):
        now[0] = second / 2
        lines(second, 40)
    assert [text.partition(" rows")[0] for text in said] == ["2 of 40", "22 of 40"]


def test_the_former_name_of_the_default_is_read(tmp_path: Path) -> None:
    """It is in config.yaml of every run that an older version began."""
    assert TablesConfig(fold="at_end").fold == "auto"  # type: ignore[arg-type]
