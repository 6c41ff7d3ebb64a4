"""What is exported scores raw samples exactly as the trained model does."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from training_runs import small_run, train_quietly

from foresee.data import ClickLog, tiny
from foresee.data.columns import Categorical, Columns, Dense
from foresee.data.formats.csv import Csv
from foresee.data.prepare import prepare
from foresee.data.source import PrepareOptions
from foresee.engine.planned_step import Pooling
from foresee.errors import ConfigError, DataError, StoreError
from foresee.run.config import RunConfig
from foresee.run.evaluation import judging, score
from foresee.run.serving import export as export_module
from foresee.run.serving.export import export, trained, trained_model
from foresee.run.serving.exported import load_exported
from foresee.store.contract import Rows


def _scores_of_run(config: RunConfig, log: ClickLog, split: str) -> np.ndarray[Any, Any]:
    """Logits of a whole split in one batch, by the run itself."""
    stream = log.batches(batch_size=10_000, split=split, shuffle=False, drop_last=False)
    with trained(config, log) as tables:
        model = trained_model(config, log, tables)
        with judging(model):
            logits = score(
                model, tables.store, stream.batch(0), Pooling.of(log.mean_features), device=torch.device("cpu")
            )
    return logits.numpy()


def test_ids_as_given_bags_and_empty_bags_score_as_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "ROWS_AT_ONCE", 13)
    log = tiny(tmp_path / "log")
    config = small_run(log, tmp_path / "run")
    train_quietly(config)
    description = export(config.run, tmp_path / "out")
    exported = load_exported(tmp_path / "out")
    np.testing.assert_array_equal(exported.logits(_raw_samples(log, "valid")), _scores_of_run(config, log, "valid"))
    with trained(config, log) as tables:
        for entry in description["tables"]:
            values = load_file(tmp_path / "out" / entry["file"])["values"]
            np.testing.assert_array_equal(values, tables.values(entry["name"]))
    scores = exported.score(_raw_samples(log, "valid"))
    assert ((scores > 0) & (scores < 1)).all()
    assert exported.score([]).shape == (0,)


@pytest.mark.parametrize(("dtype", "rounding", "share"), [("bfloat16", "stochastic", 1.0), ("float16", "nearest", 0.1)])
def test_values_of_two_bytes_are_exported_as_they_are(tmp_path: Path, dtype: str, rounding: str, share: float) -> None:
    """All rows, or only those that were written; the others begin with rounded values, too."""
    num_samples, batch_size = (2000, 32) if share == 1 else (120, 8)
    log = tiny(tmp_path / "log", num_samples=num_samples)
    tables = {"dtype": dtype, "rounding": rounding, "optimizer": {"name": "sgd", "lr": 0.1}}
    config = small_run(log, tmp_path / "run", tables=tables, model={"dim": 5}, train={"batch_size": batch_size})
    _, printed = train_quietly(config)
    assert "rows of 16 bytes" in printed
    description = export(config.run, tmp_path / "out")
    kind = getattr(torch, dtype)
    with trained(config, log) as opened:
        for entry in description["tables"]:
            found = load_tensors(tmp_path / "out" / entry["file"])
            expected = torch.from_numpy(opened.values(entry["name"]))
            expected = expected[found["rows"]] if "rows" in found else expected
            assert found["values"].dtype == kind
            assert torch.equal(found["values"].float(), expected)
    exported = load_exported(tmp_path / "out")
    np.testing.assert_array_equal(exported.logits(_raw_samples(log, "valid")), _scores_of_run(config, log, "valid"))


def _raw_samples(log: ClickLog, split: str) -> list[dict[str, Any]]:
    """The samples of a log whose ids are their own raw values."""
    rows: list[dict[str, Any]] = []
    for samples in log.samples(split):
        for index in range(samples.num_samples):
            row: dict[str, Any] = {name: float(samples.dense[i][index]) for i, name in enumerate(log.dense_names)}
            for feature, ids in zip(log.features, samples.ids, strict=True):
                if ids.offsets is None:
                    row[feature.name] = int(ids.values[index])
                else:
                    row[feature.name] = ids.values[ids.offsets[index] : ids.offsets[index + 1]].tolist()
            rows.append(row)
    return rows


def test_vocabularies_hashes_and_transforms_are_those_of_the_log(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    raw = [
        {
            "click": int(rng.random() < 0.4),
            "age": "" if rng.random() < 0.1 else f"{rng.normal(40, 10):.2f}",
            "price": f"{rng.exponential(50):.3f}",
            "city": f"city{int(rng.random() ** 2 * 40)}",
            "site": f"s{int(rng.random() ** 2 * 300)}",
            "tags": "|".join(f"tag{int(it)}" for it in rng.integers(0, 9, rng.integers(0, 4))),
        }
        for _ in range(600)
    ]
    log = _prepared(tmp_path, raw)
    config = small_run(log, tmp_path / "run", cache={"rows": 120})
    train_quietly(config)
    export(config.run, tmp_path / "out")
    valid = [_as_served(row) for row in raw[-log.split_sizes["valid"] :]]
    exported = load_exported(tmp_path / "out")
    np.testing.assert_array_equal(exported.logits(valid), _scores_of_run(config, log, "valid"))
    # A city nobody has seen counts as unknown, as a missing one does.
    unseen = [{**valid[0], "city": "Atlantis"}, {**valid[0], "city": None}]
    assert len(set(exported.logits(unseen).tolist())) == 1
    with pytest.raises(DataError, match="row 1 has no 'site'"):
        exported.score([valid[0], {key: value for key, value in valid[0].items() if key != "site"}])
    for nothing in (None, float("nan"), ""):
        with pytest.raises(DataError, match="row 1, column 'price': there is no number, and the log had no rule"):
            exported.score([valid[0], {**valid[0], "price": nothing}])
    for wrong in (float("inf"), "cheap", [3.0], 1e300, 10**400):
        with pytest.raises(DataError, match="row 0, column 'price': expected a finite number, found"):
            exported.score([{**valid[0], "price": wrong}])


def _prepared(tmp_path: Path, raw: list[dict[str, Any]], hash_buckets: int = 50) -> ClickLog:
    with open(tmp_path / "raw.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(raw[0]))
        writer.writeheader()
        writer.writerows(raw)
    columns = Columns(
        label="click",
        dense=(Dense(name="age", transform="standard", missing=40.0), Dense(name="price", transform="log1p")),
        categorical=(
            Categorical(name="city", min_count=2),
            Categorical(name="site", hash_buckets=hash_buckets),
            Categorical(name="tags", pooling="mean", separator="|"),
        ),
    )
    source = Csv(files=(tmp_path / "raw.csv",), columns=columns)
    return prepare(source, tmp_path / "log", PrepareOptions(split="order", valid_share=0.2)).log


def _as_served(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "age": float(row["age"]) if row["age"] else None,
        "price": float(row["price"]),
        "city": row["city"],
        "site": row["site"],
        "tags": row["tags"].split("|") if row["tags"] else [],
    }


def test_what_cannot_be_exported_or_opened_is_a_sentence(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log")
    with pytest.raises(ConfigError, match="holds no run"):
        export(tmp_path / "nothing", tmp_path / "out")
    config = small_run(log, tmp_path / "run")
    train_quietly(config, stop_after=2)
    export(config.run, tmp_path / "out")
    with pytest.raises(DataError, match="the folder exists and is not empty"):
        export(config.run, tmp_path / "out")
    with pytest.raises(DataError, match="holds no exported model"):
        load_exported(tmp_path / "log")
    exported = load_exported(tmp_path / "out")
    sample = _raw_samples(log, "valid")[0]
    with pytest.raises(DataError, match=r"row 0, column 'user': 'x' is no id of table 'user'; give a .* 0 to 49"):
        exported.score([{**sample, "user": "x"}])
    with pytest.raises(DataError, match="'50' is no id of table 'user'"):
        exported.score([{**sample, "user": 50}])
    description = json.loads((tmp_path / "out" / "export.json").read_text())
    (tmp_path / "out" / "export.json").write_text(json.dumps({**description, "version": 99}))
    with pytest.raises(DataError, match="this release reads foresee-export 3"):
        load_exported(tmp_path / "out")
    (tmp_path / "out" / "table-000.safetensors").write_bytes(b"short")
    (tmp_path / "out" / "export.json").write_text(json.dumps(description))
    with pytest.raises(DataError, match=r"table-000.safetensors: this is not an exported table"):
        load_exported(tmp_path / "out")


def test_rows_that_were_never_written_are_left_out_and_score_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "ROWS_AT_ONCE", 130)  # many pieces, most of them without a row
    constant = {"age": "30", "price": "2", "tags": ""}
    raw = [
        {"click": int(index % 3 == 0), **constant, "city": f"c{index % 7}", "site": f"s{index % 50}"}
        for index in range(400)
    ]
    log = _prepared(tmp_path, raw, hash_buckets=20_000)
    config = small_run(log, tmp_path / "run", cache={"rows": 200})
    train_quietly(config)
    description = export(config.run, tmp_path / "out")
    entry = next(it for it in description["tables"] if it["name"] == "site")
    assert (entry["num_rows"], 0 < entry["num_written"] <= 51) == (20_001, True)
    assert (tmp_path / "out" / entry["file"]).stat().st_size == entry["num_bytes"] < 10_000
    exported = load_exported(tmp_path / "out")
    # Sites that nobody has seen: their rows are in no file, and have the values that the store gives them.
    unseen = [{**_as_served(raw[0]), "site": f"new{index}"} for index in range(300)]
    everything = np.arange(exported._rows.layout.num_rows)
    found = Rows.empty(len(everything), exported._rows.layout)
    exported._rows.read(everything, found)
    with trained(config, log) as tables:
        values = [tables.values(table.name) for table in log.tables]
    np.testing.assert_array_equal(found.values, np.concatenate(values))
    assert len(set(exported.logits(unseen).tolist())) > 200
    assert [it["num_written"] for it in description["tables"] if it["name"] == "city"] == [8], "small tables stay whole"
    damaged = bytearray((tmp_path / "out" / entry["file"]).read_bytes())
    begin = 8 + int.from_bytes(damaged[:8], "little")
    damaged[begin : begin + 8] = (1 << 40).to_bytes(8, "little")
    (tmp_path / "out" / entry["file"]).write_bytes(damaged)
    with pytest.raises(DataError, match="its row ids do not ascend"):
        load_exported(tmp_path / "out")


def test_an_export_of_the_first_format_is_read(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log")
    config = small_run(log, tmp_path / "run")
    train_quietly(config, stop_after=3)
    description = export(config.run, tmp_path / "out")
    samples = _raw_samples(log, "valid")
    expected = load_exported(tmp_path / "out").logits(samples)
    with trained(config, log) as tables:
        for entry in description["tables"]:
            save_file({"values": tables.values(entry["name"])}, tmp_path / "out" / entry["file"])
            del entry["num_written"], entry["num_bytes"]
    for feature in description["features"]:
        del feature["separator"], feature["raw_type"], feature["missing_markers"]
    del description["initial"]
    (tmp_path / "out" / "export.json").write_text(json.dumps({**description, "version": 1}))
    np.testing.assert_array_equal(load_exported(tmp_path / "out").logits(samples), expected)


def test_an_export_without_room_is_refused_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_run(tiny(tmp_path / "log"), tmp_path / "run")
    train_quietly(config, stop_after=2)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    with pytest.raises(StoreError, match=r"out: this export takes 1,\d+,\d+ bytes, the disk has 1,000 left; free some"):
        export(config.run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "run"]
