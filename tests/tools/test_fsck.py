"""`foresee check`: whole, interrupted and damaged folders are told apart, and nothing is ever written."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

from hostile_files import interrupt_commit, trained_run

from foresee.data import tiny
from foresee.engine.header import make_header
from foresee.engine.planned_step import planned_records
from foresee.errors import DataError
from foresee.plan.format.file import write_plan
from foresee.run import checkpoint
from foresee.run.serving.export import export
from foresee.run.session import train
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore
from foresee.store.layout import Layout, Table
from foresee.store.server.shard import Share, disk_shard
from foresee.tools.cli import main
from foresee.tools.fsck import check
from foresee.tools.fsck_tables import FsckReport

LAYOUT = Layout(tables=(Table("a", 40), Table("b", 23)), width=3, state_width=1, optimizer="x")


def make_tables(folder: Path) -> Path:
    with closing(DiskStore.create(folder, LAYOUT)) as store:
        for step in (1, 2):
            write(store, step)
            store.commit(step)
    return folder


def write(store: DiskStore, version: int) -> None:
    rows = np.arange(version, 60, 3)
    source = Rows.empty(len(rows), LAYOUT)
    source.values[:], source.state[:], source.versions[:] = version, 0.5, version
    store.write(rows, source)


def make_log(folder: Path) -> Path:
    return tiny(folder, num_samples=120).path


def make_plan(path: Path) -> Path:
    stream = tiny(path.with_suffix(".log"), num_samples=120).batches(batch_size=20)
    header = make_header(stream, planner="lookahead", cache_rows=100)
    write_plan(path, header, planned_records(stream, header))
    return path


def make_run(folder: Path) -> Path:
    return trained_run(tiny(folder.with_suffix(".log"), num_samples=120), folder).run


def make_export(folder: Path) -> Path:
    export(make_run(folder.with_suffix(".run")), folder)
    return folder


def make_shards(folder: Path) -> Path:
    for shard in range(2):
        with closing(disk_shard(folder / f"shard-{shard}", LAYOUT, Share(shard, 2))) as made:
            made.commit(5)
    return folder


MAKERS: dict[str, Callable[[Path], Path]] = {
    "a table folder": make_tables, "a prepared log": make_log, "a plan": make_plan, "a run": make_run,
    "an export": make_export, "the tables of several servers": make_shards,
}  # fmt: skip
DAMAGED = {
    "a table folder": ["layout.json", "rows.npy", "written.npy", "undo.bin"],
    "a prepared log": ["log.json", "train-00000.parquet"],
    "a plan": [""],
    "a run": ["config.yaml", "tables/layout.json", "tables/rows.npy"],
    "an export": ["export.json", "model.safetensors", "table-000.safetensors"],
    "the tables of several servers": ["shard-1/layout.json", "shard-0/rows.npy"],
}


def everything(path: Path) -> dict[Path, tuple[bytes, int]]:
    files = [path] if path.is_file() else [it for it in path.rglob("*") if it.is_file()]
    return {it: (it.read_bytes(), it.stat().st_mtime_ns) for it in files}


@pytest.mark.parametrize("kind", MAKERS)
def test_what_is_whole_is_called_so_and_left_alone(kind: str, tmp_path: Path) -> None:
    path = MAKERS[kind](tmp_path / "it.arrow")
    before = everything(path)
    found = check(path)
    assert found.kind == kind
    assert found.is_whole, found.findings
    assert found.sentence.startswith(f"{path} is {kind} and whole")
    assert everything(path) == before


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in DAMAGED.items() for name in names])
def test_a_file_that_was_cut_is_damage(kind: str, name: str, tmp_path: Path) -> None:
    path = MAKERS[kind](tmp_path / "it.arrow")
    file = path / name if name else path
    content = file.read_bytes()
    # YAML that ends between two keys is whole as far as anyone can see, so this one is cut inside a key.
    end = content.index(b"shuffle_samples") + 4 if name == "config.yaml" else len(content) * 2 // 3
    file.write_bytes(content[:end])
    before = everything(path)
    found = check(path)
    assert not found.is_whole
    assert "with damage" in found.sentence
    assert everything(path) == before


def test_an_interrupted_commit_is_no_damage_and_damage_in_it_is(tmp_path: Path) -> None:
    folder = make_tables(tmp_path / "tables")
    with closing(DiskStore.open(folder)) as store:
        write(store, 3)
        interrupt_commit(store, 3)
    found = check(folder)
    assert found.is_whole
    assert "it is in the log, and foresee fold brings it into the arrays" in found.sentence
    assert any("can be opened at step" in it.text and "3" in it.text for it in found.findings)
    log = folder / "log.bin"
    content = bytearray(log.read_bytes())
    content[8192] ^= 1  # in a row
    log.write_bytes(bytes(content))
    assert not check(folder).is_whole
    assert "log.bin is damaged: row" in next(it.text for it in check(folder).findings if it.state == "damaged")


def test_a_flipped_bit_in_a_row_is_damage(tmp_path: Path) -> None:
    folder = make_tables(tmp_path / "tables")
    content = bytearray((folder / "rows.npy").read_bytes())
    written = np.flatnonzero(np.unpackbits(np.load(folder / "written.npy"), bitorder="little"))
    begin = len(content) - LAYOUT.num_rows * LAYOUT.row_bytes
    content[begin + int(written[0]) * LAYOUT.row_bytes] ^= 1
    (folder / "rows.npy").write_bytes(bytes(content))
    found = check(folder)
    assert [it.what for it in found.findings if it.state == "damaged"] == ["rows.npy"]
    assert "has another checksum than when it was written" in found.findings[1].text


def test_a_version_that_no_commit_gave_is_damage(tmp_path: Path) -> None:
    folder = make_tables(tmp_path / "tables")
    rows = np.load(folder / "rows.npy", mmap_mode="r+")
    rows["version"][1] = 77
    rows.flush()
    del rows
    found = check(folder)
    assert [it.what for it in found.findings if it.state == "damaged"] == ["rows.npy"]
    assert "a row of version 77" in found.findings[1].text


def test_a_run_says_of_which_steps_both_halves_are_there(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    step = checkpoint.steps_there(run / "checkpoints")[-1]
    assert any("rows and weights are there of step" in it.text and str(step) in it.text for it in check(run).findings)
    weights = checkpoint.folder_of(run / "checkpoints", step) / checkpoint.MODEL_FILE
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    found = check(run)
    assert not found.is_whole
    assert any("sha256" in it.text for it in found.findings if it.state == "damaged")


def test_servers_without_a_common_step(tmp_path: Path) -> None:
    folder = make_shards(tmp_path / "tables")
    with closing(disk_shard(folder / "shard-1", None, Share(1, 2))) as shard:
        shard.commit(8)
        shard.commit(9)
    assert "there is no step that all of them can be opened at" in str(check(folder).findings)


def test_what_is_not_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear reader")
    for path in (tmp_path, tmp_path / "letter.txt", tmp_path / "missing"):
        with pytest.raises(DataError, match="; give"):
            check(path)


@pytest.mark.parametrize(("change", "code"), [("none", 0), ("cut", 1), ("foreign", 2)])
def test_exit_codes(change: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tables(tmp_path / "tables")
    if change == "cut":
        os.truncate(folder / "rows.npy", 200)
    monkeypatch.setattr(sys, "argv", ["foresee", "check", str(tmp_path if change == "foreign" else folder)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == code


def test_damaged_text_is_no_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = FsckReport("a plan", "[bold]x[/]")
    found.add("[red]", "damaged", "[/nonsense]")
    assert "[red]" in found.sentence


def test_a_run_in_memory_and_one_that_never_committed(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log", num_samples=120)
    from foresee.run.config_file import make_run as config_of

    config = config_of(
        {
            "log": str(log.path), "run": str(tmp_path / "run"), "model": {"dim": 4}, "cache": {"rows": 150},
            "tables": {"store": "memory"}, "train": {"batch_size": 24, "num_threads": 1},
        },
        where="test",
    )  # fmt: skip
    train(config, console=Console(file=io.StringIO()))
    found = check(tmp_path / "run")
    assert found.is_whole
    assert any("were in memory" in it.text for it in found.findings)
