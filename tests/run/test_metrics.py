"""Metrics against naive definitions, and what they say when nothing can be said."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from foresee.errors import DataError
from foresee.run.metrics import (
    HISTOGRAM_BITS,
    Metrics,
    MetricsAccumulator,
    SampleWindow,
    histogram_bins,
    measure,
    sigmoid,
)

Float32 = NDArray[np.float32]

# Few distinct values make ties; any float32 makes extremes, subnormals and both zeros.
TIED = st.sampled_from([-3.0, -0.5, -0.0, 0.0, 0.25, 2.0])
WIDE = st.floats(width=32, allow_nan=False, allow_infinity=False)
SAMPLES = st.lists(st.tuples(TIED | WIDE, st.booleans()), min_size=1, max_size=60)


def arrays(samples: list[tuple[float, bool]]) -> tuple[Float32, Float32]:
    logits, labels = zip(*samples, strict=True)
    return np.array(logits, dtype=np.float32), np.array(labels, dtype=np.float32)


def planted(num_samples: int, seed: int = 0) -> tuple[Float32, Float32]:
    """Logits that are exactly the log odds of their labels."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1.0, 1.5, num_samples).astype(np.float32)
    return logits, (rng.random(num_samples) < sigmoid(logits)).astype(np.float32)


def naive_auc(logits: Float32, labels: Float32) -> float:
    wins, pairs = 0.0, 0
    for positive in logits[labels == 1]:
        for negative in logits[labels == 0]:
            wins += 1.0 if positive > negative else 0.5 if positive == negative else 0.0
            pairs += 1
    return wins / pairs


def same(one: float | None, two: float | None) -> bool:
    """Equal but for the order of the float64 sums."""
    return one is two or (one is not None and two is not None and math.isclose(one, two, rel_tol=1e-12))


def in_batches(logits: Float32, labels: Float32, size: int, exact_samples_max: int) -> Metrics:
    accumulator = MetricsAccumulator(exact_samples_max=exact_samples_max)
    for start in range(0, len(logits), size):
        accumulator.add(logits[start : start + size], labels[start : start + size])
    return accumulator.result()


@settings(max_examples=200, deadline=None)
@given(samples=SAMPLES)
def test_auc_equals_counting_every_pair(samples: list[tuple[float, bool]]) -> None:
    logits, labels = arrays(samples)
    metrics = measure(logits, labels)
    if labels.min() == labels.max():
        assert metrics.auc is None
    else:
        assert metrics.auc == naive_auc(logits, labels)
        assert (metrics.auc_method, metrics.auc_error_max, metrics.reason) == ("exact", 0.0, None)


@settings(max_examples=100, deadline=None)
@given(samples=SAMPLES)
def test_log_loss_equals_torch(samples: list[tuple[float, bool]]) -> None:
    logits, labels = arrays(samples)
    as_float64 = torch.from_numpy(logits.astype(np.float64)), torch.from_numpy(labels.astype(np.float64))
    expected = float(torch.nn.functional.binary_cross_entropy_with_logits(*as_float64))
    assert measure(logits, labels).log_loss == pytest.approx(expected, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(samples=SAMPLES, size=st.integers(1, 20), exact_samples_max=st.integers(0, 80))
def test_batches_and_folding_change_nothing_but_the_stated_error(
    samples: list[tuple[float, bool]], size: int, exact_samples_max: int
) -> None:
    logits, labels = arrays(samples)
    whole, parts = measure(logits, labels), in_batches(logits, labels, size, exact_samples_max)
    assert parts.auc_method == ("exact" if len(logits) <= exact_samples_max else "histogram")
    assert (parts.num_samples, parts.num_positives) == (whole.num_samples, whole.num_positives)
    assert same(parts.log_loss, whole.log_loss)
    assert same(parts.calibration, whole.calibration)
    if whole.auc is None:
        assert parts.auc is None
    else:
        assert parts.auc is not None
        assert abs(parts.auc - whole.auc) <= parts.auc_error_max + 1e-12


@settings(max_examples=200, deadline=None)
@given(values=st.lists(TIED | WIDE, min_size=2, max_size=50))
def test_bins_are_in_the_order_of_the_logits(values: list[float]) -> None:
    logits = np.sort(np.array(values, dtype=np.float32))
    bins = histogram_bins(logits)
    assert bool((np.diff(bins) >= 0).all())
    assert bins.min() >= 0
    assert bins.max() < 1 << HISTOGRAM_BITS
    assert len(set(histogram_bins(np.array([-0.0, 0.0], dtype=np.float32)))) == 1


def test_histogram_is_close_on_many_samples() -> None:
    logits, labels = planted(200_000)
    exact, folded = measure(logits, labels), in_batches(logits, labels, size=4096, exact_samples_max=10_000)
    assert exact.auc is not None
    assert folded.auc is not None
    assert folded.auc_method == "histogram"
    assert abs(folded.auc - exact.auc) < 1e-6
    assert 0 < folded.auc_error_max < 1e-4


def test_histogram_holds_no_samples() -> None:
    accumulator = MetricsAccumulator(exact_samples_max=100)
    logits, labels = planted(1000)
    accumulator.add(logits, labels)
    assert not accumulator._logits
    assert not accumulator._labels


def test_planted_model_is_calibrated_and_better_than_the_mean() -> None:
    metrics = measure(*planted(100_000))
    assert metrics.calibration == pytest.approx(1.0, abs=0.02)
    assert metrics.normalised_entropy is not None
    assert metrics.normalised_entropy < 0.9
    for decile in metrics.calibration_by_decile:
        assert decile.mean_prediction == pytest.approx(decile.mean_label, abs=0.02)


def test_predicting_the_share_of_positives_has_normalised_entropy_one() -> None:
    labels = np.array([1, 0, 0, 0], dtype=np.float32)
    metrics = measure(np.full(4, math.log(1 / 3), dtype=np.float32), labels)
    assert metrics.normalised_entropy == pytest.approx(1.0, rel=1e-6)
    assert metrics.calibration == pytest.approx(1.0, rel=1e-6)
    assert metrics.auc == 0.5


def test_overconfident_predictions_show_in_calibration() -> None:
    labels = np.array([1, 0, 0, 0], dtype=np.float32)
    assert measure(np.zeros(4, dtype=np.float32), labels).calibration == pytest.approx(2.0)


@pytest.mark.parametrize("num_samples", [1, 3, 9, 10, 11, 97, 1000])
@pytest.mark.parametrize("exact_samples_max", [0, 10_000])
def test_deciles_are_tenths_in_order(num_samples: int, exact_samples_max: int) -> None:
    rng = np.random.default_rng(0)
    logits = rng.permutation(np.linspace(-4, -1, num_samples)).astype(np.float32)
    labels = (rng.random(num_samples) < 0.5).astype(np.float32)
    deciles = in_batches(logits, labels, 64, exact_samples_max).calibration_by_decile
    order = np.argsort(logits)
    tenths = [order[np.arange(num_samples) * 10 // num_samples == k] for k in range(10)]
    expected = [tenth for tenth in tenths if len(tenth)]
    assert [decile.num_samples for decile in deciles] == [len(tenth) for tenth in expected]
    for decile, tenth in zip(deciles, expected, strict=True):
        assert decile.mean_prediction == pytest.approx(sigmoid(logits[tenth]).mean())
        assert decile.mean_label == pytest.approx(labels[tenth].mean())


@pytest.mark.parametrize("exact_samples_max", [0, 10_000])
def test_equal_predictions_share_a_decile(exact_samples_max: int) -> None:
    logits = np.repeat(np.array([1.0, -1.0, 0.5], dtype=np.float32), [30, 45, 25])
    labels = np.tile(np.array([0, 1], dtype=np.float32), 50)
    deciles = in_batches(logits, labels, 7, exact_samples_max).calibration_by_decile
    assert [decile.num_samples for decile in deciles] == [45, 25, 30]
    assert [decile.mean_prediction for decile in deciles] == pytest.approx(
        list(sigmoid(np.array([-1.0, 0.5, 1.0], dtype=np.float32)))
    )


@pytest.mark.parametrize("exact_samples_max", [0, 10_000])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_one_class_alone_gives_a_reason_and_no_auc(label: float, exact_samples_max: int) -> None:
    logits, _ = planted(50)
    metrics = in_batches(logits, np.full(50, label, dtype=np.float32), 8, exact_samples_max)
    assert metrics.auc is None
    assert metrics.normalised_entropy is None
    assert metrics.log_loss is not None
    assert (metrics.calibration is None) == (label == 0.0)
    assert metrics.reason == f"all 50 labels are {label:.0f}: AUC needs both classes"


def test_no_samples_gives_a_reason() -> None:
    metrics = MetricsAccumulator().result()
    assert (metrics.num_samples, metrics.auc, metrics.log_loss, metrics.calibration) == (0, None, None, None)
    assert metrics.reason == "there are no samples"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("exact_samples_max", [0, 10_000])
def test_a_diverged_model_gives_a_reason_and_no_numbers(bad: float, exact_samples_max: int) -> None:
    logits, labels = planted(50)
    logits[17] = bad
    metrics = in_batches(logits, labels, 8, exact_samples_max)
    assert (metrics.auc, metrics.log_loss, metrics.calibration, metrics.normalised_entropy) == (None,) * 4
    assert metrics.reason is not None
    assert metrics.reason.startswith("1 of 50 predictions are not finite: training diverged")


@pytest.mark.parametrize("make", [lambda: measure(*planted(100)), lambda: MetricsAccumulator().result()])
def test_as_dict_is_strict_json(make: object) -> None:
    metrics: Metrics = make()  # type: ignore[operator]
    parsed = json.loads(json.dumps(metrics.as_dict(), allow_nan=False))
    assert parsed["auc"] == metrics.auc
    assert len(parsed["calibration_by_decile"]) == len(metrics.calibration_by_decile)


def test_result_can_be_asked_for_in_between() -> None:
    logits, labels = planted(300)
    accumulator = MetricsAccumulator()
    for start in range(0, 300, 100):
        accumulator.add(logits[start : start + 100], labels[start : start + 100])
        assert accumulator.result().auc == measure(logits[: start + 100], labels[: start + 100]).auc


def test_the_callers_arrays_may_be_reused() -> None:
    logits, labels = planted(100)
    expected = measure(logits, labels)
    accumulator = MetricsAccumulator()
    reused_logits, reused_labels = logits.copy(), labels.copy()
    accumulator.add(reused_logits, reused_labels)
    reused_logits[:], reused_labels[:] = 0, 0
    assert accumulator.result() == expected


def test_labels_other_than_clicks_are_refused() -> None:
    accumulator = MetricsAccumulator()
    accumulator.add(*planted(10))
    with pytest.raises(DataError, match=r"label of sample 11 is 3\.5: labels must be 0 or 1"):
        accumulator.add(np.zeros(3, dtype=np.float32), np.array([0, 3.5, 1], dtype=np.float32))
    with pytest.raises(DataError, match="label of sample 10 is nan"):
        accumulator.add(np.zeros(1, dtype=np.float32), np.array([math.nan], dtype=np.float32))


def test_one_logit_for_each_label() -> None:
    with pytest.raises(DataError, match=r"logits have shape \(2,\) and labels \(3,\)"):
        measure(np.zeros(2, dtype=np.float32), np.zeros(3, dtype=np.float32))


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 25), max_size=12), samples_max=st.integers(1, 30))
def test_window_is_the_last_samples(sizes: list[int], samples_max: int) -> None:
    logits, labels = planted(sum(sizes), seed=len(sizes))
    window = SampleWindow(samples_max=samples_max)
    start = 0
    for size in sizes:
        window.add(logits[start : start + size], labels[start : start + size])
        start += size
    kept = window.samples() or (logits, labels)
    expected, result = measure(logits[-samples_max:], labels[-samples_max:]), measure(*kept)
    assert (result.num_samples, result.num_positives, result.auc) == (
        expected.num_samples,
        expected.num_positives,
        expected.auc,
    )
    assert same(result.log_loss, expected.log_loss)


def test_sigmoid_does_not_overflow() -> None:
    values = sigmoid(np.array([-3e38, -1.0, 0.0, 1.0, 3e38], dtype=np.float32))
    assert values == pytest.approx([0.0, 1 / (1 + math.e), 0.5, math.e / (1 + math.e), 1.0])
