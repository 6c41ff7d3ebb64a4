"""Values of two bytes in plain torch operations, for caches on other devices than the CPU.

In: words of rows, or float32 values with their rows and the version they become. Out: float32, or words, with the bytes
of `base.halves`: integers all of it, so every device gives the same. Torch's own casts serve in one direction, and for
rounding to nearest. Whole numbers are int64 here: torch has no shifts of unsigned ones everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from foresee.base.halves import BLOCK, FIRST, SECOND, STEP, rounding_key
from foresee.base.mixing import key_and
from foresee.store.contract import Layout

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
        lane = column // BLOCK * (BLOCK // 2) + column % (BLOCK // 2)
        value = (keys[:, None] & LOW) + lane * STEP & LOW
        value = (value ^ value >> 16) * FIRST & LOW
        value = value ^ _shifted(keys, 32)[:, None]
        value = (value ^ value >> 13) * SECOND & LOW
        value = value ^ value >> 16
        return torch.where(column // (BLOCK // 2) % 2 == 1, value >> 16, value & 0xFFFF)


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
    """`base.mixing.mixed`."""
    value = (value ^ _shifted(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shifted(value, 31)
