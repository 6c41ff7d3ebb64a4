"""The kernels in plain torch operations, for caches on other devices than the CPU.

In: tensors on one device and a record's `unique` and `inverse` there. Out: what `kernels` gives, as tensors. Every
operation is deterministic: sums go through `segment_reduce`, which adds in lookup order, never through atomic
additions; and each optimiser spells its formula out in the same operations and order twice. So on a CPU both give
the same bits (sums begin with 0 here, so a -0.0 may become 0.0). Another device may round divisions and roots
differently.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foresee.engine.kernels.order import LookupOrder
from foresee.engine.kernels.steps import decay_of
from foresee.engine.optimizers.contract import Optimizer
from foresee.engine.torch_halves import TensorHalves


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Values, state and versions of some rows, as parallel tensors."""

    values: Tensor  # [rows, width] float32, or [rows, value_words] float32 words that hold halves
    state: Tensor  # [rows, state_width] float32
    versions: Tensor  # [rows] int32


@dataclass(frozen=True, slots=True)
class TensorOrder:
    """A `LookupOrder` on the device."""

    gradient_rows: Tensor  # [lookups] int64
    counts: Tensor  # [unique] int64: lookups of each position
    divisors: Tensor  # [bags] float32, or empty

    @classmethod
    def of(cls, order: LookupOrder, device: torch.device) -> TensorOrder:
        return cls(
            torch.from_numpy(order.gradient_rows).to(device, torch.int64),
            torch.from_numpy(order.starts).to(device, torch.int64).diff(),
            torch.from_numpy(order.divisors).to(device),
        )


def gather(values: Tensor, unique: Tensor, inverse: Tensor, halves: TensorHalves | None = None) -> Tensor:
    """[lookups, width]: row k is `values[unique[inverse[k]]]`, as float32."""
    found = values.index_select(0, unique.index_select(0, inverse))
    return found if halves is None else halves.unpacked(found)


def gather_bags(
    values: Tensor,
    unique: Tensor,
    inverse: Tensor,
    bag_offsets: Tensor,
    mean: Tensor,
    halves: TensorHalves | None = None,
) -> Tensor:
    """[bags, width]: the sum of the rows of each bag, divided by their number where `mean[bag % features]`."""
    sizes = bag_offsets.to(torch.int64).diff()
    sums = _sum_segments(gather(values, unique, inverse, halves), sizes)
    divided = mean.repeat(len(sizes) // len(mean)) & (sizes > 0)
    return sums / torch.where(divided, sizes, 1).to(torch.float32)[:, None]


def sum_gradients(gradients: Tensor, order: TensorOrder, *, positions: Tensor | None = None) -> Tensor:
    """[unique, width] or [positions, width]: the gradients of each position, added in lookup order."""
    if len(order.divisors):
        gradients = gradients / order.divisors[:, None]
    sums = _sum_segments(gradients.index_select(0, order.gradient_rows), order.counts)
    return sums if positions is None else sums.index_select(0, positions)


def update_rows(
    optimizer: Optimizer,
    cache: TensorRows,
    unique: Tensor,
    gradients: Tensor,
    order: TensorOrder,
    *,
    version: int,
    positions: Tensor | None = None,
    divisor: int = 1,
    halves: TensorHalves | None = None,
    rows: Tensor | None = None,
) -> None:
    """Sums `gradients` by row, divides, and steps the rows at slots `unique`, or at some positions of it."""
    sums = sum_gradients(gradients, order)
    sums = sums if divisor == 1 else sums / divisor
    apply_rows(optimizer, cache, unique, sums, version=version, positions=positions, halves=halves, rows=rows)


def apply_rows(
    optimizer: Optimizer,
    cache: TensorRows,
    slots: Tensor,
    sums: Tensor,
    *,
    version: int,
    positions: Tensor | None = None,
    halves: TensorHalves | None = None,
    rows: Tensor | None = None,
) -> None:
    """Steps the row at `slots[i]` with `sums[i]`, for all i or for the i in `positions`. Slots must be distinct.

    Values of two bytes have `halves`, and are rounded with the bits of `rows[i]`, the row in slot i of the cache.
    """
    if positions is not None:
        slots, sums = slots.index_select(0, positions), sums.index_select(0, positions)
    slots = slots.to(torch.int64)
    values, state = cache.values.index_select(0, slots), cache.state.index_select(0, slots)
    values = values if halves is None else halves.unpacked(values)
    decay = decay_of(optimizer)
    sums = sums + values * decay if decay else sums
    values, state = optimizer.step_tensors(values, state, sums)
    if halves is not None:
        assert rows is not None, "rounding takes the bits of rows"
        values = halves.packed(values, rows.index_select(0, slots), version)
    cache.values.index_copy_(0, slots, values)
    cache.state.index_copy_(0, slots, state)
    cache.versions.index_fill_(0, slots, version)


def take_rows(cache: TensorRows, slots: Tensor) -> TensorRows:
    """Copies of the rows at these slots."""
    return TensorRows(
        cache.values.index_select(0, slots), cache.state.index_select(0, slots), cache.versions.index_select(0, slots)
    )


def put_rows(cache: TensorRows, slots: Tensor, source: TensorRows) -> None:
    """Copies rows into these slots, which must be distinct."""
    slots = slots.to(torch.int64)
    cache.values.index_copy_(0, slots, source.values)
    cache.state.index_copy_(0, slots, source.state)
    cache.versions.index_copy_(0, slots, source.versions)


def _sum_segments(rows: Tensor, counts: Tensor) -> Tensor:
    return torch.segment_reduce(rows, "sum", lengths=counts, axis=0, unsafe=True)
