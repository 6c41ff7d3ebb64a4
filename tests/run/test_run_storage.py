"""A run with a storage: the same bytes as one without, on this machine or on another one that has only the storage."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from training_runs import everything, small_run, train_quietly

from foresee.data import ClickLog, tiny
from foresee.errors import ConfigError
from foresee.io.storage import Storage
from foresee.run import checkpoint
from foresee.run.backup import RunStorage
from foresee.run.config import RunConfig
from foresee.run.config_file import load_run
from foresee.run.folder import RunFolder
from foresee.store.commits import Part


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "log", seed=3, num_samples=800)


def stored_run(log: ClickLog, run: Path, storage: Path) -> RunConfig:
    return small_run(log, run, storage=f"file://{storage}", train={"commit_every_steps": 4})


def test_a_run_goes_on_elsewhere_from_its_storage(log: ClickLog, tmp_path: Path) -> None:
    train_quietly(small_run(log, tmp_path / "plain"))
    expected = everything(small_run(log, tmp_path / "plain"))
    here = stored_run(log, tmp_path / "here", tmp_path / "storage")
    train_quietly(here, stop_after=11)
    shutil.rmtree(here.run)
    there = stored_run(log, tmp_path / "there", tmp_path / "storage")
    outcome, said = train_quietly(there, resume=True)
    assert "from step 11 on" in said
    assert outcome.finished
    assert everything(there) == expected
    # The first machine comes back with nothing but what the storage has.
    again = stored_run(log, here.run, tmp_path / "storage")
    outcome, said = train_quietly(again, resume=True)
    assert "all 20 steps were done already" in said
    assert everything(again) == expected


def test_a_folder_that_is_older_than_the_storage_catches_up(log: ClickLog, tmp_path: Path) -> None:
    here = stored_run(log, tmp_path / "here", tmp_path / "storage")
    train_quietly(here, stop_after=8)
    shutil.copytree(here.run, tmp_path / "old")
    train_quietly(here, resume=True, stop_after=16)
    shutil.rmtree(here.run)
    (tmp_path / "old").rename(here.run)
    _, said = train_quietly(here, resume=True)
    assert "from step 16 on" in said
    train_quietly(small_run(log, tmp_path / "plain"))
    assert everything(here) == everything(small_run(log, tmp_path / "plain"))


def test_a_storage_that_holds_a_run_is_left_alone(log: ClickLog, tmp_path: Path) -> None:
    train_quietly(stored_run(log, tmp_path / "here", tmp_path / "storage"), stop_after=4)
    other = stored_run(log, tmp_path / "other", tmp_path / "storage")
    with pytest.raises(ConfigError, match=r"storage already holds a run; continue it with --resume, or start anew"):
        train_quietly(other)
    assert not other.run.exists()
    train_quietly(other, replace=True, stop_after=4)
    stored = RunStorage.of(other)
    assert stored is not None
    assert stored.steps == {4}
    stored.close()


def test_commits_wait_for_the_copy_of_the_one_before_and_not_forever(log: ClickLog, tmp_path: Path) -> None:
    now = [0.0]
    stored = RunStorage.of(stored_run(log, tmp_path / "here", tmp_path / "storage"))
    assert stored is not None
    late, done = (Part(committed=4),), (Part(committed=4, stored=frozenset({4})),)
    assert not stored.ready(lambda: late, lambda: now[0])
    now[0] = 2.0
    assert stored.ready(lambda: done, lambda: now[0])
    assert not stored.ready(lambda: late, lambda: now[0])
    now[0] = 400.0
    assert stored.ready(lambda: late, lambda: now[0])
    stored.close()


def listed_steps(config: RunConfig) -> set[int]:
    """Return the steps whose dense half another machine finds in the storage."""
    stored = RunStorage.of(config)
    assert stored is not None
    stored.close()
    return set(stored.steps)


def test_commits_that_were_given_up_are_not_listed(log: ClickLog, tmp_path: Path) -> None:
    here = stored_run(log, tmp_path / "here", tmp_path / "storage")
    train_quietly(here, stop_after=8)
    assert listed_steps(here) == {4, 8}
    stored = RunStorage.of(here)
    assert stored is not None
    stored.open_at(4)
    assert stored._uploads.wait(20)
    stored.close()
    assert listed_steps(here) == {4}
    assert all(path.name.startswith("step-000000004-") for path in (tmp_path / "storage/checkpoints").glob("step-*"))


def test_shards_stay_while_a_kept_commit_needs_them(log: ClickLog, tmp_path: Path) -> None:
    """After the number of servers has changed, a run may still go back to the commit before."""
    here, tables = stored_run(log, tmp_path / "here", tmp_path / "storage"), tmp_path / "storage/tables"
    train_quietly(here, stop_after=4)
    assert {path.name for path in tables.iterdir()} == {"shard-0-of-1"}
    checkpoints = RunFolder(here.run).checkpoints
    for step in (8, 12):
        shutil.copytree(checkpoint.folder_of(checkpoints, 4), checkpoint.folder_of(checkpoints, step))
    stored = RunStorage(str(here.storage), RunFolder(here.run), num_shards=2)
    (tables / "shard-0-of-2").mkdir()
    (tables / "shard-0-of-2" / "commits.json").write_text("{}")
    for step, needed in ((8, True), (12, False)):
        stored.copy(step)
        assert stored._uploads.wait(20)
        assert any(path.is_file() for path in tables.glob("shard-0-of-1/*")) == needed
        assert (tables / "shard-0-of-2" / "commits.json").exists()
    assert stored.steps == {8, 12}
    stored.close()


@pytest.mark.parametrize("of_run", [False, True])
def test_a_file_that_the_storage_does_not_find_is_no_success(
    log: ClickLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_run: bool
) -> None:
    """Only a checkpoint that is gone from this machine is needless; some storages say FileNotFoundError of a bucket."""
    here = stored_run(log, tmp_path / "here", tmp_path / "storage")
    train_quietly(here, stop_after=4)
    stored, tried, put = RunStorage.of(here), list[str](), Storage.put
    assert stored is not None

    def not_found_at_first(self: Storage, name: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        if (self.url == stored.storage.url) == of_run:
            tried.append(name)
            if len(tried) == 1:
                raise FileNotFoundError(name)
        put(self, name, pieces)

    monkeypatch.setattr(Storage, "put", not_found_at_first)
    stored.copy(4)
    assert stored._uploads.wait(20)
    assert len(tried) > 1
    assert tried[0].partition("-")[0] in {name.partition("-")[0] for name in tried[1:]}
    stored.close()


def test_a_run_file_names_a_url(log: ClickLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESEE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "run.yaml"
    file.write_text(f"log: {log.path}\nrun: s3://bucket/runs/first?region=x\ncache: {{rows: 150}}\n")
    config = load_run(file)
    assert config.storage == "s3://bucket/runs/first?region=x"
    assert config.run.parent == tmp_path / "cache" / "runs"
    assert config.run.name.startswith("first-")
    with pytest.raises(ConfigError, match="has credentials in it"):
        RunStorage.of(load_run(file, ["storage=s3://key:secret@bucket/x", f"run={tmp_path / 'a'}"]))
    with pytest.raises(ConfigError, match="unknown option 'regoin'"):
        RunStorage.of(load_run(file, ["run=s3://bucket/x?regoin=y"]))
    with pytest.raises(ConfigError, match="commits of the store 'memory' cannot be copied"):
        train_quietly(small_run(log, tmp_path / "m", storage=f"file://{tmp_path}/s", tables={"store": "memory"}))


def test_the_storage_of_another_run_is_refused_and_nothing_is_lost(log: ClickLog, tmp_path: Path) -> None:
    one = stored_run(log, tmp_path / "one", tmp_path / "storage")
    train_quietly(one, stop_after=8)
    before = everything(one)
    train_quietly(stored_run(log, tmp_path / "two", tmp_path / "storage-2"), stop_after=4)
    mixed = stored_run(log, one.run, tmp_path / "storage-2")
    with pytest.raises(ConfigError, match=r"one and file:.*storage-2 hold two different runs; give the storage"):
        train_quietly(mixed, resume=True)
    assert everything(one) == before
    outcome, said = train_quietly(one, resume=True)
    assert "from step 8 on" in said
    assert outcome.finished
