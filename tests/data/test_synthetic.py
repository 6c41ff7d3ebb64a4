"""Synthetic logs: the distribution asked for, correlated columns, and a best AUC that is true."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numba import njit
from numpy.typing import NDArray

from foresee.arrays import Float64, Int64
from foresee.data import ClickLog, criteo_table_sizes, synthetic, synthetic_rows
from foresee.data.synthetic.planted import ScoreHistogram
from foresee.data.synthetic.population import zipf_id, zipf_weights
from foresee.errors import DataError
from foresee.io.hashing import combine, uniform

SIZES = (50, 400, 7, 3000, 90)


@njit
def draw(num: int, weights: Float64, size: int, exponent: float) -> Int64:
    out = np.empty(num, np.int64)
    for index in range(num):
        out[index] = zipf_id(uniform(combine(np.uint64(7), np.uint64(index))), weights, size, exponent)
    return out


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0, 1.1, 2.0])
@pytest.mark.parametrize("size", [1, 2, 3, 256, 257, 3000])
def test_zipf_is_exact(size: int, exponent: float) -> None:
    num = 200_000
    counts = np.bincount(draw(num, zipf_weights((size,), exponent)[0], size, exponent), minlength=size)
    weights = np.arange(1.0, size + 1) ** -exponent
    expected = num * weights / weights.sum()
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert len(counts) == size
    # Mean size - 1 and variance 2 (size - 1): six deviations and a constant never fail by chance.
    assert chi_square < size + 6 * np.sqrt(2 * size) + 6


def test_zipf_reaches_tables_of_a_billion_rows() -> None:
    ids = draw(200_000, zipf_weights((10**9,), 1.1)[0], 10**9, 1.1)
    assert 0 <= ids.min() < 10**8 < ids.max() < 10**9


def test_negative_exponent_is_refused() -> None:
    with pytest.raises(DataError, match=r"zipf=-1\.0 cannot be used"):
        zipf_weights((10,), -1.0)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return synthetic(tmp_path_factory.mktemp("synthetic") / "log", num_samples=40_000, seed=3, table_sizes=SIZES)


def columns(log: ClickLog, split: str, *names: str) -> dict[str, NDArray[Any]]:
    tables = [pq.read_table(log.path / part.file) for part in log.description.splits[split].parts]
    return {name: np.concatenate([table.column(name).to_numpy() for table in tables]) for name in names}


def test_shape(log: ClickLog) -> None:
    assert log.split_sizes == {"train": 36_000, "valid": 4_000}
    assert tuple(table.num_rows for table in log.tables) == SIZES
    assert log.num_dense == 13
    log.check()


def test_best_auc_is_that_of_the_truth(log: ClickLog) -> None:
    assert set(log.best_auc) == {"train", "valid"}
    for split, best in log.best_auc.items():
        got = columns(log, split, "label", "true_probability")
        positive = got["true_probability"][got["label"] == 1]
        negative = np.sort(got["true_probability"][got["label"] == 0])
        below = np.searchsorted(negative, positive, "left") + np.searchsorted(negative, positive, "right")
        assert best == pytest.approx(below.mean() / 2 / len(negative), abs=1e-4)
        assert 0.76 < best < 0.84


def test_labels_follow_the_true_probability(log: ClickLog) -> None:
    got = columns(log, "train", "label", "true_probability")
    order = np.argsort(got["true_probability"])
    for tenth in np.array_split(order, 10):
        truth = got["true_probability"][tenth]
        assert abs(got["label"][tenth].mean() - truth.mean()) < 5 * np.sqrt((truth * (1 - truth)).mean() / len(tenth))


def test_samples_do_not_depend_on_how_many_are_made(log: ClickLog, tmp_path: Path) -> None:
    longer = synthetic(tmp_path / "longer", num_samples=70_000, seed=3, table_sizes=SIZES)
    for name in ("C2", "C4", "I1", "label", "true_probability"):
        short, long = columns(log, "train", name)[name], columns(longer, "train", name)[name]
        assert np.array_equal(short, long[: len(short)])


def test_same_seed_same_log_other_seed_other_log(log: ClickLog, tmp_path: Path) -> None:
    same = synthetic(tmp_path / "same", num_samples=40_000, seed=3, table_sizes=SIZES)
    other = synthetic(tmp_path / "other", num_samples=40_000, seed=4, table_sizes=SIZES)
    assert same.digest == log.digest != other.digest


def mutual_information(left: Int64, right: Int64) -> float:
    joint = np.zeros((left.max() + 1, right.max() + 1))
    np.add.at(joint, (left, right), 1 / len(left))
    independent = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    seen = joint > 0
    return float((joint[seen] * np.log(joint[seen] / independent[seen])).sum())


@pytest.mark.parametrize("columns", [(0, 4), (1, 5), (2, 6)], ids=["by user", "by topic", "by both"])
def test_columns_are_correlated_only_when_asked(columns: tuple[int, int]) -> None:
    found = {}
    for correlated in (True, False):
        trace = synthetic_rows(
            batch_size=50_000, num_batches=1, table_sizes=(40,) * 8, correlated=correlated, num_users=2000, seed=1
        )
        left, right = (next(trace) % 40)[:, columns].T
        found[correlated] = mutual_information(left, right)
    assert found[True] > 10 * found[False]


def test_rows_are_global_hot_first_and_reachable() -> None:
    whole = list(synthetic_rows(batch_size=500, num_batches=6, table_scale=0.001, seed=2))
    tail = list(synthetic_rows(batch_size=500, num_batches=2, table_scale=0.001, seed=2, first_batch=4))
    assert all(np.array_equal(a, b) for a, b in zip(whole[4:], tail, strict=True))
    sizes = criteo_table_sizes(0.001)
    ends = np.cumsum(sizes)
    rows = np.concatenate(whole)
    assert rows.shape == (3000, 26)
    assert (rows < ends).all()
    assert (rows >= ends - sizes).all()
    local = rows[:, 2] - ends[1]
    counts = [((local >= low) & (local < high)).sum() / (high - low) for low, high in pairwise((0, 3, 30, 300))]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("correlated", [True, False])
def test_batches_repeat_rows_as_criteo_does(correlated: bool) -> None:
    """2,736 distinct rows in a batch of 256 of the real log, at its true table sizes."""
    batches = synthetic_rows(batch_size=256, num_batches=8, correlated=correlated)
    assert np.mean([len(np.unique(rows)) for rows in batches]) == pytest.approx(2736, rel=0.05)


def test_table_sizes_are_scaled() -> None:
    assert sum(criteo_table_sizes(1.0)) == 33_762_577
    assert criteo_table_sizes(0.01)[:3] == (1000, 583, 101_312)
    assert 0.99e9 < sum(criteo_table_sizes(1e9 / 33_762_577)) < 1.01e9


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_samples": 0}, "num_samples=0 makes no log"),
        ({"num_samples": 10, "valid_share": 0.7, "test_share": 0.3}, "leave nothing to train on"),
        ({"num_samples": 10, "table_sizes": ()}, "give at least one table"),
        ({"num_samples": 10, "table_scale": 0.0}, "table_scale=0.0 makes no tables"),
    ],
)
def test_unusable_arguments(tmp_path: Path, arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        synthetic(tmp_path / "log", **arguments)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_histogram_of_one_kind_says_one_half() -> None:
    histogram = ScoreHistogram()
    histogram.add(np.array([0.2, 1.0]), np.ones(2, np.float32))
    assert histogram.auc() == 0.5


def test_degenerate_tables_still_make_a_log(tmp_path: Path) -> None:
    log = synthetic(tmp_path / "log", num_samples=100, table_sizes=(1,), num_dense=0, valid_share=0.0)
    assert log.split_sizes == {"train": 100}


def test_equal_scores_count_half() -> None:
    histogram = ScoreHistogram()
    histogram.add(np.array([0.3, 0.3, 0.1]), np.array([0, 1, 0], np.float32))
    assert histogram.auc() == 0.75


def test_a_user_has_habits() -> None:
    """One user alone: mostly one id in the columns that listen to the user, many in those that listen to topics."""
    trace = synthetic_rows(batch_size=5000, num_batches=1, table_sizes=(10**6,) * 2, zipf=0.0, num_users=1, seed=1)
    by_user, by_topic = (np.unique(column, return_counts=True)[1].max() / 5000 for column in next(trace).T)
    assert 0.8 < by_user < 0.9
    assert by_topic < 0.1
