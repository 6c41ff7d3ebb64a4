"""The kernels in plain torch operations, for caches on other devices than the CPU.

In: tensors on one device and a record's `unique` and `inverse` there. Out: what `kernels` gives, as tensors. Every
operation is deterministic: sums go through `segment_reduce`, which adds in lookup order, never through atomic
additions; and each optimiser spells its formula out in the same operations and order twice. So on a CPU both give
the same bits (sums begin with 0 here, so a -0.0 may become 0.0). Another device may round divisions and roots
differently. Values of two bytes are rounded by integers alone (int64: torch has no shifts of unsigned ones everywhere),
so every device gives the bytes of `store.halves`; torch's own casts serve in the other direction, and for nearest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from foresee.engine.kernels.order import LookupOrder
from foresee.engine.kernels.steps import decay_of
from foresee.engine.optimizers.contract import Optimizer
from foresee.io.hashing import key_and
from foresee.store.halves import FIRST, SECOND, STEP, rounding_key
from foresee.store.layout import Layout


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


LOW = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class TensorHalves:
    """What the words of some tables hold."""

    layout: Layout

    @classmethod
    def of(cls, layout: Layout) -> TensorHalves | None:
        """None where values are float32."""
        return None if layout.dtype == "float32" else cls(layout)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.layout.dtype == "bfloat16" else torch.float16

    def unpacked(self, words: Tensor) -> Tensor:
        """[rows, width] float32."""
        return words.view(self._dtype)[:, : self.layout.width].float()

    def packed(self, values: Tensor, rows: Tensor, version: int) -> Tensor:
        """[rows, value_words]: values rounded as an update of these rows to this version rounds them."""
        halves = values.to(self._dtype)
        if self.layout.rounding == "stochastic":
            bits = self._random(rows, version)
            size = _bits(values.abs())
            rounded = _bfloat16(size, bits) if self.layout.dtype == "bfloat16" else _float16(size, bits)
            rounded = torch.where(values.signbit(), rounded - 0x8000, rounded).to(torch.int16).view(self._dtype)
            halves = torch.where(values.isnan(), halves, rounded)
        return functional.pad(halves, (0, self.layout.width % 2)).contiguous().view(torch.float32)

    def _random(self, rows: Tensor, version: int) -> Tensor:
        """[rows, width]: sixteen bits for each value."""
        of_version = _signed(int(key_and(rounding_key(self.layout.seed), version)))
        keys = _mixed((rows ^ of_version) * _signed(0xD1342543DE82EF95) + _signed(0x9E3779B97F4A7C15))
        column = torch.arange(self.layout.width, device=rows.device)
        value = (keys[:, None] & LOW) + column // 2 * STEP & LOW
        value = (value ^ value >> 16) * FIRST & LOW
        value = value ^ _shifted(keys, 32)[:, None]
        value = (value ^ value >> 13) * SECOND & LOW
        value = value ^ value >> 16
        return torch.where(column % 2 == 1, value >> 16, value & 0xFFFF)


def _bfloat16(size: Tensor, random: Tensor) -> Tensor:
    return size + random >> 16


def _float16(size: Tensor, random: Tensor) -> Tensor:
    exponent = (size >> 23).clamp(min=83)
    normal = exponent.clamp(min=113)
    cut = 13 + normal - exponent
    fraction = size & 0x7FFFFF | torch.where(size >= 83 << 23, 0x800000, 0)
    fraction, cut = fraction >> (cut - 31).clamp(min=0), cut.clamp(max=31)
    half = (fraction + (random << 15 >> 31 - cut) >> cut) + (normal - 113 << 10)
    return half.clamp(max=0x7C00)


def _bits(values: Tensor) -> Tensor:
    return values.contiguous().view(torch.int32).to(torch.int64)


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def _shifted(value: Tensor, by: int) -> Tensor:
    """The bits of an int64 moved right, zeros after them."""
    return value >> by & (1 << 64 - by) - 1


def _mixed(value: Tensor) -> Tensor:
    """`io.hashing.mixed`."""
    value = (value ^ _shifted(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shifted(value, 31)
