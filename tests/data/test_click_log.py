"""Batches of a prepared log: exact, reachable from any step, streamed, and clear about damage."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foresee.arrays import Int64
from foresee.data import Batch, ClickLog, LogStream, tiny
from foresee.data.batch import BatchStream
from foresee.data.samples import Samples
from foresee.errors import DataError, UsageError


def bags(batch: Batch) -> list[list[int]]:
    """Row ids of every bag, the slow way."""
    if batch.bag_offsets is None:
        return [[int(row)] for row in batch.rows]
    ends = batch.bag_offsets
    return [batch.rows[ends[i] : ends[i + 1]].tolist() for i in range(len(ends) - 1)]


def stored(log: ClickLog, split: str) -> list[tuple[float, list[float], list[list[int]]]]:
    """(label, dense, bags of global ids) of each sample, read by pyarrow alone."""
    out = []
    for part in log.description.splits[split].parts:
        for record in pq.read_table(log.path / part.file).to_pylist():
            ids = []
            for feature in log.features:
                value = record[feature.name]
                offset = log.table_offsets[feature.table]
                ids.append([offset + i for i in (value if isinstance(value, list) else [value])])
            out.append((record["label"], [record[name] for name in log.dense_names], ids))
    return out


def samples_of(batch: Batch) -> list[tuple[float, list[float], list[list[int]]]]:
    every, width = bags(batch), batch.num_features
    return [
        (float(batch.labels[i]), batch.dense[i].tolist(), every[i * width : (i + 1) * width])
        for i in range(batch.num_samples)
    ]


@pytest.mark.parametrize("multi_valued", [True, False])
def test_evaluation_gives_the_split_as_stored(tmp_path: Path, multi_valued: bool) -> None:
    log = tiny(tmp_path / "log", num_samples=500, multi_valued=multi_valued)
    stream = log.batches(batch_size=16, split="valid", shuffle=False, drop_last=False)
    got = [sample for batch in stream.batches() for sample in samples_of(batch)]
    assert got == stored(log, "valid")
    assert stream.num_samples == 50
    assert [batch.num_samples for batch in stream.batches()] == [16, 16, 16, 2]


@pytest.mark.parametrize("multi_valued", [True, False])
def test_an_epoch_holds_every_sample_once(tmp_path: Path, multi_valued: bool) -> None:
    log = tiny(tmp_path / "log", num_samples=500, multi_valued=multi_valued)
    stream = log.batches(batch_size=33, drop_last=False, shuffle_samples=100)
    got = [sample for batch in stream.batches() for sample in samples_of(batch)]
    assert sorted(got) == sorted(stored(log, "train"))
    assert got != stored(log, "train")


@pytest.mark.parametrize("first_step", [0, 1, 11, 12, 23, 24])
def test_any_step_can_come_first(tmp_path: Path, first_step: int) -> None:
    log = tiny(tmp_path / "log", num_samples=500)
    arguments = {"batch_size": 33, "epochs": 2, "seed": 5, "shuffle_samples": 100}
    whole = list(log.batches(**arguments).batches())  # type: ignore[arg-type]
    fresh = log.batches(**arguments)  # type: ignore[arg-type]
    assert fresh.num_steps == len(whole) == 24
    tail = list(fresh.batches(first_step))
    assert [batch.step for batch in tail] == list(range(first_step, 24))
    for batch in tail:
        assert samples_of(batch) == samples_of(whole[batch.step])


def test_steps_in_any_order_give_the_same_batches(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log", num_samples=900)
    stream = log.batches(batch_size=17, shuffle_samples=64)
    whole = [samples_of(batch) for batch in log.batches(batch_size=17, shuffle_samples=64).batches()]
    assert stream.num_steps == len(whole) > 20
    for step in np.random.default_rng(0).permutation(stream.num_steps):
        assert samples_of(stream.batch(int(step))) == whole[step]


def test_a_batch_may_be_larger_than_a_shuffle_group(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log", num_samples=1000)
    batch = log.batches(batch_size=700, shuffle_samples=64).batch(0)
    assert batch.num_samples == 700


def test_digest_tells_streams_apart(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log")
    base = log.batches(batch_size=10)
    assert base.digest == log.batches(batch_size=10).digest
    others = [
        log.batches(batch_size=11),
        log.batches(batch_size=10, seed=1),
        log.batches(batch_size=10, epochs=2),
        log.batches(batch_size=10, shuffle=False),
        log.batches(batch_size=10, split="valid"),
        tiny(tmp_path / "other", seed=1).batches(batch_size=10),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 7


def test_equal_arguments_give_equal_logs(tmp_path: Path) -> None:
    assert tiny(tmp_path / "a").digest == tiny(tmp_path / "b").digest


def test_a_stream_is_a_batch_stream(tmp_path: Path) -> None:
    stream: BatchStream = tiny(tmp_path / "log").batches(batch_size=10)
    assert isinstance(stream, LogStream)
    assert stream.num_rows == 189
    assert all(batch.rows.max() < 189 and batch.rows.dtype == np.int64 for batch in stream.batches())


def test_sizes_and_pooling(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log")
    assert log.split_sizes == {"train": 800, "valid": 100, "test": 100}
    assert log.tables == (("user", 50), ("item", 120), ("weekday", 7), ("genre", 12))
    assert log.table_offsets == {"user": 0, "item": 50, "weekday": 170, "genre": 177}
    assert log.mean_features == (False, False, False, True, False)
    assert [feature.ids_max for feature in log.features] == [1, 1, 1, 4, 4]
    assert log.multi_valued
    assert (log.num_rows, log.num_features, log.num_dense) == (189, 5, 3)
    log.check()


def test_only_the_groups_of_a_batch_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tiny(tmp_path / "log", num_samples=5000)
    stream = log.batches(batch_size=32, shuffle_samples=64)
    read: list[int] = []
    original = stream._row_groups.read

    def counted(numbers: Int64) -> Samples:
        read.extend(numbers)
        return original(numbers)

    monkeypatch.setattr(stream._row_groups, "read", counted)
    stream.batch(60)
    assert len(read) <= 2


def test_batches_do_not_keep_groups_alive(tmp_path: Path) -> None:
    batch = tiny(tmp_path / "log").batches(batch_size=10).batch(0)
    assert batch.rows.base is None
    assert batch.dense.base is None


# What a person may do wrong, and what may be damaged.


def test_no_log_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no prepared log is here .*foresee prepare"):
        ClickLog.open(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "this is not JSON"),
        ("[]", 'expected "format"'),
        ('{"format": "foresee-click-log", "version": 99}', "format version 99 is not 2"),
        ('{"format": "foresee-click-log", "version": 1}', "a field is missing or wrong"),
    ],
)
def test_damaged_description(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "log.json").write_text(text)
    with pytest.raises(DataError, match=sentence):
        ClickLog.open(tmp_path)


def test_edited_description(tmp_path: Path) -> None:
    tiny(tmp_path / "log")
    file = tmp_path / "log" / "log.json"
    body = json.loads(file.read_text())
    body["features"][0]["name"] = "someone"
    file.write_text(json.dumps(body))
    with pytest.raises(DataError, match="the file was edited"):
        ClickLog.open(tmp_path / "log")


def test_missing_and_truncated_parts(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log")
    part = log.path / "train-00000.parquet"
    whole = part.read_bytes()
    part.write_bytes(whole[:-10])
    with pytest.raises(DataError, match="the part is damaged"):
        ClickLog.open(log.path)
    part.unlink()
    with pytest.raises(DataError, match="part of the log is missing"):
        ClickLog.open(log.path)


def test_damaged_bytes_are_found(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log")
    part = log.path / "train-00000.parquet"
    damaged = bytearray(part.read_bytes())
    damaged[-60:-20] = b"x" * 40
    part.write_bytes(damaged)
    with pytest.raises(DataError, match="cannot be read"):
        ClickLog.open(log.path).check()


def rewrite(log: ClickLog, column: str, value: object) -> None:
    """Overwrite the first cell of a column of the first part, keeping all promises of log.json about sizes."""
    part = log.path / "train-00000.parquet"
    table = pq.read_table(part)
    cells = table.column(column).to_pylist()
    cells[0] = value
    place = table.schema.get_field_index(column)
    table = table.set_column(place, table.schema.field(column), pa.array(cells, table.schema.field(column).type))
    pq.write_table(table, part, row_group_size=64)
    body = json.loads((log.path / "log.json").read_text())
    body["splits"]["train"]["parts"][0]["num_bytes"] = part.stat().st_size
    (log.path / "log.json").write_text(json.dumps(body))


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("user", 50, "column user: id 50 is outside table user of 50 rows"),
        ("user", -1, "column user: id -1 is outside"),
        ("dense1", float("nan"), "column dense1: a value is NaN or infinite"),
    ],
)
def test_values_out_of_range(tmp_path: Path, column: str, value: object, sentence: str) -> None:
    log = tiny(tmp_path / "log")
    rewrite(log, column, value)
    with pytest.raises(DataError, match=sentence):
        list(ClickLog.open(log.path).batches(batch_size=10).batches())


@pytest.mark.parametrize(
    ("column", "value"),
    [("dense1", 0.25), ("user", 49), ("genres", [11, 11, 11]), ("genres", [11] * 9), ("label", 0.5)],
)
def test_changed_values_fail_the_check(tmp_path: Path, column: str, value: object) -> None:
    log = tiny(tmp_path / "log")
    rewrite(log, column, value)
    with pytest.raises(DataError, match="the train split is not what was written"):
        ClickLog.open(log.path).check()


def test_unusable_requests(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log", num_samples=100)
    with pytest.raises(DataError, match="80 samples, fewer than one batch of 81"):
        log.batches(batch_size=81)
    with pytest.raises(DataError, match=r"no 'holdout' split \(it has: train, valid, test\)"):
        log.batches(batch_size=1, split="holdout")
    with pytest.raises(DataError, match="batch_size=0 is too small"):
        log.batches(batch_size=0)
    with pytest.raises(UsageError, match="no table 'planet'; it has user, item"):
        log.vocabulary("planet")
    with pytest.raises(UsageError, match="step 81 is not one of"):
        list(log.batches(batch_size=1).batches(81))
