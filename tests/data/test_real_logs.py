"""The real logs, prepared: their published sizes, skew and rates have to come out."""

from pathlib import Path

import numpy as np
import pytest

from foresee.data import (
    Avazu,
    Categorical,
    Columns,
    Criteo,
    Csv,
    Join,
    Layout,
    Libfm,
    MovieLens,
    Parquet,
    PrepareOptions,
    PrepareReport,
    Source,
    prepare,
)
from real_data import RealData


def run(source: Source, tmp_path: Path, options: PrepareOptions | None = None) -> PrepareReport:
    report = prepare(source, tmp_path / "log", options)
    report.log.check()
    sizes = report.log.split_sizes
    stream = report.log.batches(batch_size=512, drop_last=False)
    assert sum(batch.num_samples for batch in stream.batches()) == sizes["train"]
    return report


def rate(report: PrepareReport) -> float:
    labels = [samples.labels for split in report.log.split_sizes for samples in report.log.samples(split)]
    return float(np.concatenate(labels).mean())


def test_criteo(real_data: RealData, tmp_path: Path) -> None:
    report = run(Criteo(files=(real_data.path("criteo/criteo_kaggle_union.tsv"),)), tmp_path)
    assert report.log.split_sizes == {"train": 7200, "valid": 800}
    assert (report.log.num_features, report.log.num_dense) == (26, 13)
    assert rate(report) == pytest.approx(0.216, abs=0.0005)


def test_criteo_terabyte_hashed(real_data: RealData, tmp_path: Path) -> None:
    source = Criteo(files=(real_data.path("criteo/criteo_terabyte_1000.tsv"),))
    report = run(source, tmp_path, PrepareOptions(hash_buckets=100))
    assert report.log.num_rows == 26 * 101


def test_avazu(real_data: RealData, tmp_path: Path) -> None:
    report = run(Avazu(files=(real_data.path("avazu/avazu_union_sorted.csv"),)), tmp_path)
    assert sum(report.log.split_sizes.values()) == 29_991
    assert 2700 < report.log.split_sizes["valid"] < 3300  # whole hours
    assert rate(report) == pytest.approx(0.169, abs=0.0005)
    assert dict(report.log.tables)["hour_of_day"] == 25


def test_movielens(real_data: RealData, tmp_path: Path) -> None:
    report = run(MovieLens(files=(real_data.path("movielens/ml-100k.inter"),)), tmp_path)
    log = report.log
    assert sum(log.split_sizes.values()) == 100_000
    assert rate(report) == pytest.approx(0.55375)  # ratings of 4 and 5
    names = [feature.name for feature in log.features]
    assert names == ["user_id", "item_id", "age", "gender", "occupation", "zip_code", "release_year", "class"]
    assert dict(log.tables)["user_id"] == 944
    assert log.mean_features[-1]
    assert log.vocabulary("class").column("value").to_pylist()[1] == "Drama"


def test_frappe(real_data: RealData, tmp_path: Path) -> None:
    files = (real_data.path("frappe/frappe.validation.libfm"), real_data.path("frappe/frappe.test.libfm"))
    options = PrepareOptions(split="files", test_files=files[1:])
    report = run(Libfm(files=files), tmp_path, options)
    assert report.log.split_sizes == {"train": 57_722, "test": 28_860}
    assert report.log.num_features == 10
    assert rate(report) == pytest.approx(0.33, abs=0.005)


def test_frappe_as_a_bag(real_data: RealData, tmp_path: Path) -> None:
    log = run(Libfm(files=(real_data.path("frappe/frappe.test.libfm"),), shape="bag"), tmp_path).log
    assert log.num_features == 1
    assert log.features[0].ids_max == 10


def test_talkingdata_as_csv(real_data: RealData, tmp_path: Path) -> None:
    """Its first header cell is damaged and its lines are not in time order."""
    names = ("ip", "app", "device", "os", "channel", "click_time", "attributed_time", "is_attributed")
    columns = Columns(
        label="is_attributed", categorical=tuple(Categorical(name=name) for name in names[:5]), time="click_time"
    )
    source = Csv(files=(real_data.path("talkingdata/talkingdata_100k.csv"),), columns=columns, column_names=names)
    report = run(source, tmp_path)
    assert report.log.split_sizes == {"train": 89_999, "valid": 10_001}
    assert rate(report) == pytest.approx(0.00227)
    counts = np.sort(report.log.vocabulary("app").column("count").to_numpy())[::-1]
    assert counts[: len(counts) // 10].sum() / counts.sum() == pytest.approx(0.91, abs=0.02)


@pytest.mark.slow
def test_anime_as_parquet(real_data: RealData, tmp_path: Path) -> None:
    columns = Columns(
        label="rating",
        label_threshold=8,
        label_skip=("0",),
        categorical=(
            Categorical(name="user_id"),
            Categorical(name="anime_id"),
            Categorical(name="genre", pooling="mean", separator=","),
        ),
    )
    genres = Join(
        file=real_data.path("anime/anime.csv"),
        key="anime_id",
        columns=("genre",),
        layout=Layout(separator=",", quoted=True, header=True),
    )
    source = Parquet(files=(real_data.path("anime/ratings_val.parquet"),), columns=columns, joins=(genres,))
    report = run(source, tmp_path)
    assert sum(report.log.split_sizes.values()) + report.num_skipped == 1_171_503
    assert "Slice of Life" in report.log.vocabulary("genre").column("value").to_pylist()


def test_movielens_dat(real_data: RealData, tmp_path: Path) -> None:
    """ml-1m's users and films as published, with a few ratings in its format."""
    ratings = tmp_path / "ratings.dat"
    (tmp_path / "users.dat").write_bytes(real_data.path("movielens/ml1m_users.dat").read_bytes())
    (tmp_path / "movies.dat").write_bytes(real_data.path("movielens/ml1m_movies.dat").read_bytes())
    ratings.write_text("1::1193::5::978300760\n1::661::3::978302109\n6040::1::4::956704887\n")
    log = prepare(MovieLens(files=(ratings,)), tmp_path / "log", PrepareOptions(valid_share=0.0)).log
    assert [feature.name for feature in log.features][2:] == ["gender", "age", "occupation", "zip_code", "genres"]
    assert next(log.samples()).labels.tolist() == [1.0, 0.0, 1.0]
    assert log.vocabulary("genres").column("value").to_pylist()[1] == "Animation"
