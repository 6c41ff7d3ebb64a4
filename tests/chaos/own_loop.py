"""A user-written training loop that the soak kills: sequences, several widths, accumulation within a step, clipping.

    python tests/chaos/own_loop.py FOLDER

trains as FOLDER/loop.json says (`Loop`), from the last commit in that folder on. Trainers are numbered by torchrun's
environment. A trainer whose number is in `die` kills itself with SIGKILL after that step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

from torchrec_fakes import KeyedJaggedTensor

import foresee
from foresee import checkpoint
from foresee.engine.optimizers import make_optimizer
from foresee.run.keyed import JaggedEmbeddings

SAMPLES, NUM_DENSE = 12, 3
SIZES = {"user": 20, "film": 40, "seen": 30, "place": 10}
"""Rows by feature, each with a table of its own."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a loop does; `dims` and `data_type` are those of the tables."""

    num_steps: int
    commit_every_steps: int
    seed: int
    dims: dict[str, int]
    data_type: str
    optimizer: str
    placement: str
    cache_rows: int
    sequences: bool
    parts: int
    """Into how many parts a batch is divided, whose gradients are accumulated."""
    clip_norm: float | None

    @property
    def bags(self) -> foresee.EmbeddingBags:
        pooling = {"user": "sum", "film": "mean", "seen": "none" if self.sequences else "sum", "place": "sum"}
        return foresee.EmbeddingBags(
            foresee.EmbeddingBagConfig(
                name=f"{name}s", num_embeddings=rows, embedding_dim=self.dims[name], feature_names=[name],
                pooling=pooling[name], data_type=self.data_type,
            )
            for name, rows in SIZES.items()
        )  # fmt: skip

    @property
    def row_optimizer(self) -> foresee.Optimizer:
        return make_optimizer(self.optimizer, {"lr": 0.05})

    def items(self) -> list[Any]:
        return [_item(np.random.default_rng([self.seed, step])) for step in range(self.num_steps)]

    def tables_on_disk(self, folder: Path) -> foresee.Tables:
        """The tables of a loop that has ended."""
        bags = self.bags
        return foresee.Tables.on_disk(folder / "tables", bags, dim=bags.dim, optimizer=self.row_optimizer)


def _item(rng: np.random.Generator) -> Any:
    lengths = rng.integers(0, 4, (len(SIZES), SAMPLES))
    values = [
        (rng.random(own.sum()) ** 2 * rows).astype(int) for rows, own in zip(SIZES.values(), lengths, strict=True)
    ]
    ids = KeyedJaggedTensor(
        list(SIZES), torch.from_numpy(np.concatenate(values)), torch.from_numpy(lengths.reshape(-1))
    )
    dense = torch.from_numpy(rng.random((SAMPLES, NUM_DENSE)).astype(np.float32))
    return dense, ids, torch.from_numpy(rng.integers(0, 2, SAMPLES).astype(np.float32))


class Scores(nn.Module):
    """A logit for each sample that depends on every value of its vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-0.1, 0.1, NUM_DENSE))
        self.scales = nn.Parameter(torch.ones(len(SIZES)))

    def forward(self, dense: Tensor, vectors: Sequence[Tensor], samples: Sequence[Tensor]) -> Tensor:
        logits: Tensor = dense @ self.weight
        for scale, values, sample in zip(self.scales, vectors, samples, strict=True):
            logits = logits.index_add(0, sample, scale * (values.sum(1) + values.square().sum(1)))
        return logits


def _vectors(found: Any, num_samples: int) -> tuple[Tensor, Tensor]:
    """The vectors of one feature, and the sample of each."""
    samples = torch.arange(num_samples)
    if isinstance(found, JaggedEmbeddings):
        return found.values(), samples.repeat_interleave(found.lengths())
    return found, samples


def train(folder: Path, loop: Loop, die: dict[str, int]) -> None:
    bags, model = loop.bags, Scores()
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    tables = {"dim": bags.dim, "optimizer": loop.row_optimizer}
    with foresee.Trainers(folder / "tables", bags, **tables) as trainers:
        if trainers.steps_done:
            checkpoint.load(folder / "checkpoints", trainers.steps_done, model, adam)
        together, last = trainers.share(model), die.get(str(trainers.rank))
        batches = foresee.Batches(bags, loop.items())
        for step in trainers.steps(batches, cache_rows=loop.cache_rows, placement=loop.placement):
            for some in torch.arange(len(step.labels)).tensor_split(loop.parts):
                found = bags.keyed(step).to_dict()
                vectors, samples = zip(*(_vectors(found[name], len(step.labels)) for name in SIZES), strict=True)
                losses = functional.binary_cross_entropy_with_logits(
                    together(step.dense, vectors, samples), step.labels, reduction="none"
                )
                (losses[some].sum() * trainers.num_trainers / step.batch_size).backward()  # type: ignore[no-untyped-call]
            if loop.clip_norm is not None:
                step.clip_grad_norm(model.parameters(), loop.clip_norm)
            adam.step()
            adam.zero_grad()
            step.update()
            done = trainers.steps_done
            if done == last:
                os.kill(os.getpid(), signal.SIGKILL)
            if done % loop.commit_every_steps == 0 or done == loop.num_steps:
                if trainers.rank == 0:
                    checkpoint.save(folder / "checkpoints", done, model, adam)
                trainers.commit()


def main() -> None:
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    given = json.loads((folder / "loop.json").read_text())
    train(folder, Loop(**given["loop"]), given["die"])


if __name__ == "__main__":
    main()
