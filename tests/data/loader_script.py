"""Run by test_loader_loops in processes of their own: the same seeded script in plain PyTorch and with Foresee.

    python loader_script.py plain|ours|plain,ours EPOCHS [num_workers=2] [tensors=0] [own_generator=0]

Prints a JSON object for each way: the losses of all steps, the processes that loaded batches, and a draw at the end.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import foresee

NUM_USERS, NUM_FILMS, DIM, SAMPLES, BATCH_SIZE = 200, 300, 8, 3_200, 32


class Clicks(Dataset[Any]):
    """Samples of ids and labels, with as many more tensors as are wanted."""

    def __init__(self, more: int) -> None:
        rng = np.random.default_rng(0)
        self.ids = torch.from_numpy(
            np.stack([rng.integers(0, NUM_USERS, SAMPLES), rng.integers(0, NUM_FILMS, SAMPLES)])
        )
        self.labels = torch.from_numpy(rng.integers(0, 2, SAMPLES).astype(np.float32))
        self.more = more

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = {"user": self.ids[0, index], "film": self.ids[1, index], "label": self.labels[index]}
        return {**sample, "pid": os.getpid(), "more": [self.labels[index]] * self.more}


def loss_of(head: nn.Module, embeddings: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(head(embeddings.flatten(1)).squeeze(1), labels)


def rows() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        "users": torch.randn(NUM_USERS, DIM, generator=generator),
        "films": torch.randn(NUM_FILMS, DIM, generator=generator),
    }


def plain(loader: DataLoader[Any], epochs: int, head: nn.Module, sgd: torch.optim.Optimizer) -> Any:
    weights = {name: nn.Parameter(value) for name, value in rows().items()}
    own = torch.optim.SGD(weights.values(), lr=0.5)
    for _ in range(epochs):
        for batch in loader:
            embeddings = torch.stack([weights["users"][batch["user"]], weights["films"][batch["film"]]], dim=1)
            loss = loss_of(head, embeddings, batch["label"])
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in (sgd, own):
                optimizer.step()
                optimizer.zero_grad()
            yield loss, batch


def ours(loader: DataLoader[Any], epochs: int, head: nn.Module, sgd: torch.optim.Optimizer) -> Any:
    configs = [("users", NUM_USERS, "user"), ("films", NUM_FILMS, "film")]
    bags = foresee.EmbeddingBags(
        foresee.EmbeddingBagConfig(name=name, num_embeddings=num, embedding_dim=DIM, feature_names=[key])
        for name, num, key in configs
    )
    tables = foresee.Tables.in_memory(bags, dim=DIM, optimizer=foresee.SGD(lr=0.5))
    bags.load_state_dict(tables, {f"{name}.weight": value for name, value in rows().items()}, prefix="")

    def ids(batch: Any) -> Any:
        return {"user": batch["user"], "film": batch["film"]}

    for step in foresee.lookahead(foresee.Batches(bags, loader, epochs=epochs, ids=ids), tables, cache_rows=150):
        loss = loss_of(head, step.embeddings, step.item["label"])
        loss.backward()  # type: ignore[no-untyped-call]
        sgd.step()
        sgd.zero_grad()
        step.update()
        yield loss, step.item


def trained(way: str, epochs: int, options: dict[str, int]) -> dict[str, Any]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1) if options.get("own_generator") else None
    loader = DataLoader(
        Clicks(options.get("tensors", 0)), batch_size=BATCH_SIZE, shuffle=True, generator=generator,
        num_workers=options.get("num_workers", 2),
    )  # fmt: skip
    head = nn.Sequential(nn.Dropout(0.3), nn.Linear(2 * DIM, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
    sgd = torch.optim.SGD(head.parameters(), lr=0.1)
    losses, loaded_by = [], set[int]()
    for loss, batch in (plain if way == "plain" else ours)(loader, epochs, head, sgd):
        losses.append(loss.item())
        loaded_by |= set(batch["pid"].tolist())
    return {"losses": losses, "loaded_by": sorted(loaded_by), "drawn": torch.rand(1).item()}


def main() -> None:
    ways, epochs = sys.argv[1].split(","), int(sys.argv[2])
    options = {name: int(value) for name, value in (it.split("=") for it in sys.argv[3:])}
    torch.set_num_threads(1)
    print(json.dumps([trained(way, epochs, options) for way in ways]))


if __name__ == "__main__":
    main()
