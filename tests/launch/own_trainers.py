"""Run by test_trainers under torchrun: a loop of one's own over several trainers, again and again with other caches.

Prints, as trainer 0, one JSON object: a digest of all rows and the dense part for each way to train the same.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import foresee
from foresee.data.batch import Batch

DIM, BATCH_SIZE, EPOCHS, CACHE_ROWS = 4, 50, 2, 400
OPTIMIZER = foresee.RowwiseAdagrad(lr=0.05)


class Way:
    """One way to train: the log itself, or its samples as batches of one's own."""

    def __init__(
        self, log: foresee.ClickLog, folder: Path | None, *, planner_at: str | None = None,
        dim: int | dict[str, int] = DIM, **options: Any,
    ) -> None:  # fmt: skip
        self.log, self.folder, self.planner_at, self.dim = log, folder, planner_at, dim
        self.options: dict[str, Any] = {"cache_rows": CACHE_ROWS, **options}

    def but(self, folder: Path | None, **other: Any) -> Way:
        """The same in another folder, with other options."""
        return Way(self.log, folder, **{"dim": self.dim, **self.options, **other})

    def run(self, source: foresee.ClickLog | foresee.Batches, tables_of: Any, stop_after: int | None = None) -> str:
        torch.manual_seed(0)
        dims = [self.dim if isinstance(self.dim, int) else self.dim[it.name] for it in self.log.tables]
        model = nn.Sequential(nn.Linear(self.log.num_dense + sum(dims), 16), nn.ReLU(), nn.Linear(16, 1))
        sgd, bce = torch.optim.SGD(model.parameters(), lr=0.1), nn.BCEWithLogitsLoss()
        with foresee.Trainers(
            self.folder, tables_of, dim=self.dim, optimizer=OPTIMIZER, planner=self.planner_at
        ) as trainers:
            together = trainers.share(model)
            for _ in range(1 if stop_after is None else 2):
                for step in trainers.steps(source, **self.options):
                    logits = together(torch.cat([step.dense, flat(step.embeddings)], dim=1)).squeeze(1)
                    (bce(logits, step.labels) * trainers.weight(step)).backward()
                    sgd.step()
                    sgd.zero_grad()
                    step.update()
                    if isinstance(source, foresee.Batches):
                        assert np.array_equal(step.item[2][step.samples], step.labels.numpy())
                    if trainers.steps_done == stop_after:
                        trainers.commit()
                        break
            digest = hashlib.sha256(b"".join(trainers.tables.values(it.name).tobytes() for it in self.log.tables))
            for parameter in model.parameters():
                digest.update(parameter.detach().numpy().tobytes())
            return f"{trainers.steps_done} {digest.hexdigest()}"


def flat(embeddings: Any) -> torch.Tensor:
    """[samples, values]; of tables of several widths there is a tensor for each feature."""
    several = [embeddings] if isinstance(embeddings, torch.Tensor) else list(embeddings)
    return torch.cat([it.flatten(1) for it in several], dim=1)


def items(log: foresee.ClickLog) -> Iterator[tuple[Any, Any, Any]]:
    starts = np.array([log.table_offsets[feature.table] for feature in log.features])
    for batch in log.batches(batch_size=BATCH_SIZE, epochs=EPOCHS).batches():
        yield batch.dense, local_ids(batch, starts), batch.labels


def local_ids(batch: Batch, starts: Any) -> Any:
    return batch.rows.reshape(batch.num_samples, -1) - starts


def main() -> None:
    log, folder = foresee.ClickLog.open(sys.argv[1]), Path(sys.argv[2])
    port, other_port = int(sys.argv[3]), int(sys.argv[4])
    bags = foresee.EmbeddingBags(
        foresee.EmbeddingBagConfig(name=it.name, num_embeddings=it.num_rows, embedding_dim=DIM, feature_names=[it.name])
        for it in log.tables
    )
    num_steps = log.batches(batch_size=BATCH_SIZE, epochs=EPOCHS).num_steps

    def own() -> foresee.Batches:
        return foresee.Batches(bags, lambda _: items(log), num_steps=num_steps, read_ahead_steps=20)

    widths = {it.name: (2, 4, 9)[at % 3] for at, it in enumerate(log.tables)}
    whole: dict[str, Any] = {"batch_size": BATCH_SIZE, "epochs": EPOCHS}
    if "--plan" in sys.argv:
        both: dict[str, Any] = {"num_trainers": 2, "cache_rows": CACHE_ROWS}
        of_widths = {**both, **whole, "dim": widths, "placement": "contiguous", "port": other_port}
        Thread(target=foresee.Trainers.plan, args=(log,), kwargs=of_widths, daemon=True).start()
        foresee.Trainers.plan(own(), port=port, **both)
    dist.init_process_group("gloo")
    several = Way(log, folder / "widths", dim=widths, placement="contiguous", **whole)
    found = {
        "widths": several.run(log, log, num_steps // 2),
        "widths, service": several.but(None, planner_at=f"grpc://127.0.0.1:{other_port}").run(log, log),
        "widths, no cache": several.but(None, planner="none").run(log, log),
        "log": Way(log, None, **whole).run(log, log),
        "batches": Way(log, None).run(own(), bags),
        "contiguous": Way(log, None, placement="contiguous").run(own(), bags),
        "no cache": Way(log, None, planner="none", placement="contiguous").run(own(), bags),
        "service": Way(log, None, planner_at=f"grpc://127.0.0.1:{port}").run(own(), bags),
        "disk": Way(log, folder / "tables").run(own(), bags),
        "interrupted": Way(log, folder / "parts").run(own(), bags, stop_after=num_steps // 2),
    }
    if dist.get_rank() == 0:
        print(json.dumps({"num_steps": num_steps, "found": found}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
