"""What both sides of `sequences.py` train on: people's films in the order of time, and batches of candidates."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from foresee import SGD, EmbeddingBagConfig, EmbeddingBags
from foresee.engine.tables import layout_for
from foresee.models import DIN
from foresee.run.metrics import MetricsAccumulator
from foresee.store.kernels import initial_values

DATA = Path(os.environ.get("FORESEE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
MOVIELENS = DATA / "movielens" / "ml1m_user_sequences_timeordered.parquet"

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Films:
    """All histories one after another; film 0 is no film."""

    ids: Ints
    starts: Ints  # [people + 1]

    @property
    def num_films(self) -> int:
        return int(self.ids.max()) + 1


@dataclass(frozen=True)
class Samples:
    """The batch of a step. A history is `ids[begin : begin + length]`, of all samples one after another."""

    candidate: Ints  # [samples]
    history: Ints  # [films]
    lengths: Ints  # [samples]
    labels: NDArray[np.float32]  # [samples]

    def padded(self, length: int) -> Ints:
        """[samples, length], 0 behind the films."""
        found = np.zeros((len(self.lengths), length), np.int64)
        found[np.arange(length) < self.lengths[:, None]] = self.history
        return found


@dataclass(frozen=True, kw_only=True)
class Case:
    length: int
    turns: int
    steps: int = 16
    """Of a turn."""
    batch_size: int = 512
    dim: int = 32
    attention: tuple[int, ...] = (64, 32)
    deep: tuple[int, ...] = (128, 64)

    def num_before(self, films: Films) -> Ints:
        """Films of each history that is trained."""
        return np.concatenate([batch.lengths for batch in self.batches(films)])

    def batches(self, films: Films) -> Iterator[Samples]:
        """Of all turns. Everybody's last film is never seen."""
        rng = np.random.default_rng(1)
        for _ in range(self.steps * (self.turns + 1)):
            person = rng.integers(0, len(films.starts) - 1, self.batch_size)
            num_watched = np.diff(films.starts)[person]
            position = rng.integers(1, num_watched - 1)
            yield self._samples(films, person, position, rng.integers(0, 2, self.batch_size), rng)

    def held_out(self, films: Films) -> Iterator[Samples]:
        """Everybody's last film, and one drawn by chance."""
        rng = np.random.default_rng(2)
        everyone = np.arange(len(films.starts) - 1)
        for people in np.array_split(everyone, max(1, len(everyone) // self.batch_size)):
            last = np.diff(films.starts)[people] - 1
            for label in (1, 0):
                yield self._samples(films, people, last, np.full(len(people), label), rng)

    def _samples(
        self, films: Films, person: Ints, position: Ints, labels: Ints, rng: np.random.Generator
    ) -> Samples:  # fmt: skip
        at = films.starts[person] + position
        lengths = np.minimum(position, self.length)
        ends = np.cumsum(lengths)
        history = films.ids[np.arange(ends[-1]) + np.repeat(at - lengths - (ends - lengths), lengths)]
        chance = rng.integers(1, films.num_films, len(person))
        candidate = np.where(labels == 1, films.ids[at], chance)
        return Samples(candidate, history, lengths, labels.astype(np.float32))


@cache
def read_films() -> Films:
    if not MOVIELENS.exists():
        return made_up()
    column = pq.read_table(MOVIELENS)["item_ids"].combine_chunks()
    return Films(column.values.to_numpy().astype(np.int64), column.offsets.to_numpy().astype(np.int64))


def made_up(num_people: int = 5000, num_films: int = 4000, genres: int = 20) -> Films:
    """People who like two genres each."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(20, 200, num_people)
    likes = rng.integers(0, genres, (num_people, 2))[np.repeat(np.arange(num_people), lengths)]
    liked = likes[np.arange(len(likes)), rng.integers(0, 2, len(likes))]
    ids = 1 + liked + genres * rng.integers(0, num_films // genres, len(likes))
    return Films(ids, np.concatenate([[0], np.cumsum(lengths)]))


def bags_of(case: Case, films: Films) -> EmbeddingBags:
    table = EmbeddingBagConfig(
        name="films", num_embeddings=films.num_films, embedding_dim=case.dim, feature_names=["candidate", "history"],
        pooling="none",
    )  # fmt: skip
    return EmbeddingBags([table])


def first_values(case: Case, films: Films) -> tuple[torch.Tensor, DIN]:
    """What both sides start from: the rows of the films, and the model."""
    layout = layout_for(bags_of(case, films), case.dim, SGD(lr=0.0), 0, 0.05)
    torch.manual_seed(0)
    model = DIN(case.dim, attention=case.attention, deep=case.deep)
    return torch.from_numpy(initial_values(layout, np.arange(layout.num_rows))), model


def auc_of(scored: Iterator[tuple[torch.Tensor, Samples]]) -> float:
    """Of logits and the samples they are for."""
    metrics = MetricsAccumulator()
    with torch.no_grad():
        for logits, samples in scored:
            metrics.add(logits.numpy(), samples.labels)
    auc = metrics.result().auc
    assert auc is not None, "there are films that were watched and others"
    return auc
