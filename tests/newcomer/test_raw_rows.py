"""From a raw file to scores of raw rows: prepare, train two models, evaluate, export, score; the same AUC to the digit.

Files as people have them: CSV with quotes and CRLF, the same as gzip, Parquet with lists, nulls, time zones and ids
beyond int64; real logs where they are. Rows are scored in every form a program may hold them in, and from the file.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from command_line import foresee
from foresee.data.columns import Categorical, Columns, Dense
from foresee.data.formats.csv import Csv
from foresee.data.formats.parquet import Parquet
from foresee.data.prepare import prepare
from foresee.data.source import PrepareOptions, Source
from foresee.run.metrics import measure
from foresee.run.serving.exported import Exported, load_exported
from real_data import RealData

MODELS = ("{name: dlrm, dim: 4, options: {bottom: [8], top: [8]}}", "{name: deepfm, dim: 4}")
VALID_SHARE = 0.25
NUM_SAMPLES = 1200


class Case(NamedTuple):
    """A raw file, what its columns mean, and its last rows in the forms to score."""

    source: Source
    label: str
    forms: Callable[[int], dict[str, Any]]
    """Forms of the last rows, by name."""


class Frame:
    """What is used of a pandas frame: names, `iloc`, a column by name."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns, self.columns, self.iloc = columns, list(columns), None

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def __len__(self) -> int:
        return len(self._columns[self.columns[0]])


def shop() -> list[dict[str, Any]]:
    """A log with everything that goes wrong in scoring: numbers that are ids, bags of numbers, gaps, quotes."""
    rng = np.random.default_rng(7)
    rows = []
    for index in range(NUM_SAMPLES):
        user, item = int(rng.random() ** 2 * 60), int(rng.random() ** 2 * 40)
        rows.append(
            {
                "click": int(rng.random() < 0.2 + 0.5 * (user % 3 == item % 3)),
                "user": 449_800 + user,
                "item": f'item "{item}", new' if item % 5 else f"{item:03d}",
                "tags": [7200 + int(tag) for tag in rng.integers(0, 9, rng.integers(0, 4))],
                "brand": None if rng.random() < 0.2 else 10 + item,
                "price": None if rng.random() < 0.1 else round(float(rng.exponential(30)), 2),
                "at": datetime(2019, 11, 24, tzinfo=UTC) + timedelta(minutes=index),
            }
        )
    return rows


SHOP_COLUMNS = Columns(
    label="click",
    dense=(Dense(name="price", transform="log1p", missing=5.0),),
    categorical=(
        Categorical(name="user"),
        Categorical(name="item", min_count=2),
        Categorical(name="tags", pooling="mean", separator="|"),
        Categorical(name="brand", hash_buckets=30, missing_markers=("NULL",)),
    ),
)


def shop_csv(folder: Path, *, zipped: bool) -> Case:
    """Quotes, CRLF and NULL; forms have text, numbers, or numbers that became floats for want of a null."""
    file, rows = folder / ("shop.csv.gz" if zipped else "shop.csv"), shop()
    texts = [
        {
            **{name: str(row[name]) for name in ("click", "user", "item")},
            "tags": "|".join(map(str, row["tags"])),
            "brand": "NULL" if row["brand"] is None else str(row["brand"]),
            "price": "" if row["price"] is None else str(row["price"]),
        }
        for row in rows
    ]
    with (gzip.open if zipped else open)(file, "wt", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(texts[0]), quoting=csv.QUOTE_ALL, lineterminator="\r\n")
        writer.writeheader()
        writer.writerows(texts)

    def forms(num: int) -> dict[str, Any]:
        last = rows[-num:]
        with (gzip.open if zipped else open)(file, "rb") as stream:
            typed = pa_csv.read_csv(stream, convert_options=pa_csv.ConvertOptions(column_types={"item": pa.string()}))
        missing = float("nan")
        frame = Frame(
            {
                "user": np.array([float(row["user"]) for row in last]),
                "item": np.array([row["item"] for row in last], object),
                "tags": np.array(["|".join(map(str, row["tags"])) or missing for row in last], object),
                "brand": np.array([missing if row["brand"] is None else float(row["brand"]) for row in last]),
                "price": np.array([missing if row["price"] is None else row["price"] for row in last]),
            }
        )
        return {
            "text records": texts[-num:],
            "typed records": last,
            "columns": {name: [row[name] for row in last] for name in last[0] if name != "at"},
            "table read by Arrow": typed.slice(len(rows) - num),
            "frame": frame,
        }

    return Case(Csv(files=(file,), columns=SHOP_COLUMNS), "click", forms)


def shop_parquet(folder: Path) -> Case:
    """Lists, nulls, a time zone, and ids that need uint64."""
    rows = [{**row, "user": (1 << 63) + row["user"]} for row in shop()]
    schema = pa.schema(
        {
            "click": pa.int8(), "user": pa.uint64(), "item": pa.dictionary(pa.int32(), pa.string()),
            "tags": pa.list_(pa.int32()), "brand": pa.int64(), "price": pa.float32(),
            "at": pa.timestamp("us", "Europe/Vienna"),
        }
    )  # fmt: skip
    table = pa.Table.from_pylist(rows, schema)
    table = table.set_column(3, "tags", pa.array([row["tags"] or None for row in rows], pa.list_(pa.int32())))
    pq.write_table(table, folder / "shop.parquet", row_group_size=500)
    columns = Columns(
        label="click",
        time="at",
        dense=(Dense(name="price", transform="standard", missing=5.0),),
        categorical=(
            Categorical(name="user"),
            Categorical(name="item"),
            Categorical(name="tags", pooling="sum"),
            Categorical(name="brand"),
            Categorical(name="at", min_count=1),
        ),
    )

    def forms(num: int) -> dict[str, Any]:
        last = table.slice(len(rows) - num)
        batch = last.combine_chunks().to_batches()[0]
        # As Python has it: prices of float32, and times as the text that Arrow writes.
        times = last.column("at").cast(pa.string()).to_pylist()
        records = [{**record, "at": time} for record, time in zip(last.to_pylist(), times, strict=True)]
        columns = {name: last.column(name) for name in schema.names}
        return {"table": last, "batch": batch, "records": records, "columns": columns}

    return Case(Parquet(files=(folder / "shop.parquet",), columns=columns), "click", forms)


def avazu(folder: Path, real_data: RealData) -> Case:
    """Real rows: hexadecimal text, ids that look like numbers, -1."""
    raw = real_data.path("avazu/avazu_union_sorted.csv")
    file = folder / "avazu.csv"
    with open(raw, encoding="utf-8") as stream:
        file.write_text("".join(line for _, line in zip(range(3001), stream, strict=False)))
    names = ("C1", "banner_pos", "site_id", "app_category", "device_model", "C14", "C20")
    columns = Columns(label="click", categorical=tuple(Categorical(name=name) for name in names))

    def forms(num: int) -> dict[str, Any]:
        with open(file, newline="", encoding="utf-8") as stream:
            records = list(csv.DictReader(stream))[-num:]
        typed = pa_csv.read_csv(file)
        return {"records": records, "table read by Arrow": typed.slice(len(typed) - num)}

    return Case(Csv(files=(file,), columns=columns), "click", forms)


def anime(folder: Path, real_data: RealData) -> Case:
    """Real ratings as Parquet: integers, and a rating as the label."""
    raw = real_data.path("anime/ratings_val.parquet")
    table = pq.read_table(raw).slice(0, 3000)
    users, items = table.schema.names[:2]
    table = table.append_column("liked", pa.array((table.column("rating").to_numpy() >= 8).astype(np.int8)))
    pq.write_table(table, folder / "anime.parquet")
    columns = Columns(label="liked", categorical=(Categorical(name=users), Categorical(name=items)))

    def forms(num: int) -> dict[str, Any]:
        last = table.slice(len(table) - num)
        as_floats = {name: last.column(name).to_numpy().astype(np.float64) for name in (users, items)}
        return {"table": last, "records": last.to_pylist(), "floats": Frame(as_floats)}

    return Case(Parquet(files=(folder / "anime.parquet",), columns=columns), "liked", forms)


CASES: dict[str, Callable[[Path, RealData], Case]] = {
    "csv": lambda folder, _: shop_csv(folder, zipped=False),
    "gzip": lambda folder, _: shop_csv(folder, zipped=True),
    "parquet": lambda folder, _: shop_parquet(folder),
    "avazu": avazu,
    "anime": anime,
}


@pytest.mark.parametrize("name", CASES)
def test_the_auc_of_raw_rows_is_that_of_evaluate(
    name: str,
    real_data: RealData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    case = CASES[name](tmp_path, real_data)
    options = PrepareOptions(split="order", valid_share=VALID_SHARE)
    log = prepare(case.source, tmp_path / "log", options).log
    num_valid = log.split_sizes["valid"]
    forms, last = case.forms(num_valid), last_rows(case, num_valid)
    for number, model in enumerate(MODELS):
        run_file, run, out = tmp_path / f"{number}.yaml", tmp_path / f"run{number}", tmp_path / f"export{number}"
        run_file.write_text(
            f"log: log\nrun: {run.name}\nmodel: {model}\ncache: {{share: 1.0}}\n"
            "train: {batch_size: 64, num_threads: 1}\n"
        )
        assert foresee("train", run_file, monkeypatch=monkeypatch) == 0
        capsys.readouterr()
        assert foresee("evaluate", run, "--json", monkeypatch=monkeypatch) == 0
        evaluated = json.loads(capsys.readouterr().out)
        assert foresee("export", run, "--out", out, monkeypatch=monkeypatch) == 0
        exported = load_exported(out)
        capsys.readouterr()
        labels = labels_of(case, num_valid)
        for form, samples in forms.items():
            measured = measure(exported.logits(samples), labels)
            assert (measured.auc, measured.log_loss) == (evaluated["auc"], evaluated["log_loss"]), form
        assert foresee("score", out, last, "--out", tmp_path / "scores", monkeypatch=monkeypatch) == 0
        assert foresee("score", out, last, monkeypatch=monkeypatch) == 0
        check_scores((tmp_path / "scores").read_text(), exported, forms)
        check_scores(capsys.readouterr().out, exported, forms)


def labels_of(case: Case, num: int) -> np.ndarray[Any, Any]:
    """The labels of the last rows, from the raw file."""
    file = Path(case.source.files[0])
    if file.suffix == ".parquet":
        return np.asarray(pq.read_table(file).column(case.label).to_numpy()[-num:], np.float32)
    with (gzip.open if file.suffix == ".gz" else open)(file, "rt", newline="", encoding="utf-8") as stream:
        return np.array([row[case.label] for row in csv.DictReader(stream)][-num:], np.float32)


def last_rows(case: Case, num: int) -> Path:
    """A raw file of the last rows alone."""
    file = Path(case.source.files[0])
    last = file.with_name(f"last-{file.name}")
    if file.suffix == ".parquet":
        table = pq.read_table(file)
        pq.write_table(table.slice(len(table) - num), last)
        return last
    opening = gzip.open if file.suffix == ".gz" else open
    with opening(file, "rb") as stream, opening(last, "wb") as to:
        header, *lines = stream.readlines()
        to.writelines([header, *lines[-num:]])
    return last


def check_scores(printed: str, exported: Exported, forms: dict[str, Any]) -> None:
    header, *lines = printed.splitlines()
    assert header == "probability"
    np.testing.assert_array_equal(np.array(lines, np.float32), exported.score(next(iter(forms.values()))))
