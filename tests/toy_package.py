"""What somebody else might add, from outside the package: a row optimiser and a store, by a call or by entry points."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from torch import Tensor

from foresee import StoreKind
from foresee.arrays import Int64
from foresee.errors import UsageError
from foresee.store.commits import ForgetWrites, Instruction
from foresee.store.contract import Rows
from foresee.store.layout import Layout
from foresee.store.memory import MemoryStore
from foresee.store.parts import PartWrapper

ENTRY_POINTS = """[foresee.optimizers]
momentum = toy_package:Momentum
broken = toy_package:Nothing
misnamed = toy_package:Momentum

[foresee.stores]
vault = toy_package:VAULT
"""


@dataclass(frozen=True, kw_only=True)
class Momentum:
    """`state = decay * state + gradient; value -= lr * state`. With a decay of 0 it is SGD."""

    name: ClassVar[str] = "momentum"
    elementwise: ClassVar[bool] = True

    lr: float
    decay: float = 0.5

    def state_width(self, width: int) -> int:
        return width

    @staticmethod
    def step_rows(parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: int) -> None:
        lr, decay = np.float32(parameters[0]), np.float32(parameters[1])
        for i in range(num_rows):
            slot = slots[i]
            for d in range(values.shape[1]):
                moved = decay * state[slot, d] + sums[i, d]
                state[slot, d] = moved
                values[slot, d] -= lr * moved

    def step_tensors(self, values: Tensor, state: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        state = state * self.decay + sums
        return values - state * self.lr, state


class VaultStore(PartWrapper):
    """Rows in a vault of this process, which stays when the store is closed."""

    def __init__(self, rows: MemoryStore) -> None:
        super().__init__(rows)
        self._closed = False

    def read(self, rows: Int64, out: Rows) -> None:
        self._check_open()
        super().read(rows, out)

    def write(self, rows: Int64, source: Rows) -> None:
        self._check_open()
        super().write(rows, source)

    def commit(self, step: int) -> None:
        self._check_open()
        super().commit(step)

    def carry_out(self, instruction: Instruction) -> None:
        self._check_open()
        super().carry_out(instruction)

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this store is closed; open it again")


_ROWS: dict[Path, MemoryStore] = {}


def open_vault(folder: Path, layout: Layout) -> VaultStore:
    if folder not in _ROWS:
        _ROWS[folder] = MemoryStore(layout, undoable=True)
    _ROWS[folder].carry_out(ForgetWrites())
    return VaultStore(_ROWS[folder])


VAULT = StoreKind(
    name="vault", open=open_vault, durable=True, rows_in_memory=True, in_folder=False, holds=_ROWS.__contains__
)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `pip install` would: a package whose metadata declare the entry points."""
    metadata = folder / "site" / "toy_package-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(folder / "site")
