"""Rows of two bytes as anyone would train them in plain numpy and torch: the yardstick for `tables.dtype`.

In: a stream of batches of one row a bag, a layout and an optimiser. Out: every row after the last step. All rows lie in
one float32 array that holds nothing but halves; after each step the touched ones are rounded. The rounding is written
down here once more, in fractions and not in bits: a number lies between two neighbouring halves, at some part of the
way, and goes up if that part and its random number, of 16 bits, make a whole. Does not use `foresee.store.halves`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from foresee.data.batch import BatchStream
from foresee.engine.optimizers import Optimizer, at_step
from foresee.store.contract import Rows
from foresee.store.kernels import initial_values
from foresee.store.layout import Layout

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_ALL = (1 << 64) - 1


def splitmix(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _ALL
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _ALL
    return value ^ value >> 31


def folded(key: int, part: int) -> int:
    return splitmix(((key ^ part & _ALL) * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) & _ALL)


def random_number(seed: int, row: int, column: int, version: int) -> int:
    """Sixteen bits, as docs/decisions/0009 has them."""
    key = 0x9E3779B97F4A7C15
    for part in (0x726F756E64, seed, version, row):
        key = folded(key, part)
    value = (key % 2**32 + column // 2 * 0x9E3779B9) % 2**32
    value = (value ^ value >> 16) * 0x85EBCA6B % 2**32
    value ^= key >> 32
    value = (value ^ value >> 13) * 0xC2B2AE35 % 2**32
    value ^= value >> 16
    return value >> 16 if column % 2 else value & 0xFFFF


def neighbours(values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Of sizes: the greatest half that is not above, and the next one, as float64."""
    sizes = values.abs().double()
    bits = sizes.to(dtype).view(torch.int16)
    below = torch.where(bits.view(dtype).double() > sizes, bits - 1, bits)
    largest = {torch.bfloat16: 2.0**128, torch.float16: 65536.0}[dtype]  # what infinity would be
    return below.view(dtype).double(), (below + 1).view(dtype).double().clamp(max=largest)


def rounded(values: torch.Tensor, layout: Layout, rows: NDArray[np.int64], version: int) -> torch.Tensor:
    """[rows, width]: the halves that values become, as float32."""
    dtype = DTYPES[layout.dtype]
    if layout.rounding == "nearest":
        return values.to(dtype).float()
    numbers = [
        [random_number(layout.seed, int(row), column, version) for column in range(values.shape[1])] for row in rows
    ]
    below, above = neighbours(values, dtype)
    goes_up = (values.abs().double() - below) / (above - below) + torch.tensor(numbers).double() / 2**16 >= 1
    sizes = torch.where(goes_up, above, below)
    return torch.where(values.signbit(), -sizes, sizes).float()


def words(values: torch.Tensor, layout: Layout) -> NDArray[np.float32]:
    """Rows as a store has them."""
    halves = functional.pad(values.to(DTYPES[layout.dtype]), (0, layout.width % 2))
    found: NDArray[np.float32] = halves.contiguous().view(torch.int16).numpy().view(np.float32)
    return found


def initial_rows(layout: Layout) -> torch.Tensor:
    """What rows begin with: the float32 of the same seed, rounded as to version 0."""
    rows = np.arange(layout.num_rows)
    exact = initial_values(replace(layout, dtype="float32"), rows)
    return rounded(torch.from_numpy(exact), layout, rows, 0)


Gradient = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of embeddings [samples, features, width] and labels."""


def train_plainly(stream: BatchStream, layout: Layout, optimizer: Optimizer, gradient: Gradient) -> Rows:
    """Every row after the last step."""
    values = initial_rows(layout)
    state = torch.zeros(layout.num_rows, layout.state_width)
    versions = np.zeros(layout.num_rows, np.int32)
    for batch in stream.batches():
        embeddings = values[torch.from_numpy(batch.rows)].view(batch.num_samples, -1, layout.width)
        of_lookups = gradient(embeddings, torch.from_numpy(batch.labels)).reshape(-1, layout.width).numpy()
        sums = np.zeros((layout.num_rows, layout.width), np.float32)
        np.add.at(sums, batch.rows, of_lookups)
        touched = np.unique(batch.rows)
        step, decay = at_step(optimizer, batch.step), float(getattr(optimizer, "weight_decay", 0.0))
        summed = torch.from_numpy(sums[touched])
        if decay:
            summed = summed + values[touched] * decay
        new, state[touched] = step.step_tensors(values[touched], state[touched], summed)
        values[touched] = rounded(new, layout, touched, batch.step + 1)
        versions[touched] = batch.step + 1
    return Rows(words(values, layout), state.numpy(), versions)
