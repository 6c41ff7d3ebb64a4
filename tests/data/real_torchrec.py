"""Run in .venv-bench by test_batches: TorchRec 1.8 beside Foresee, a check for each "yes" of docs/torchrec.md.

Its configurations, batches and state dicts go in as they are. Where both train, pooled vectors and rows must agree
before, between and after.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
    PoolingType,
)
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

import foresee
from foresee.errors import DataError

CPU = torch.device("cpu")
CONFIGS = [
    EmbeddingBagConfig(name="users", embedding_dim=8, num_embeddings=40, feature_names=["user"]),
    EmbeddingBagConfig(
        name="films", embedding_dim=8, num_embeddings=60, feature_names=["seen", "clicked"], pooling=PoolingType.MEAN
    ),
    EmbeddingBagConfig(name="narrow", embedding_dim=4, num_embeddings=30, feature_names=["place", "user"]),
]
EVEN = CONFIGS[:2]
"""Of one width."""
KEYS = ["place", "user", "clicked", "seen"]
STEPS, SAMPLES = 3, 10


def batches(*, weighted: bool = False) -> list[KeyedJaggedTensor]:
    torch.manual_seed(0)
    lengths = torch.randint(0, 3, (STEPS, len(KEYS) * SAMPLES))
    return [
        KeyedJaggedTensor(
            keys=KEYS, values=torch.randint(0, 30, (int(it.sum()),)), lengths=it,
            weights=torch.rand(int(it.sum())) if weighted else None,
        )
        for it in lengths
    ]  # fmt: skip


def tables_of(bags: foresee.EmbeddingBags, optimizer: Any, weights: dict[str, Any], prefix: str) -> foresee.Tables:
    tables = foresee.Tables.in_memory(bags, dim=bags.dim, optimizer=optimizer)
    bags.load_state_dict(tables, weights, prefix=prefix)
    return tables


def same_training(theirs: Any, ours: Any, optimizer: Any, configs: Any, *, weighted: bool = False) -> None:
    """Trains both from the same values; `ours` is the optimiser of rows, `optimizer` theirs, None if it is fused."""
    bags = foresee.EmbeddingBags(configs, is_weighted=weighted)
    tables = tables_of(bags, ours, theirs.state_dict(), "embedding_bags.")
    for step in foresee.steps(foresee.Batches(bags, batches(weighted=weighted)), tables, cache_rows=130):
        expected, found = theirs(step.item), bags.keyed(step)
        assert found.keys() == expected.keys(), (found.keys(), expected.keys())
        assert found.length_per_key() == expected.length_per_key()
        assert found.offset_per_key() == expected.offset_per_key()
        assert torch.allclose(found.values(), expected.values(), atol=1e-5)
        assert all(torch.allclose(found[name], vectors, atol=1e-5) for name, vectors in expected.to_dict().items())
        for pooled in (expected, found):
            (pooled.values() ** 2).sum().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
        step.update()
    after = bags.state_dict(tables)
    assert after.keys() == theirs.state_dict().keys()
    assert all(torch.allclose(weight, after[name], atol=1e-5) for name, weight in theirs.state_dict().items())


def collection(configs: Any, *, weighted: bool = False) -> Any:
    return EmbeddingBagCollection(tables=configs, is_weighted=weighted, device=CPU)


def check_bags() -> None:
    theirs = collection(CONFIGS)
    same_training(theirs, foresee.SGD(lr=0.1), torch.optim.SGD(theirs.parameters(), lr=0.1), CONFIGS)


def check_weights_of_ids() -> None:
    configs = [
        EmbeddingBagConfig(name="users", embedding_dim=8, num_embeddings=40, feature_names=["user"]),
        EmbeddingBagConfig(name="films", embedding_dim=8, num_embeddings=60, feature_names=["seen", "clicked"]),
    ]
    theirs = collection(configs, weighted=True)
    same_training(theirs, foresee.SGD(lr=0.1), torch.optim.SGD(theirs.parameters(), lr=0.1), configs, weighted=True)


def check_adagrad() -> None:
    theirs = collection(EVEN)
    adagrad = torch.optim.Adagrad(theirs.parameters(), lr=0.1, eps=1e-8)
    same_training(theirs, foresee.Adagrad(lr=0.1, eps=1e-8), adagrad, EVEN)


def check_rowwise_adagrad() -> None:
    theirs = collection(EVEN)
    rowwise = RowWiseAdagrad(theirs.parameters(), lr=0.1, eps=1e-8)
    same_training(theirs, foresee.RowwiseAdagrad(lr=0.1, eps=1e-8), rowwise, EVEN)


def check_fused_rowwise_adagrad() -> None:
    theirs = FusedEmbeddingBagCollection(
        tables=EVEN, optimizer_type=RowWiseAdagrad, optimizer_kwargs={"lr": 0.1, "eps": 1e-8}, device=CPU
    )
    same_training(theirs, foresee.RowwiseAdagrad(lr=0.1, eps=1e-8), None, EVEN)


def check_fused_sgd() -> None:
    theirs = FusedEmbeddingBagCollection(
        tables=EVEN, optimizer_type=torch.optim.SGD, optimizer_kwargs={"lr": 0.1}, device=CPU
    )
    same_training(theirs, foresee.SGD(lr=0.1), None, EVEN)


def check_init_fn() -> None:
    configs = [
        EmbeddingBagConfig(name="plain", embedding_dim=8, num_embeddings=40, feature_names=["user"]),
        EmbeddingBagConfig(
            name="range", embedding_dim=8, num_embeddings=30, feature_names=["seen"], weight_init_min=0.0,
            weight_init_max=0.5,
        ),
        EmbeddingBagConfig(
            name="own", embedding_dim=8, num_embeddings=30, feature_names=["place"],
            init_fn=lambda weight: torch.nn.init.constant_(weight, 3.0),
        ),
    ]  # fmt: skip
    theirs, bags = collection(configs), foresee.EmbeddingBags(configs)
    tables = foresee.Tables.in_memory(bags, dim=bags.dim, optimizer=foresee.SGD(lr=0.1))
    torch.manual_seed(5)
    theirs.reset_parameters()
    torch.manual_seed(5)
    bags.reset_parameters(tables)
    assert all(torch.equal(weight, bags.state_dict(tables)[name]) for name, weight in theirs.state_dict().items())


def check_state_dicts() -> None:
    theirs, bags = collection(CONFIGS), foresee.EmbeddingBags(CONFIGS)
    tables = tables_of(bags, foresee.SGD(lr=0.1), theirs.state_dict(), "embedding_bags.")
    other = collection(CONFIGS)
    other.load_state_dict(bags.state_dict(tables))
    assert all(torch.equal(weight, other.state_dict()[name]) for name, weight in theirs.state_dict().items())


def check_sequences() -> None:
    configs = [
        EmbeddingConfig(name="films", embedding_dim=8, num_embeddings=60, feature_names=["seen", "clicked"]),
        EmbeddingConfig(name="users", embedding_dim=8, num_embeddings=40, feature_names=["user"]),
    ]
    theirs, bags = EmbeddingCollection(tables=configs, device=CPU), foresee.EmbeddingBags(configs)
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.1)
    tables = tables_of(bags, foresee.SGD(lr=0.1), theirs.state_dict(), "embeddings.")
    for step in foresee.steps(foresee.Batches(bags, batches()), tables, cache_rows=130):
        expected, found = theirs(step.item), bags.keyed(step)
        for name, jagged in expected.items():
            own = found[name]
            assert torch.equal(own.lengths(), jagged.lengths())
            assert torch.equal(own.offsets(), jagged.offsets())
            assert torch.allclose(own.values(), jagged.values(), atol=1e-6)
            assert torch.allclose(own.to_padded_dense(2, -1.0), jagged.to_padded_dense(2, -1.0), atol=1e-6)
            assert all(torch.allclose(*pair) for pair in zip(own.to_dense(), jagged.to_dense(), strict=True))
        for vectors in (expected, found.to_dict()):
            sum((it.values() ** 2).sum() for it in vectors.values()).backward()
        sgd.step()
        sgd.zero_grad()
        step.update()
    after = bags.state_dict(tables, prefix="embeddings.")
    assert after.keys() == theirs.state_dict().keys()
    assert all(torch.allclose(weight, after[name], atol=1e-6) for name, weight in theirs.state_dict().items())


def check_jagged_tensors() -> None:
    """However a batch was made, the same vectors come of it."""
    theirs, bags = collection(CONFIGS), foresee.EmbeddingBags(CONFIGS)
    tables = tables_of(bags, foresee.SGD(lr=0.1), theirs.state_dict(), "embedding_bags.")
    batch = batches()[0]
    parts = batch.split([1, 3])
    made: dict[str, Any] = {
        "lengths": KeyedJaggedTensor.from_lengths_sync(KEYS, batch.values(), batch.lengths()),
        "offsets": KeyedJaggedTensor.from_offsets_sync(KEYS, batch.values(), batch.offsets()),
        "permuted": batch.permute([2, 0, 3, 1]),
        "split and joined": KeyedJaggedTensor.concat([parts[1], parts[0]]),
        "by key": batch.to_dict(),
        "joined by key": KeyedJaggedTensor.from_jt_dict(batch.to_dict()),
    }
    expected = theirs(batch).values()
    for name, ids in made.items():
        assert torch.allclose(bags.look_up_keyed(tables, ids).values(), expected, atol=1e-6), name
    assert isinstance(made["by key"]["user"], JaggedTensor)


def check_variable_stride_is_refused() -> None:
    bags = foresee.EmbeddingBags(CONFIGS[:1])
    tables = foresee.Tables.in_memory(bags, dim=bags.dim, optimizer=foresee.SGD(lr=0.1))
    uneven = KeyedJaggedTensor(
        keys=["user", "seen"], values=torch.arange(5), lengths=torch.ones(5, dtype=torch.int64),
        stride_per_key_per_rank=[[2], [3]],
    )  # fmt: skip
    sentence = ""
    try:
        bags.look_up_keyed(tables, uneven)
    except DataError as error:
        sentence = str(error)
    assert "variable stride" in sentence


def main() -> None:
    warnings.filterwarnings("ignore")  # TorchRec's own
    checks = {name: check for name, check in globals().items() if name.startswith("check_")}
    failed = []
    for name, check in checks.items():
        try:
            check()
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    print("\n".join(failed) or f"the same vectors and the same rows in {len(checks)} checks")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
