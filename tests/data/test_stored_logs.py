"""Logs at a URL: the same batches as from a folder, read ahead within bounds, and sentences for what is missing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from training_runs import everything, small_run, train_quietly

from command_line import foresee
from foresee.arrays import Int64
from foresee.data import ClickLog, tiny
from foresee.data import log_folder as log_folders
from foresee.data.batch import Batch
from foresee.data.log_folder import Wanted, folder_of
from foresee.data.samples import Samples
from foresee.data.stream import RowGroups
from foresee.data.writer import DESCRIPTION_FILE, LogWriter
from foresee.errors import ConfigError, DataError, StoreError
from foresee.io.readahead import ReadAhead
from foresee.io.storage import Storage
from foresee.io.urls import sent
from s3_server import Network, url_of


def many_parts(folder: Path, log: ClickLog, monkeypatch: pytest.MonkeyPatch) -> ClickLog:
    """The same log in small row groups, three in a part."""
    monkeypatch.setattr("foresee.data.writer.ROW_GROUPS_PER_PART", 3)
    folder.mkdir()
    with LogWriter(folder, log.features, log.dense, row_group_samples=16) as writer:
        for split in log.split_sizes:
            for samples in log.samples(split):
                writer.append(split, samples)
        writer.finish(tables=log.tables, vocabularies=log.vocabularies, source={})
    return ClickLog.open(folder)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClickLog:
    return many_parts(tmp_path / "log", tiny(tmp_path / "tiny", seed=3, num_samples=800), monkeypatch)


def copied(log: ClickLog, url: str) -> ClickLog:
    with sent(url, marker=DESCRIPTION_FILE, replace=True) as folder:
        shutil.copytree(log.path, folder)
    return ClickLog.open(url)


def arrays(batches: Iterator[Batch]) -> list[bytes]:
    return [b"".join(np.asarray(it).tobytes() for it in (batch.rows, batch.labels, batch.dense)) for batch in batches]


def test_batches_are_the_same_in_any_order(log: ClickLog, network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_folders, "AHEAD_BYTES_MAX", 60_000)
    monkeypatch.setattr(log_folders, "FOOTER_BYTES", 100)
    there = copied(log, url_of(network.port, "logs/same"))
    network.cuts_at_bytes, network.slow_downs = [50_000, 200_000], 1
    assert (there.digest, there.split_sizes) == (log.digest, log.split_sizes)
    for options in ({}, {"seed": 5, "epochs": 2, "shuffle_samples": 100}, {"shuffle": False, "drop_last": False}):
        here = log.batches(batch_size=50, **options)
        stream = there.batches(batch_size=50, **options)
        assert stream.digest == here.digest
        assert arrays(stream.batches()) == arrays(here.batches())
        assert arrays(stream.batches(7)) == arrays(here.batches(7))
    assert (network.cut, network.refused) == (2, 1)
    there.check()


def test_only_the_bytes_of_row_groups_are_fetched(log: ClickLog, network: Network) -> None:
    there = copied(log, url_of(network.port, "logs/bytes"))
    stream = there.batches(batch_size=16, shuffle_samples=16)
    before = network.carried_bytes
    stream.batch(0)
    train = there.description.splits["train"].parts
    assert network.carried_bytes - before < sum(part.num_bytes for part in train) // 2
    assert len(list(stream.batches())) == stream.num_steps  # nothing is on its way any more


def test_a_run_on_a_stored_log_ends_with_the_same_bytes(log: ClickLog, network: Network, tmp_path: Path) -> None:
    here = small_run(log, tmp_path / "here")
    train_quietly(here)
    url = url_of(network.port, "logs/run")
    copied(log, url)
    there = small_run(log, tmp_path / "there").model_copy(update={"log": url})
    network.delay_seconds = 0.001
    train_quietly(there, stop_after=12)
    train_quietly(there, resume=True)
    assert everything(there) == everything(here)


def test_what_is_missing_or_damaged_is_a_sentence(log: ClickLog, s3_port: int) -> None:
    url = url_of(s3_port, "logs/damaged")
    with pytest.raises(DataError, match=r"s3://bucket/logs/damaged: no prepared log is here \(log.json is missing\)"):
        ClickLog.open(url)
    with pytest.raises(StoreError, match=r"there is no bucket 'nowhere'"):
        ClickLog.open(url_of(s3_port, "log", "nowhere"))
    there, storage = copied(log, url), Storage.open(url)
    stream = there.batches(batch_size=50, shuffle=False)
    content = storage.get("train-00001.parquet")
    assert content is not None
    storage.put("train-00001.parquet", lambda: [content[:-1]])
    with pytest.raises(DataError, match=r"train-00001.parquet: expected \d+ bytes, found \d+; the part is damaged"):
        list(stream.batches())
    with pytest.raises(DataError, match=r"train-00001.parquet: expected \d+ bytes, found \d+; the part is damaged"):
        ClickLog.open(url)
    storage.remove(["train-00001.parquet"])
    with pytest.raises(DataError, match=r"train-00001.parquet: this part of the log is missing"):
        ClickLog.open(url)
    with (
        pytest.raises(ConfigError, match=r"s3://bucket/logs/damaged exists; give another target"),
        sent(url, marker=DESCRIPTION_FILE),
    ):
        pytest.fail("nothing may be made")


def test_prepare_writes_to_a_url(
    s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORESEE_CACHE", str(tmp_path / "cache"))
    raw = tmp_path / "raw.csv"
    raw.write_text("label,a\n" + "".join(f"{i % 2},{i % 7}\n" for i in range(60)))
    url = url_of(s3_port, "logs/prepared")
    options = ["prepare", "csv", str(raw), "--label", "label", "--categorical", "a"]
    for out in (str(tmp_path / "here"), url):
        assert foresee(*options, "--out", out, monkeypatch=monkeypatch) == 0
    assert "s3://bucket/logs/prepared: train" in capsys.readouterr().out
    assert ClickLog.open(url).digest == ClickLog.open(tmp_path / "here").digest
    assert ClickLog.open(url).vocabulary("a").equals(ClickLog.open(tmp_path / "here").vocabulary("a"))
    assert not list((tmp_path / "cache").rglob("*.parquet"))


def test_what_is_read_ahead_is_bounded() -> None:
    made, go = list[int](), threading.Event()

    def make(key: int) -> int:
        go.wait(10)
        made.append(key)
        return 2 * key

    ahead = ReadAhead(make, lambda key: 10, 50)
    ahead.expect(range(20))
    assert ahead.held_bytes == 50
    go.set()
    assert [ahead.take(key) for key in range(20)] == [2 * key for key in range(20)]
    assert ahead.held_bytes == 0
    ahead.expect([30, 31])  # nobody will take these
    ahead.expect([40, 41, 42, 43, 44])
    assert ahead.held_bytes == 50
    assert ahead.take(44) == 88

    def fail(key: int) -> int:
        raise StoreError("no")

    with pytest.raises(StoreError):
        ReadAhead(fail, lambda key: 1, 1).take(0)


def test_row_groups_that_were_not_fetched_are_an_error(log: ClickLog, s3_port: int) -> None:
    there = copied(log, url_of(s3_port, "logs/fetched"))
    part = there.description.splits["train"].parts[0]
    file = folder_of(url_of(s3_port, "logs/fetched")).parquet(Wanted(part, (1,), part.num_bytes))
    whole = pq.ParquetFile(log.path / part.file)
    assert file.read_row_groups([1]).equals(whole.read_row_groups([1]))
    with pytest.raises((pa.ArrowException, OSError)):
        file.read_row_groups([0])


def test_a_group_that_is_decoded_is_had_while_another_is_read(log: ClickLog, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = log.batches(batch_size=16, shuffle=False, shuffle_samples=16)
    expected = arrays(iter([stream.batch(0)]))
    go, begun, read = threading.Event(), threading.Event(), RowGroups.read

    def slow(self: RowGroups, numbers: Int64) -> Samples:
        begun.set()
        assert go.wait(10)
        return read(self, numbers)

    monkeypatch.setattr(RowGroups, "read", slow)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(stream.batch, 5)
        assert begun.wait(10)
        assert arrays(iter([stream.batch(0)])) == expected  # it would wait for ever
        go.set()
        assert len(other.result(10).labels) == 16
