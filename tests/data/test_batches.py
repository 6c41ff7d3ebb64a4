"""A person's own batches and tables described as in TorchRec train as plain PyTorch does, whatever the cache.

The yardstick is one nn.EmbeddingBag for each table and torch's own optimisers: nothing of Foresee is in it. Ids come as
KeyedJaggedTensors (of the same names and methods as TorchRec's), dicts, pairs of ids and offsets, and matrices.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torchrec_fakes import (
    Batch,
    DataType,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
    PoolingType,
    VariableStride,
)

import foresee
from foresee.data.jagged import bags_of
from foresee.engine.header import FETCH_AHEAD_STEPS
from foresee.engine.lookup import look_up
from foresee.engine.optimizers.contract import number_of
from foresee.engine.planned_step import Pooling
from foresee.errors import ConfigError, DataError, PlanError, UsageError

SAMPLES, STEPS = 16, 12
USERS = EmbeddingBagConfig(40, 8, "users", feature_names=["user"])
FILMS = EmbeddingBagConfig(60, 8, "films", feature_names=["seen", "clicked"], pooling=PoolingType.MEAN)
NARROW = EmbeddingBagConfig(30, 3, "narrow", feature_names=["place"])
SGD = foresee.SGD(lr=0.1)


def jagged(configs: list[EmbeddingBagConfig], seed: int, most: int = 3) -> KeyedJaggedTensor:
    """Random bags, some of them empty, for all features; keys in another order than the tables'."""
    rng = np.random.default_rng(seed)
    keys = [(key, config.num_embeddings) for config in reversed(configs) for key in config.feature_names]
    lengths = rng.integers(0, most + 1, (len(keys), SAMPLES))
    values = np.concatenate([rng.integers(0, rows, own.sum()) for (_, rows), own in zip(keys, lengths, strict=True)])
    return KeyedJaggedTensor([key for key, _ in keys], torch.from_numpy(values), torch.from_numpy(lengths.reshape(-1)))


def items(configs: list[EmbeddingBagConfig], num: int = STEPS, first: int = 0) -> list[Batch]:
    generator = torch.Generator().manual_seed(first)
    return [
        Batch(
            torch.randn(SAMPLES, 2, generator=generator),
            jagged(configs, step),
            torch.randint(0, 2, (SAMPLES,), generator=generator).float(),
        )
        for step in range(first, first + num)
    ]


class Plain(nn.Module):
    """What a person had before: a module for each table, and a head over all features side by side."""

    def __init__(self, configs: list[EmbeddingBagConfig]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.configs = configs
        self.bags = nn.ModuleDict(
            {
                config.name: nn.EmbeddingBag(
                    config.num_embeddings, config.embedding_dim, mode=config.pooling.value.lower(), sparse=True
                )
                for config in configs
            }
        )
        self.head = Head(sum(it.embedding_dim * len(it.feature_names) for it in configs))

    def pooled(self, ids: KeyedJaggedTensor) -> Tensor:
        lengths = ids.lengths().view(len(ids.keys()), -1)
        starts = dict(zip(ids.keys(), (torch.cumsum(lengths.sum(1), 0) - lengths.sum(1)).tolist(), strict=True))
        out = []
        for config in self.configs:
            for key in config.feature_names:
                own = lengths[ids.keys().index(key)]
                values = ids.values()[starts[key] : starts[key] + int(own.sum())]
                out.append(self.bags[config.name](values, torch.cumsum(own, 0) - own))
        return torch.cat(out, dim=1)

    def train_on(self, batches: list[Batch]) -> list[float]:
        rows = torch.optim.SGD(self.bags.parameters(), lr=number_of(SGD.lr))
        adam = torch.optim.Adam(self.head.parameters())
        losses = []
        for batch in batches:
            loss = loss_of(self.head(batch.dense_features, self.pooled(batch.sparse_features)), batch.labels)
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in (rows, adam):
                optimizer.step()
                optimizer.zero_grad()
            losses.append(float(loss.detach()))
        return losses


class Head(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width + 2, 1)

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        logits: Tensor = self.layer(torch.cat([dense, pooled], dim=1)).squeeze(1)
        return logits


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, labels)


def train(run: foresee.Run, bags: foresee.EmbeddingBags, head: Head, adam: torch.optim.Optimizer) -> list[float]:
    losses = []
    for step in run:
        loss = loss_of(head(step.item.dense_features, bags.keyed(step.embeddings).values()), step.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        adam.zero_grad()
        step.update()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("configs", [[USERS, FILMS], [USERS, FILMS, NARROW]], ids=["one-width", "several-widths"])
def test_it_trains_as_plain_pytorch_does(configs: list[EmbeddingBagConfig], tmp_path: Path) -> None:
    plain, batches = Plain(configs), items(configs)
    bags = foresee.EmbeddingBags(configs)
    first = {name: value.clone() for name, value in plain.state_dict().items()}
    with foresee.Tables.on_disk(tmp_path / "tables", bags, dim=bags.dim, optimizer=SGD) as tables:
        bags.load_state_dict(tables, first, prefix="bags.")
        head = Head(sum(feature.dim for feature in bags.features))
        head.load_state_dict({name.removeprefix("head."): it for name, it in first.items() if name.startswith("head.")})
        run = foresee.lookahead(foresee.Batches(bags, batches), tables, cache_rows=120)
        losses = train(run, bags, head, torch.optim.Adam(head.parameters()))
        after = bags.state_dict(tables, prefix="bags.")
    assert losses == pytest.approx(plain.train_on(batches), abs=1e-5)
    assert set(after) == {f"bags.{config.name}.weight" for config in configs}
    for name, weight in after.items():
        assert torch.allclose(weight, plain.state_dict()[name], atol=1e-5)
        assert not torch.equal(weight, first[name]), "something was learned"


def rows_after(cache_rows: int, **options: Any) -> tuple[list[float], np.ndarray[Any, Any]]:
    bags = foresee.EmbeddingBags([USERS, FILMS])
    tables = foresee.Tables.in_memory(bags, dim=8, optimizer=foresee.Adagrad(lr=0.1))
    torch.manual_seed(0)
    head = Head(24)
    run = foresee.lookahead(foresee.Batches(bags, items([USERS, FILMS])), tables, cache_rows=cache_rows, **options)
    losses = train(run, bags, head, torch.optim.Adam(head.parameters()))
    return losses, np.concatenate([tables.values("users"), tables.values("films")])


def test_cache_and_planner_change_no_byte() -> None:
    losses, rows = rows_after(100)
    for options in ({"cache_rows": 70}, {"cache_rows": 90, "planner": "lru"}, {"cache_rows": 90, "planner": "static"}):
        others, other_rows = rows_after(**options)
        assert others == losses
        assert other_rows.tobytes() == rows.tobytes()


@given(seed=st.integers(0, 10_000), most=st.integers(0, 4))
def test_all_forms_of_ids_are_the_same_bags(seed: int, most: int) -> None:
    configs = [USERS, FILMS]
    ids, features = jagged(configs, seed, most), foresee.EmbeddingBags(configs).features
    lengths = ids.lengths().view(len(ids.keys()), -1)
    ends = torch.cumsum(lengths.sum(1), 0)
    pairs = {
        key: (ids.values()[end - own.sum() : end], torch.cumsum(own, 0) - own)
        for key, own, end in zip(ids.keys(), lengths, ends.tolist(), strict=True)
    }
    from_keyed, from_pairs = bags_of(ids, features, step=0), bags_of(pairs, features, step=0)
    assert np.array_equal(from_keyed.rows, from_pairs.rows)
    assert (from_keyed.bag_offsets is None) == (from_pairs.bag_offsets is None)
    if from_keyed.bag_offsets is None:
        return
    assert from_pairs.bag_offsets is not None
    assert np.array_equal(from_keyed.bag_offsets, from_pairs.bag_offsets)
    # By hand, bag by bag.
    for sample in range(SAMPLES):
        for position, feature in enumerate(features):
            values, starts = pairs[feature.key]
            stop = starts[sample + 1] if sample + 1 < SAMPLES else len(values)
            bag = sample * len(features) + position
            found = from_keyed.rows[from_keyed.bag_offsets[bag] : from_keyed.bag_offsets[bag + 1]]
            assert found.tolist() == (values[starts[sample] : stop] + feature.first_row).tolist()


def test_one_id_each_takes_the_fast_form() -> None:
    features = foresee.EmbeddingBags([USERS, FILMS]).features
    matrix = torch.arange(3 * SAMPLES).view(SAMPLES, 3) % 40
    columns = {feature.key: matrix[:, k] for k, feature in enumerate(features)}
    two_wide = {feature.key: matrix[:, [k]] for k, feature in enumerate(features)}
    keyed = KeyedJaggedTensor(list(columns), matrix.T.reshape(-1), torch.ones(3 * SAMPLES, dtype=torch.int32))
    forms = [bags_of(ids, features, step=0) for ids in (matrix, matrix.numpy(), columns, two_wide, keyed)]
    assert all(form.bag_offsets is None for form in forms)
    assert all(np.array_equal(form.rows, forms[0].rows) for form in forms)
    assert np.array_equal(forms[0].rows, (matrix + torch.tensor([0, 40, 40])).reshape(-1).numpy())


def run_over(source: Any, cache_rows: int = 100, **options: Any) -> foresee.Run:
    bags = foresee.EmbeddingBags([USERS, FILMS])
    tables = foresee.Tables.in_memory(bags, dim=8, optimizer=SGD)
    return foresee.lookahead(foresee.Batches(bags, source, **options), tables, cache_rows=cache_rows)


def finish(step: foresee.Step) -> foresee.Step:
    step.embeddings.sum().backward()  # type: ignore[no-untyped-call]
    step.update()
    return step


def test_items_arrive_as_they_were_given() -> None:
    batches = items([USERS, FILMS], 3)
    seen = [(it.item, it.dense, it.labels) for it in map(finish, run_over(batches))]
    for (item, dense, labels), batch in zip(seen, batches, strict=True):
        assert item is batch
        assert torch.equal(dense, batch.dense_features)
        assert torch.equal(labels, batch.labels)


def test_triples_ids_alone_and_items_of_any_kind() -> None:
    batches = items([USERS, FILMS], 2)
    triples = [(it.dense_features, it.sparse_features, it.labels) for it in batches]
    assert [torch.equal(it.labels, it.item[2]) for it in map(finish, run_over(triples))] == [True, True]
    alone = [finish(it) for it in run_over([it.sparse_features for it in batches])]
    assert [tuple(it.dense.shape) for it in alone] == [(SAMPLES, 0)] * 2
    named = [{"clicks": it.sparse_features, "weight": 7} for it in batches]
    others = [finish(it).item["weight"] for it in run_over(named, ids=lambda item: item["clicks"])]
    assert others == [7, 7]


def test_epochs_of_a_function_a_list_and_a_loader() -> None:
    batches = items([USERS, FILMS], 2)
    asked: list[int] = []

    def make(epoch: int) -> Iterator[Batch]:
        asked.append(epoch)
        return iter(batches[::-1] if epoch else batches)

    seen = [finish(it).item for it in run_over(make, epochs=2)]
    assert [id(it) for it in seen] == [id(it) for it in (*batches, *batches[::-1])]
    assert asked == [0, 1]
    assert len([finish(it) for it in run_over(batches, epochs=3)]) == 6
    loader = torch.utils.data.DataLoader(batches, batch_size=None, shuffle=True)  # type: ignore[arg-type, var-annotated]
    run = run_over(loader, epochs=2)
    assert run.stream.num_steps == 4
    assert len([finish(it) for it in run]) == 4


def test_an_iterator_is_read_once_and_says_so_the_second_time() -> None:
    batches = items([USERS, FILMS], 2)
    assert len([finish(it) for it in run_over(iter(batches))]) == 2
    run = run_over(iter(batches), epochs=2)
    with pytest.raises(UsageError, match="can be read only once; give a function"):
        [finish(it) for it in run]


@pytest.mark.parametrize("read_ahead_steps", [1, 5, 40])
def test_no_more_is_read_ahead_than_asked_for(read_ahead_steps: int) -> None:
    batches, num_read = items([USERS, FILMS], 4), 0

    def endless(epoch: int) -> Iterator[Batch]:
        nonlocal num_read
        while True:
            num_read += 1
            yield batches[num_read % 4]

    most, last_step = 0, 30
    for step in run_over(endless, read_ahead_steps=read_ahead_steps):
        finish(step)
        most = max(most, num_read - step.index)
        if step.index == last_step:
            break
    # Planned steps wait in two queues on their way to the loop.
    assert read_ahead_steps < most <= read_ahead_steps + 2 * (FETCH_AHEAD_STEPS + 2) + 4
    with pytest.raises(UsageError, match="read_ahead_steps=0 looks nowhere"):
        run_over(endless, read_ahead_steps=0)


def test_it_goes_on_after_a_commit(tmp_path: Path) -> None:
    bags, batches = foresee.EmbeddingBags([USERS, FILMS]), items([USERS, FILMS])

    def tables(name: str) -> foresee.Tables:
        return foresee.Tables.on_disk(tmp_path / name, bags, dim=8, optimizer=foresee.Adagrad(lr=0.1))

    def through(name: str, steps: int) -> list[int]:
        seen = []
        with tables(name) as opened:
            for step in foresee.lookahead(foresee.Batches(bags, lambda epoch: batches), opened, cache_rows=100):
                (step.embeddings**2).sum().backward()  # type: ignore[no-untyped-call]
                step.update()
                seen.append(step.index)
                if len(seen) == steps:
                    break
        return seen

    assert through("whole", STEPS) == list(range(STEPS))
    assert through("parts", 5) == [0, 1, 2, 3, 4]
    assert through("parts", STEPS) == list(range(5, STEPS))
    with tables("whole") as whole, tables("parts") as parts:
        assert whole.values("films").tobytes() == parts.values("films").tobytes()


def test_evaluation_sees_what_training_made() -> None:
    run = run_over(items([USERS, FILMS]))
    bags = foresee.EmbeddingBags([USERS, FILMS])
    for step in run:
        before = step.embeddings.detach().clone()
        finish(step)
        now = bags.look_up(run.tables, step.item.sparse_features)
        assert now.shape == before.shape
        filled = before.abs().sum(dim=2) > 0
        # The gradient of every lookup is 1 (of a mean, a share of it), so that each vector has become smaller.
        assert (now[filled] < before[filled]).all()
    with pytest.raises(ConfigError, match=r"values of table 'users' have shape \(3, 8\)"):
        run.tables.set_values("users", np.zeros((3, 8), np.float32))


def test_whoever_reads_inside_a_loop_gets_what_was_learned() -> None:
    """Not what the store had before the loop: all of it equals the same steps with a flush after each."""
    bags, flushed = foresee.EmbeddingBags([USERS, FILMS]), run_over(items([USERS, FILMS]))
    expected = []
    for step in flushed:
        finish(step)
        flushed.flush()
        expected.append(look_up(flushed.tables.store, step_batch(bags, step), Pooling.of(bags.mean_features)))
    run = run_over(items([USERS, FILMS]))
    for step, values in zip(run, expected, strict=True):
        finish(step)
        assert torch.equal(bags.look_up(run.tables, step.item.sparse_features), values)
        if step.index == 4:
            users = run.tables.values("users")
            run.flush()
            assert np.array_equal(run.tables.values("users"), users)
            with pytest.raises(UsageError, match="cannot be given other values inside a loop"):
                run.tables.set_values("users", users)
            with ThreadPoolExecutor(1) as other, pytest.raises(UsageError, match="in the thread of the loop"):
                other.submit(bags.look_up, run.tables, step.item.sparse_features).result()
            with pytest.raises(UsageError, match="in a loop that has not ended"):
                next(iter(foresee.lookahead(foresee.Batches(bags, []), run.tables, cache_rows=9, first_step=0)))


def step_batch(bags: foresee.EmbeddingBags, step: foresee.Step) -> Any:
    return bags_of(step.item.sparse_features, bags.features, step=0).batch(None, None)


@pytest.mark.parametrize("keep", [lambda it: it, lambda it: it[:, 0].detach(), lambda it: it.detach().numpy()])
def test_embeddings_that_somebody_keeps_do_not_change(keep: Any) -> None:
    kept, copies = [], []
    for step in run_over(items([USERS, FILMS])):
        kept.append(keep(step.embeddings))
        copies.append(torch.as_tensor(kept[-1]).detach().clone())
        finish(step)
    for now, then in zip(kept, copies, strict=True):
        assert torch.equal(torch.as_tensor(now), then)


def test_embeddings_that_nobody_keeps_share_memory() -> None:
    """Two places in turn: the last loss, which most loops still have, holds on to one of them."""
    places, loss = set(), torch.zeros(())
    for step in run_over(items([USERS, FILMS])):
        loss = step.embeddings.square().sum()
        places.add(step.embeddings.data_ptr())
        loss.backward()  # type: ignore[no-untyped-call]
        step.update()
    assert len(places) == 2
    assert loss.item() > 0


@pytest.mark.parametrize("optimizer", [torch.optim.SGD([torch.zeros(1)], lr=0.1), torch.optim.Adagrad, None])
def test_an_optimiser_that_is_none_of_ours_is_refused_by_name(optimizer: Any, tmp_path: Path) -> None:
    bags = foresee.EmbeddingBags([USERS])
    sentence = r"optimizer is .*, which cannot update rows of tables; give one of foresee\.SGD\(lr=\.\.\.\), .*LazyAdam"
    with pytest.raises(ConfigError, match=sentence):
        foresee.Tables.in_memory(bags, dim=8, optimizer=optimizer)
    with pytest.raises(ConfigError, match=sentence):
        foresee.Tables.on_disk(tmp_path / "tables", bags, dim=8, optimizer=optimizer)
    assert not (tmp_path / "tables").exists()


def test_a_feature_of_two_tables_and_its_names() -> None:
    bags = foresee.EmbeddingBags(
        [
            foresee.EmbeddingBagConfig(name="a", num_embeddings=5, embedding_dim=4, feature_names=["x", "y"]),
            foresee.EmbeddingBagConfig(name="b", num_embeddings=5, embedding_dim=2, feature_names=["x"]),
        ]
    )
    embeddings = torch.arange(24.0).view(2, 3, 4).requires_grad_()
    keyed = bags.keyed(embeddings)
    assert keyed.keys() == ["x@a", "y", "x@b"]
    assert keyed.length_per_key() == [4, 4, 2]
    assert keyed.offset_per_key() == [0, 4, 8, 10]
    assert keyed.values().shape == (2, 10)
    assert torch.equal(keyed.to_dict()["x@b"], embeddings[:, 2, :2])
    keyed["y"].sum().backward()
    assert embeddings.grad is not None
    assert embeddings.grad.sum(dim=(0, 2)).tolist() == [0, 8, 0]
    with pytest.raises(UsageError, match="no feature 'z'; the features are x@a, y, x@b"):
        keyed["z"]
    with pytest.raises(UsageError, match="there are 3 features"):
        bags.keyed(torch.zeros(2, 4, 4))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            SimpleNamespace(name="t", num_embeddings=3, embedding_dim=4, feature_names=["x"], pooling="min"),
            "pooling 'min'",
        ),
        (EmbeddingBagConfig(10, 4, "t", DataType.INT8, feature_names=["x"]), "data_type 'int8'.*fp32, fp16, bf16"),
        (EmbeddingBagConfig(10, 4, "t", DataType.FP16, feature_names=["x"]), "'t' has data_type fp16, .* fp32"),
        (EmbeddingBagConfig(0, 4, "t", feature_names=["x"]), "num_embeddings is 0"),
        (EmbeddingBagConfig(10, 4, "t"), "feature_names is \\[\\]"),
        (EmbeddingBagConfig(10, 4, "t", feature_names=["x", "x"]), "different names"),
        (EmbeddingBagConfig(10, 4, "users", feature_names=["x"]), "two tables are named 'users'"),
        (SimpleNamespace(name="t", num_embeddings=3), "has no embedding_dim"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_are_refused(config: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        foresee.EmbeddingBags([USERS, config])


@pytest.mark.parametrize(("data_type", "dtype"), [(DataType.FP16, torch.float16), (DataType.BF16, torch.bfloat16)])
def test_the_data_type_of_torchrec_is_that_of_the_tables(data_type: DataType, dtype: torch.dtype) -> None:
    bags = foresee.EmbeddingBags([EmbeddingBagConfig(30, 5, "films", data_type, feature_names=["seen"])])
    tables = foresee.Tables.in_memory(bags, dim=bags.dim, optimizer=SGD)
    assert f"torch.{tables.layout.dtype}" == f"torch.{bags.dtype}" == str(dtype)
    weights = {"embedding_bags.films.weight": torch.randn(30, 5, generator=torch.Generator().manual_seed(0))}
    bags.load_state_dict(tables, weights)
    kept = bags.state_dict(tables)["embedding_bags.films.weight"]
    assert kept.dtype == dtype
    assert torch.equal(kept, weights["embedding_bags.films.weight"].to(dtype))
    bags.load_state_dict(tables, bags.state_dict(tables))
    assert torch.equal(bags.state_dict(tables)["embedding_bags.films.weight"], kept)
    ids = KeyedJaggedTensor(["seen"], torch.tensor([3, 7, 3]), torch.tensor([1, 0, 2], dtype=torch.int32))
    embeddings = bags.look_up(tables, ids)
    assert embeddings.dtype == torch.float32
    assert torch.equal(embeddings[2, 0], kept[7].float() + kept[3].float())
    assert foresee.Tables.in_memory(bags, dim=5, optimizer=SGD, dtype="float32").layout.dtype == "float32"
    with pytest.raises(ConfigError, match="dtype is 'int8'; rows have one of float32, bfloat16, float16"):
        foresee.Tables.in_memory(bags, dim=5, optimizer=SGD, dtype="int8")


def test_tables_that_do_not_fit_are_refused() -> None:
    bags = foresee.EmbeddingBags([USERS, NARROW])
    source = foresee.Batches(bags, [])
    wide = foresee.Tables.in_memory(bags, dim=8, optimizer=foresee.RowwiseAdagrad(lr=0.1))
    with pytest.raises(ConfigError, match="70 rows of width 8, the bags 70 of width 8, 3"):
        foresee.lookahead(source, wide, cache_rows=10)
    other = foresee.Tables.in_memory(foresee.EmbeddingBags([USERS]), dim=8, optimizer=SGD)
    with pytest.raises(ConfigError, match="40 rows of width 8, the bags 70 of width 8, 3"):
        foresee.lookahead(source, other, cache_rows=10)
    with pytest.raises(UsageError, match="give these to Batches"):
        foresee.lookahead(source, wide, batch_size=10, cache_rows=10)
    with pytest.raises(ConfigError, match=r"there is no bags\.users\.weight; the weights given are x"):
        bags.load_state_dict(wide, {"x": torch.zeros(1)}, prefix="bags.")
    with pytest.raises(ConfigError, match=r"bags\.users\.weight has shape \(40, 7\)"):
        bags.load_state_dict(wide, {"bags.users.weight": torch.zeros(40, 7)}, prefix="bags.")


ONES = torch.ones(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        (KeyedJaggedTensor(["a", "b"], torch.tensor([0, 1, 2, 9]), ONES), "step 0, sample 1: 'b' has id 9, .* 0 to 4"),
        (KeyedJaggedTensor(["a", "b"], torch.tensor([0, -1, 2, 3]), ONES), "sample 1: 'a' has id -1"),
        (KeyedJaggedTensor(["a", "c"], torch.tensor([0, 1, 2, 3]), ONES), "no feature 'b'; it has a, c"),
        (KeyedJaggedTensor(["a", "b"], torch.tensor([0, 1]), ONES), "lengths sum to 4, but there are 2"),
        (KeyedJaggedTensor(["a", "b"], torch.tensor([0]), ONES[:3]), "2 keys has 3 lengths"),
        (VariableStride(["a", "b"], torch.tensor([0, 1, 2, 3]), ONES), "another number of samples for each key"),
        (KeyedJaggedTensor(["a", "b"], ONES, ONES, weights=ONES.float()), "come with weights"),
        ({"a": ONES, "b": ONES[:2]}, "'b' has 2 samples, others 4"),
        ({"a": ONES}, "no feature 'b'"),
        ({"a": ONES, "b": ONES.float()}, "ids are float32; give whole numbers"),
        ({"a": ONES, "b": ONES.view(2, 2, 1)}, "shape \\(2, 2, 1\\)"),
        ({"a": ONES, "b": (ONES, torch.tensor([1, 2]))}, "offsets of 'b'"),
        (torch.ones(4, 3, dtype=torch.int64), "give \\[samples, 2\\]"),
        ("abc", "a batch is a str"),
        ((ONES, {"a": ONES[:2], "b": ONES[:2]}, None), "ids are of 2 samples, the dense features of 4"),
    ],
)
def test_ids_that_cannot_be_are_refused_with_their_place(ids: Any, sentence: str) -> None:
    configs = [EmbeddingBagConfig(5, 4, name, feature_names=[name]) for name in ("a", "b")]
    bags = foresee.EmbeddingBags(configs)
    tables = foresee.Tables.in_memory(bags, dim=4, optimizer=SGD)
    with pytest.raises(DataError, match=sentence):
        next(iter(foresee.lookahead(foresee.Batches(bags, [ids]), tables, cache_rows=10)))


def test_a_cache_too_small_says_how_large() -> None:
    batches = items([USERS, FILMS], 4)
    with pytest.raises(PlanError, match="the smallest cache that works for this log is"):
        list(run_over(batches, cache_rows=5))
    with pytest.raises(PlanError, match="give the cache at least"):
        list(run_over(iter(batches), cache_rows=5))


BENCH_PYTHON = Path(__file__).parents[2] / ".venv-bench" / "bin" / "python"


def _checks() -> set[str]:
    script = Path(__file__).with_name("real_torchrec.py").read_text("utf-8")
    return set(re.findall(r"^def (check_\w+)", script, re.MULTILINE))


def test_every_yes_of_the_page_is_a_check_and_every_check_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "torchrec.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|") and "| yes" in line]
    named = [re.findall(r"`(check_\w+)`", row) for row in rows]
    assert all(named), "a yes without a check"
    assert {name for names in named for name in names} == _checks() - {"check_variable_stride_is_refused"}


def test_torchrecs_own_classes_are_taken() -> None:
    """In the environment that has TorchRec: its collection and ours give the same vectors for the same weights."""
    if not BENCH_PYTHON.exists():
        pytest.skip("TorchRec is not installed: `make bench-env` makes the environment that has it.")
    done = subprocess.run(
        [str(BENCH_PYTHON), str(Path(__file__).with_name("real_torchrec.py"))],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == f"the same vectors and the same rows in {len(_checks())} checks"
    assert sys.executable != str(BENCH_PYTHON)
