"""The planted model: the true probability of a click, known because we made it.

logit = bias + scale * (row effects + dense effects + interactions of column pairs), each part brought to a fixed share
of the variance. Effects of rows fade with their rank, so the signal sits in rows that occur often enough to be learnt.
All effects are hashes of (seed, column, id): no table of them exists, however many rows there are. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foresee.arrays import Float32, Float64
from foresee.data.synthetic.population import Population, normal
from foresee.io.hashing import combine, key_of

VARIANCE_SHARES = (0.55, 0.25, 0.20)
"""Row effects, dense effects, interactions."""
LOGIT_DEVIATION = 1.4
LOGIT_MEAN = -1.4
FADE_RANK = 200.0
"""A row of this rank has half the effect of the hottest."""
NUM_PAIRS = 6
INTERACTION_RANK = 2
CALIBRATION_SAMPLES = 16_384


@dataclass(frozen=True, slots=True)
class PlantedModel:
    """Effects keyed by a seed, with the means and deviations that bring each part to its share."""

    key: int
    means: Float64  # [3]
    deviations: Float64  # [3]

    def probability(self, ids: NDArray[Any], dense: Float32) -> Float64:
        """True click probability of samples with these local ids [samples, columns] and dense values."""
        parts = (_parts(ids, dense, np.uint64(self.key)) - self.means) / self.deviations
        logit = LOGIT_MEAN + LOGIT_DEVIATION * (parts @ np.sqrt(VARIANCE_SHARES))
        return np.asarray(1.0 / (1.0 + np.exp(-logit)), np.float64)


def plant(population: Population, num_dense: int) -> PlantedModel:
    """The model of a population, calibrated on samples that no log contains (their numbers are past 2^40)."""
    key = key_of(population.seed, 3)
    ids = np.empty((CALIBRATION_SAMPLES, len(population.table_sizes)), np.int32)
    dense = np.empty((CALIBRATION_SAMPLES, num_dense), np.float32)
    population.draw_ids(1 << 40, ids)
    population.draw_dense(1 << 40, dense)
    parts = _parts(ids, dense, np.uint64(key))
    deviations = parts.std(axis=0)
    # A log without dense features, or with one row per table, has a part without variance: it then adds nothing.
    return PlantedModel(key, parts.mean(axis=0), np.where(deviations > 1e-9, deviations, 1.0))


@njit(nogil=True, cache=True)
def _parts(ids: Any, dense: Float32, key: np.uint64) -> Float64:
    num_samples, num_columns = ids.shape
    num_dense = dense.shape[1]
    out = np.zeros((num_samples, 3))
    for index in range(num_samples):
        for column in range(num_columns):
            bits = combine(combine(key, np.uint64(column)), np.uint64(ids[index, column]))
            out[index, 0] += normal(bits) * FADE_RANK / (FADE_RANK + ids[index, column])
        for column in range(num_dense):
            out[index, 1] += normal(combine(key, np.uint64((1 << 32) + column))) * dense[index, column]
        if num_dense > 1:
            out[index, 1] += dense[index, 0] * dense[index, 1]
        for pair in range(NUM_PAIRS if num_columns > 1 else 0):
            left = (2 * pair) % num_columns
            right = (2 * pair + 1) % num_columns
            fade = FADE_RANK / (FADE_RANK + ids[index, left]) * FADE_RANK / (FADE_RANK + ids[index, right])
            for rank in range(INTERACTION_RANK):
                vector = combine(key, np.uint64((1 << 33) + pair * INTERACTION_RANK + rank))
                first = normal(combine(vector, np.uint64(ids[index, left])))
                second = normal(combine(vector, np.uint64((1 << 34) + ids[index, right])))
                out[index, 2] += fade * first * second
    return out


class ScoreHistogram:
    """The AUC of scores in [0, 1] over any number of samples, in constant memory."""

    NUM_BINS = 1 << 16

    def __init__(self) -> None:
        self._counts = np.zeros((2, self.NUM_BINS), np.int64)

    def add(self, scores: Float64, labels: Float32) -> None:
        bins = np.minimum((scores * self.NUM_BINS).astype(np.int64), self.NUM_BINS - 1)
        for label in (0, 1):
            self._counts[label] += np.bincount(bins[labels == label], minlength=self.NUM_BINS)

    def auc(self) -> float:
        """The chance that a positive sample scores above a negative one; 0.5 if there is only one kind."""
        negative, positive = self._counts.astype(np.float64)
        pairs = negative.sum() * positive.sum()
        below = np.cumsum(negative) - negative
        return float((positive * (below + 0.5 * negative)).sum() / pairs) if pairs else 0.5
