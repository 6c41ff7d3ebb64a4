"""Run in .venv-bench by test_own_batches: TorchRec's EmbeddingBagCollection and ours, from the same weights.

Its configurations, batches and state dict go in as they are. Both train two steps of SGD; pooled vectors and rows must
agree before, between and after.
"""

from __future__ import annotations

import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, PoolingType

import foresee

CONFIGS = [
    EmbeddingBagConfig(name="users", embedding_dim=8, num_embeddings=40, feature_names=["user"]),
    EmbeddingBagConfig(
        name="films", embedding_dim=8, num_embeddings=60, feature_names=["seen", "clicked"], pooling=PoolingType.MEAN
    ),
    EmbeddingBagConfig(name="narrow", embedding_dim=4, num_embeddings=30, feature_names=["place", "user"]),
]
KEYS = ["place", "user", "clicked", "seen"]


def main() -> None:
    torch.manual_seed(0)
    lengths = torch.randint(0, 3, (2, len(KEYS) * 10))
    batches = [
        KeyedJaggedTensor(keys=KEYS, values=torch.randint(0, 30, (int(it.sum()),)), lengths=it) for it in lengths
    ]
    theirs = EmbeddingBagCollection(tables=CONFIGS, device=torch.device("cpu"))
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.1)
    bags = foresee.EmbeddingBags(CONFIGS)
    tables = foresee.Tables.in_memory(bags, dim=bags.dim, optimizer=foresee.SGD(lr=0.1))
    bags.load_state_dict(tables, theirs.state_dict())
    for step in foresee.lookahead(foresee.Batches(bags, batches), tables, cache_rows=130):
        expected, found = theirs(step.item), bags.keyed(step.embeddings)
        assert found.keys() == expected.keys(), (found.keys(), expected.keys())
        assert found.length_per_key() == expected.length_per_key()
        assert found.offset_per_key() == expected.offset_per_key()
        assert torch.allclose(found.values(), expected.values(), atol=1e-6)
        for pooled in (expected, found):
            (pooled.values() ** 2).sum().backward()
        sgd.step()
        sgd.zero_grad()
        step.update()
    after = bags.state_dict(tables)
    assert after.keys() == theirs.state_dict().keys()
    assert all(torch.allclose(weight, after[name], atol=1e-6) for name, weight in theirs.state_dict().items())
    print("the same vectors and the same rows")


if __name__ == "__main__":
    main()
