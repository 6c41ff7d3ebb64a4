"""Sequences, weights, maxima and padding: vectors and training as in plain PyTorch, and the same with any cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torchrec_fakes import EmbeddingConfig, KeyedJaggedTensor

import foresee
from foresee.data.batch import Batch, Pooling
from foresee.errors import ConfigError, DataError, UsageError
from foresee.run.keyed import JaggedEmbeddings

SAMPLES, STEPS, DIM = 12, 10, 6
CONFIGS = [
    foresee.EmbeddingBagConfig(name="users", num_embeddings=20, embedding_dim=DIM, feature_names=["user"]),
    foresee.EmbeddingBagConfig(
        name="films", num_embeddings=40, embedding_dim=DIM, feature_names=["seen"], pooling="max", padding_idx=3
    ),
    EmbeddingConfig(30, DIM, "clicks", ["clicked"]),
    foresee.EmbeddingBagConfig(
        name="places", num_embeddings=10, embedding_dim=DIM, feature_names=["place"], pooling="mean"
    ),
]
SIZES = {"users": 20, "films": 40, "clicks": 30, "places": 10}
TABLES = {"user": "users", "seen": "films", "clicked": "clicks", "place": "places"}


def a_batch(seed: int, *, weighted: bool = False) -> KeyedJaggedTensor:
    rng = np.random.default_rng(seed)
    keys = list(TABLES)
    lengths = rng.integers(0, 4, (len(keys), SAMPLES))
    values = [rng.integers(0, SIZES[TABLES[key]], own.sum()) for key, own in zip(keys, lengths, strict=True)]
    weights = torch.from_numpy(rng.random(int(lengths.sum())).astype(np.float32)) if weighted else None
    ids, sizes = torch.from_numpy(np.concatenate(values)), torch.from_numpy(lengths.reshape(-1))
    return KeyedJaggedTensor(keys, ids, sizes, weights)


class Plain(nn.Module):
    """What PyTorch has for it: bags by mode, an embedding for the sequence, weights where sums take them."""

    def __init__(self, modes: dict[str, str], start: dict[str, Tensor], padding: dict[str, int]) -> None:
        super().__init__()
        self.modes, self.padding = modes, padding
        self.tables = nn.ParameterDict({name: nn.Parameter(weight.clone()) for name, weight in start.items()})

    def forward(self, ids: KeyedJaggedTensor) -> dict[str, Tensor]:
        lengths = ids.lengths().view(len(ids.keys()), -1)
        ends = torch.cumsum(lengths.sum(1), 0)
        given = ids.weights_or_none()
        found = {}
        for key, own, end in zip(ids.keys(), lengths, ends, strict=True):
            part = slice(int(end - own.sum()), int(end))
            weight = None if given is None else given[part]
            found[key] = self._feature(key, ids.values()[part], own, weight)
        return found

    def _feature(self, key: str, ids: Tensor, lengths: Tensor, weights: Tensor | None) -> Tensor:
        table, mode = self.tables[TABLES[key]], self.modes[key]
        if mode == "none":
            return nn.functional.embedding(ids, table)
        starts = torch.cumsum(lengths, 0) - lengths
        return nn.functional.embedding_bag(
            ids, table, starts, mode=mode, per_sample_weights=weights, padding_idx=self.padding.get(key)
        )


def loss_of(vectors: dict[str, Any]) -> Tensor:
    total = torch.zeros(())
    for number, found in enumerate(vectors.values()):
        values = found.values() if isinstance(found, JaggedEmbeddings) else found
        total = total + ((values + 0.1 * number) ** 2).sum()
    return total


def train(
    bags: foresee.EmbeddingBags, cache_rows: int, batches: list[Any]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tables before and after."""
    tables = foresee.Tables.in_memory(bags, dim=bags.dim, optimizer=foresee.SGD(lr=0.05), seed=4, init_scale=0.5)
    before = bags.state_dict(tables, prefix="")
    for step in foresee.steps(foresee.Batches(bags, batches), tables, cache_rows=cache_rows):
        loss_of(bags.keyed(step).to_dict()).backward()  # type: ignore[no-untyped-call]
        step.update()
    return before, bags.state_dict(tables, prefix="")


def train_plainly(plain: Plain, batches: list[Any]) -> None:
    sgd = torch.optim.SGD(plain.parameters(), lr=0.05)
    for batch in batches:
        loss_of(plain(batch)).backward()  # type: ignore[no-untyped-call]
        sgd.step()
        sgd.zero_grad()


def test_every_pooling_trains_as_pytorch_does_with_any_cache() -> None:
    batches = [a_batch(seed) for seed in range(STEPS)]
    bags = foresee.EmbeddingBags(CONFIGS)
    before, after = train(bags, 90, batches)
    start = {name.removesuffix(".weight"): weight for name, weight in before.items()}
    plain = Plain({"user": "sum", "seen": "max", "clicked": "none", "place": "mean"}, start, {"seen": 3})
    train_plainly(plain, batches)
    for name, weight in plain.tables.items():
        torch.testing.assert_close(after[f"{name}.weight"], weight.detach(), atol=1e-5, rtol=1e-5)
        assert not torch.equal(after[f"{name}.weight"], start[name])
    assert torch.equal(start["films"][3], after["films.weight"][3])  # padding is never looked up
    _, other = train(bags, 61, batches)
    assert all(torch.equal(after[name], other[name]) for name in after)


def test_weights_count_as_in_an_embedding_bag() -> None:
    configs = [
        foresee.EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=DIM, feature_names=[key])
        for key, name in TABLES.items()
        for rows in (SIZES[name],)
    ]
    bags = foresee.EmbeddingBags(configs, is_weighted=True)
    batches = [a_batch(seed, weighted=True) for seed in range(STEPS)]
    before, after = train(bags, 90, batches)
    start = {name.removesuffix(".weight"): weight for name, weight in before.items()}
    plain = Plain(dict.fromkeys(TABLES, "sum"), start, {})
    train_plainly(plain, batches)
    for name, weight in plain.tables.items():
        torch.testing.assert_close(after[f"{name}.weight"], weight.detach(), atol=1e-5, rtol=1e-5)


def test_looking_up_gives_what_training_sees() -> None:
    bags, batch = foresee.EmbeddingBags(CONFIGS), a_batch(1)
    tables = foresee.Tables.in_memory(bags, dim=bags.dim, optimizer=foresee.SGD(lr=0.05))
    looked_up = bags.look_up_keyed(tables, batch)
    for step in foresee.steps(foresee.Batches(bags, [batch]), tables, cache_rows=90):
        seen = bags.keyed(step)
        for name in ("user", "seen", "place"):
            assert torch.equal(seen[name], looked_up[name])
        assert torch.equal(seen["clicked"].values(), looked_up["clicked"].values())
        loss_of(seen.to_dict()).backward()  # type: ignore[no-untyped-call]
        step.update()


def test_a_padded_sequence_has_its_ids_in_place_and_carries_gradients_back() -> None:
    values = torch.arange(8.0).view(4, 2).requires_grad_()
    each = JaggedEmbeddings(values, torch.tensor([1, 0, 3]))
    padded = each.to_padded_dense(2, padding_value=-1.0)
    assert padded.tolist() == [[[0, 1], [-1, -1]], [[-1, -1], [-1, -1]], [[2, 3], [4, 5]]]
    padded.sum().backward()  # type: ignore[no-untyped-call]
    assert values.grad is not None
    assert values.grad.tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]
    assert each.to_padded_dense().shape == (3, 3, 2)
    assert each.offsets().tolist() == [0, 1, 1, 4]
    empty = JaggedEmbeddings(torch.empty(0, 2), torch.tensor([0, 0]))
    assert empty.to_padded_dense(1).tolist() == [[[0, 0]], [[0, 0]]]


@given(
    st.integers(1, 4).flatmap(
        lambda features: st.tuples(
            st.lists(st.lists(st.integers(0, 3), min_size=features, max_size=features), min_size=1, max_size=6),
            st.lists(st.tuples(st.booleans(), st.booleans()), min_size=features, max_size=features),
        )
    )
)
def test_every_lookup_is_in_one_vector_and_bags_keep_their_order(case: tuple[list[list[int]], list[Any]]) -> None:
    lengths, flags = np.array(case[0]), case[1]
    offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))]).astype(np.int32)
    samples, features = lengths.shape
    batch = Batch(
        0, np.zeros((samples, 0), np.float32), np.zeros(samples, np.float32), np.arange(offsets[-1]), offsets, features
    )
    pooling = Pooling.of([mean for mean, _ in flags], [apart for _, apart in flags])
    vectors = pooling.vectors(batch)
    if not any(apart for _, apart in flags):
        assert vectors.offsets is offsets
        return
    assert vectors.of_bag is not None
    assert vectors.offsets is not None
    for bag, (begin, end) in enumerate(zip(vectors.of_bag[:-1], vectors.of_bag[1:], strict=True)):
        mean, apart = flags[bag % features]
        own = [list(range(*vectors.offsets[vector : vector + 2])) for vector in range(begin, end)]
        lookups = list(range(offsets[bag], offsets[bag + 1]))
        assert own == ([[lookup] for lookup in lookups] if apart else [lookups])
        assert all(vectors.mean[vector] == (mean and not apart) for vector in range(begin, end))


def _no_weights() -> Any:
    return foresee.EmbeddingBags(CONFIGS), a_batch(0, weighted=True)


def _missing_weights() -> Any:
    return foresee.EmbeddingBags(CONFIGS[:1], is_weighted=True), {"user": torch.zeros(4, dtype=torch.int64)}


def _too_few_weights() -> Any:
    ids = torch.zeros(4, dtype=torch.int64)
    return foresee.EmbeddingBags(CONFIGS[:1], is_weighted=True), {"user": (ids, torch.arange(4), torch.ones(3))}


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        (_no_weights, "come with weights; say EmbeddingBags"),
        (_missing_weights, "without weights; give"),
        (_too_few_weights, "4 ids and 3 weights"),
    ],
)
def test_weights_that_do_not_fit_are_a_sentence(case: Callable[[], Any], sentence: str) -> None:
    bags, batch = case()
    tables = foresee.Tables.in_memory(bags, dim=bags.dim, optimizer=foresee.SGD(lr=0.05))
    with pytest.raises(DataError, match=sentence):
        list(foresee.steps(foresee.Batches(bags, [batch], ids=lambda item: item), tables, cache_rows=90))


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(ConfigError, match="pooling max takes no weights"):
        foresee.EmbeddingBags(CONFIGS, is_weighted=True)
    bags = foresee.EmbeddingBags(CONFIGS)
    with pytest.raises(UsageError, match="give keyed\\(\\) the step"):
        bags.keyed(torch.zeros(3, 4, DIM))
    tables = foresee.Tables.in_memory(bags, dim=bags.dim, optimizer=foresee.SGD(lr=0.05))
    with pytest.raises(UsageError, match="look_up_keyed"):
        bags.look_up(tables, a_batch(0))
    with pytest.raises(UsageError, match="'clicked' has a vector for each id"):
        bags.look_up_keyed(tables, a_batch(0)).values()
