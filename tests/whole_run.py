"""Runs the user's loop to its end and keeps everything that training left: the bytes that exactness is about.

In: a `Run` and a model. Out: an `Outcome` with every row of the store (values, optimiser state, versions), the dense
weights and the losses. `differing_bytes` compares two of them; it knows no tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from foresee.engine.run import Run
from foresee.engine.step import Step
from foresee.store.contract import Rows, Store


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run ends with."""

    rows: Rows  # all rows of the store, in order
    dense: bytes
    losses: list[float]  # of every step
    committed_step: int


class Dots(nn.Module):
    """A model with no dense part that could hide anything: every logit depends on every value of the sample's rows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        flat = embeddings.flatten(1)
        return self.scale * (flat.sum(dim=1) + (flat * flat).sum(dim=1))


def train(run: Run, model: nn.Module | None = None) -> Outcome:
    """The loop of the README, to its end."""
    model = model or Dots()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = [train_step(step, model, optimizer) for step in run]
    return outcome_of(run.tables.store, model, losses)


def train_step(step: Step, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """One turn of the loop."""
    loss = functional.binary_cross_entropy_with_logits(model(step.dense, step.embeddings), step.labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    step.update()
    return float(loss.detach())


def outcome_of(store: Store, model: nn.Module, losses: list[float]) -> Outcome:
    dense = b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())
    return Outcome(rows=all_rows(store), dense=dense, losses=losses, committed_step=store.committed_step)


def all_rows(store: Store) -> Rows:
    """Every row as the store has it now."""
    rows = Rows.empty(store.layout.num_rows, store.layout)
    store.read(np.arange(store.layout.num_rows, dtype=np.int64), rows)
    return rows


def differing_bytes(one: Outcome, other: Outcome) -> dict[str, int]:
    """How many bytes differ, part by part; all zero for exact training."""
    return {
        "values": _differing(one.rows.values, other.rows.values),
        "state": _differing(one.rows.state, other.rows.state),
        "versions": _differing(one.rows.versions, other.rows.versions),
        "dense": _differing(np.frombuffer(one.dense, np.uint8), np.frombuffer(other.dense, np.uint8)),
    }


NO_DIFFERENCE = {"values": 0, "state": 0, "versions": 0, "dense": 0}


def _differing(one: NDArray[np.generic], other: NDArray[np.generic]) -> int:
    assert one.shape == other.shape, f"{one.shape} against {other.shape}: not two runs of the same tables"
    return int(np.count_nonzero(np.frombuffer(one.tobytes(), np.uint8) != np.frombuffer(other.tobytes(), np.uint8)))
