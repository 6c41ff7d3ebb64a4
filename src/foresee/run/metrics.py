"""How good predictions are: log loss, AUC, normalised entropy, calibration, and calibration by decile.

In: logits and labels (0 or 1), batch after batch. Out: `Metrics`, one frozen record. Memory is bounded: up to
`exact_samples_max` samples are kept (5 bytes each, up to 17 for a moment while the result is made) and AUC is
exact, ties counted as half; beyond that they are folded into a histogram of 24 MiB and AUC is exact up to
`auc_error_max`. The result says which. All sums are float64.

It must never crash on a split of one class or on a model that diverged: what cannot be said is None, with a reason.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Bool, Float32, Float64, Int64
from foresee.errors import DataError
from foresee.run.ranking_metrics import Ranking

NUM_DECILES = 10
HISTOGRAM_BITS = 20
CHUNK_SAMPLES = 1 << 20


class Figures(Protocol):
    """What an evaluation gives, of clicks or of anything else."""

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        ...

    def figure(self, name: str) -> float | None:
        """One of them, by the name that `as_dict` gives it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decile:
    """A tenth of the samples, by prediction. Equal predictions are never torn apart, so sizes can differ."""

    num_samples: int
    mean_prediction: float
    mean_label: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What was measured. None means that it cannot be said for these samples; `reason` says why."""

    num_samples: int
    num_positives: int
    log_loss: float | None
    auc: float | None
    auc_method: str
    """"exact" or "histogram"."""
    auc_error_max: float
    """The true AUC is within this of `auc`; 0 when exact."""
    normalised_entropy: float | None
    """Log loss over that of always predicting the share of positives: below 1 means something was learned."""
    calibration: float | None
    """Mean prediction over mean label."""
    calibration_by_decile: tuple[Decile, ...]
    """From the lowest predictions to the highest; empty deciles are left out."""
    reason: str | None
    ranking: Ranking | None = None
    """Within groups, if there was a feature that makes them."""

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; figures within groups by their names, such as ndcg@10."""
        content = asdict(self)
        del content["ranking"]
        return content if self.ranking is None else {**content, **self.ranking.as_dict()}

    def figure(self, name: str) -> float | None:
        """One of the figures, by the name that `as_dict` gives it."""
        value = self.as_dict()[name]
        return None if value is None else float(value)


class MetricsAccumulator:
    """Takes a split batch by batch; `result()` can be asked for at any time and again later."""

    def __init__(self, *, exact_samples_max: int = 20_000_000) -> None:
        self._exact_samples_max = exact_samples_max
        self._logits: list[Float32] = []
        self._labels: list[Bool] = []
        self._histogram: _Histogram | None = None
        self._sums = _Sums()

    def add(self, logits: Float32, labels: Float32) -> None:
        """Count a batch in. The arrays are copied: the caller may reuse them."""
        positive = _checked_labels(logits, labels, self._sums.num_samples)
        logits = np.array(logits, dtype=np.float32)
        self._sums.add(logits, positive)
        if self._sums.num_not_finite:
            self._logits, self._labels = [], []  # nothing can be said any more, so nothing has to be kept
            return
        if self._histogram is None and self._sums.num_samples > self._exact_samples_max:
            self._fold()
        if self._histogram is not None:
            self._histogram.add(logits, positive)
        else:
            self._logits.append(logits)
            self._labels.append(positive)

    def result(self) -> Metrics:
        """Metrics of everything added so far."""
        if self._sums.num_not_finite or not self._sums.num_samples:
            return self._sums.metrics(auc=None, method="exact", error_max=0.0, deciles=())
        if self._histogram is not None:
            auc, error_max = self._histogram.auc()
            deciles = self._histogram.deciles()
            return self._sums.metrics(auc=auc, method="histogram", error_max=error_max, deciles=deciles)
        self._logits = [np.concatenate(self._logits)]  # one after the other, so that only one is in memory twice
        self._labels = [np.concatenate(self._labels)]
        auc, deciles = exact_auc(self._logits[0], self._labels[0]), exact_deciles(self._logits[0], self._labels[0])
        return self._sums.metrics(auc=auc, method="exact", error_max=0.0, deciles=deciles)

    def _fold(self) -> None:
        self._histogram = _Histogram()
        for logits, positive in zip(self._logits, self._labels, strict=True):
            self._histogram.add(logits, positive)
        self._logits, self._labels = [], []


class SampleWindow:
    """The last `samples_max` samples of training, for progress. Adding is a copy; all work is in who looks at them."""

    def __init__(self, *, samples_max: int = 65_536) -> None:
        self._samples_max = samples_max
        self._kept: tuple[Float32, ...] = ()
        self._num_added = 0

    def add(self, outputs: Float32, labels: Float32) -> None:
        """Put a batch in, over the oldest samples."""
        size, batch = self._samples_max, (outputs[-self._samples_max :], labels[-self._samples_max :])
        self._kept = self._kept or tuple(np.zeros((size, *it.shape[1:]), np.float32) for it in batch)
        positions = np.arange(self._num_added, self._num_added + len(batch[0])) % size
        for kept, new in zip(self._kept, batch, strict=True):
            kept[positions] = new
        self._num_added += len(batch[0])

    def samples(self) -> tuple[Float32, ...]:
        """(outputs, labels) of the samples in the window; nothing before there were any."""
        filled = min(self._num_added, self._samples_max)
        return tuple(kept[:filled] for kept in self._kept)


def measure(logits: Float32, labels: Float32) -> Metrics:
    """Exact metrics of arrays that are already in memory."""
    accumulator = MetricsAccumulator(exact_samples_max=len(logits))
    accumulator.add(logits, labels)
    return accumulator.result()


def exact_auc(logits: Float32, positive: Bool) -> float | None:
    """The chance that a positive is above a negative, ties half; None without both classes.

    For each positive, the negatives below it plus those not above it count every win twice and every tie once. The
    counts are integers, so the result is the exact rational number, rounded once, in whatever order samples come.
    """
    positives, negatives = logits[positive], logits[~positive]
    if not len(positives) or not len(negatives):
        return None
    positives.sort()  # in place; sorted needles also make the searches below run through memory in order
    negatives.sort()
    below = int(np.searchsorted(negatives, positives, side="left").sum(dtype=np.int64))
    not_above = int(np.searchsorted(negatives, positives, side="right").sum(dtype=np.int64))
    return (below + not_above) / (2 * len(positives) * len(negatives))


def exact_deciles(logits: Float32, positive: Bool) -> tuple[Decile, ...]:
    """Mean prediction and mean label of each tenth of the samples.

    The sample of rank r belongs to decile ⌊10 r / n⌋, so decile k ends at rank ⌈(k + 1) n / 10⌉ − 1; samples equal to
    others belong where the first of them belongs.
    """
    ends = -(-np.arange(1, NUM_DECILES) * len(logits) // NUM_DECILES) - 1
    edges = np.partition(logits, ends)[ends]
    sums = np.zeros((3, NUM_DECILES))
    for start in range(0, len(logits), CHUNK_SAMPLES):  # in chunks: the float64 in between would outweigh the samples
        part, labels = logits[start : start + CHUNK_SAMPLES], positive[start : start + CHUNK_SAMPLES]
        sums += _sums_by(np.searchsorted(edges, part, side="left"), np.ones(len(part)), sigmoid(part), labels)
    return _deciles(sums)


def sigmoid(logits: Float32) -> Float64:
    """1 / (1 + e^-x) in float64, which float32 logits cannot overflow: e^-x is computed for -|x| only."""
    small = np.exp(-np.abs(logits.astype(np.float64)))
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)


class _Sums:
    """The metrics that need no order: running sums over samples."""

    def __init__(self) -> None:
        self.num_samples = 0
        self.num_positives = 0
        self.num_not_finite = 0
        self._loss = 0.0
        self._prediction = 0.0

    def add(self, logits: Float32, positive: Bool) -> None:
        self.num_samples += len(logits)
        self.num_positives += int(np.count_nonzero(positive))
        self.num_not_finite += int(np.count_nonzero(~np.isfinite(logits)))
        if self.num_not_finite:
            return
        # -log(sigmoid(x)) of a positive and -log(1 - sigmoid(x)) of a negative are both log(1 + e^z), z = -x or x.
        towards_wrong = np.where(positive, -logits, logits).astype(np.float64)
        self._loss += float(np.logaddexp(0.0, towards_wrong).sum())
        self._prediction += float(sigmoid(logits).sum())

    def metrics(self, *, auc: float | None, method: str, error_max: float, deciles: tuple[Decile, ...]) -> Metrics:
        said = self.num_samples > 0 and not self.num_not_finite
        log_loss = self._loss / self.num_samples if said else None
        entropy = _entropy(self.num_positives / self.num_samples) if said else 0.0
        return Metrics(
            num_samples=self.num_samples,
            num_positives=self.num_positives,
            log_loss=log_loss,
            auc=auc,
            auc_method=method,
            auc_error_max=error_max,
            normalised_entropy=log_loss / entropy if log_loss is not None and entropy > 0 else None,
            calibration=self._prediction / self.num_positives if said and self.num_positives else None,
            calibration_by_decile=deciles,
            reason=self._reason(),
        )

    def _reason(self) -> str | None:
        if not self.num_samples:
            return "there are no samples"
        if self.num_not_finite:
            return (
                f"{self.num_not_finite} of {self.num_samples} predictions are not finite: "
                "training diverged, try a lower learning rate"
            )
        if self.num_positives in (0, self.num_samples):
            return f"all {self.num_samples} labels are {int(self.num_positives > 0)}: AUC needs both classes"
        return None


class _Histogram:
    """Positives, negatives and predictions in bins that need no range.

    The bits of a float32, read as an integer and with negative numbers turned round, are in the order of the numbers.
    A bin is the leading 20 of those bits: sign, exponent and 11 bits of fraction, so a bin spans at most 1/2048 of the
    logit's size whatever that is. Samples are only confused with samples of their own bin: counting those pairs gives a
    bound on the error.
    """

    def __init__(self) -> None:
        self._positives: Int64 = np.zeros(1 << HISTOGRAM_BITS, dtype=np.int64)
        self._negatives: Int64 = np.zeros(1 << HISTOGRAM_BITS, dtype=np.int64)
        self._predictions: Float64 = np.zeros(1 << HISTOGRAM_BITS, dtype=np.float64)

    def add(self, logits: Float32, positive: Bool) -> None:
        bins = histogram_bins(logits)
        np.add.at(self._positives, bins[positive], 1)
        np.add.at(self._negatives, bins[~positive], 1)
        np.add.at(self._predictions, bins, sigmoid(logits))

    def auc(self) -> tuple[float | None, float]:
        """AUC with each bin counted as a tie, and the most it can be off."""
        num_pairs = int(self._positives.sum()) * int(self._negatives.sum())
        if not num_pairs:
            return None, 0.0
        # As float64: pairs of huge splits do not fit an int64, and 1e-16 of the result is less than the bins cost.
        positives, negatives = self._positives.astype(np.float64), self._negatives.astype(np.float64)
        half_ties = 0.5 * float(positives @ negatives)
        wins = float(positives @ (np.cumsum(negatives) - negatives))
        return (wins + half_ties) / num_pairs, half_ties / num_pairs

    def deciles(self) -> tuple[Decile, ...]:
        counts = self._positives + self._negatives
        # The decile of a bin is that of its first sample in order, so no bin is torn apart.
        decile = (np.cumsum(counts) - counts) * NUM_DECILES // int(counts.sum())
        decile = np.minimum(decile, NUM_DECILES - 1)  # empty bins above the last sample
        return _deciles(_sums_by(decile, counts, self._predictions, self._positives))


def histogram_bins(logits: Float32) -> Int64:
    """Bin of each logit: a smaller logit never has a larger bin."""
    positive_zero = logits.astype(np.float32) + np.float32(0.0)  # -0.0 equals 0.0 and belongs into its bin
    bits = positive_zero.view(np.uint32)
    ordered = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
    return (ordered >> np.uint32(32 - HISTOGRAM_BITS)).astype(np.int64)


def _sums_by(decile: Int64, *weights: NDArray[Any]) -> Float64:  # [weights, deciles]
    return np.stack([np.bincount(decile, weights=weight, minlength=NUM_DECILES) for weight in weights])


def _deciles(sums: Float64) -> tuple[Decile, ...]:
    """From sums of samples, predictions and positives for each decile."""
    return tuple(
        Decile(num_samples=int(count), mean_prediction=float(prediction / count), mean_label=float(positive / count))
        for count, prediction, positive in sums.T
        if count
    )


def _entropy(share: float) -> float:
    """Log loss of always predicting the share of positives."""
    if share in (0.0, 1.0):
        return 0.0
    return -(share * math.log(share) + (1.0 - share) * math.log1p(-share))


def _checked_labels(logits: Float32, labels: Float32, num_before: int) -> Bool:
    if logits.shape != labels.shape or logits.ndim != 1:
        raise DataError(
            f"logits have shape {logits.shape} and labels {labels.shape}: both must be [samples], one for each sample"
        )
    positive: Bool = labels == 1
    wrong = np.flatnonzero(~positive & (labels != 0))
    if len(wrong):
        raise DataError(
            f"label of sample {num_before + int(wrong[0])} is {labels[wrong[0]]:g}: labels must be 0 or 1; "
            "turn ratings or counts into clicks when preparing the log"
        )
    return positive
