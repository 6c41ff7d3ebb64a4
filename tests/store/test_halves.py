"""Values of two bytes: every kind of number is rounded as the reference does, and random bits stay what they are."""

from __future__ import annotations

import zlib
from typing import ClassVar

import numpy as np
import pytest
import torch

import half_reference
from foresee.engine.kernels import apply_rows
from foresee.engine.kernels.values import form_of
from foresee.engine.optimizers import SGD
from foresee.engine.torch_kernels import TensorHalves
from foresee.io.hashing import key_and
from foresee.store.contract import Rows
from foresee.store.halves import bfloat16_of, bits_of_column, float16_of, packed, rounding_key, row_key, unpacked
from foresee.store.kernels import initial_values
from foresee.store.layout import Layout, Table

HALVES = ["bfloat16", "float16"]
ROUNDINGS = ["stochastic", "nearest"]
WIDTHS = [1, 7, 8, 16, 21, 64, 95]


def layout_of(width: int, dtype: str, rounding: str = "stochastic", seed: int = 3) -> Layout:
    return Layout(
        tables=(Table("t", 10**6),), width=width, state_width=0, optimizer="sgd", seed=seed, init_scale=0.05,
        dtype=dtype, rounding=rounding,
    )  # fmt: skip


def hostile_numbers(num_rows: int, width: int) -> np.ndarray:
    """Of all sizes, the smallest and largest included, halfway between two halves, zeros of both signs."""
    rng = np.random.default_rng(width)
    values = rng.standard_normal((num_rows, width)) * 10.0 ** rng.uniform(-42, 5, (num_rows, width))
    found = values.astype(np.float32)
    found.reshape(-1)[:: max(3, width)] = np.float32(1) + np.float32(2.0**-8)
    for place, special in enumerate((0.0, -0.0, 65504.0, 65519.9, 65520.0, 2.0**-24, 2.0**-25, -(2.0**-14), 3e-45)):
        found[place, place % width] = special
    return found


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_is_its_float32_and_back(dtype: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(-1, 4)
    found = unpacked(bits.view(np.float32), 4, dtype)
    expected = torch.from_numpy(bits.view(np.int16)).view(half_reference.DTYPES[dtype]).float().numpy()
    numbers = ~np.isnan(expected)
    assert found[numbers].tobytes() == expected[numbers].tobytes()
    assert np.isnan(found[~numbers]).all()
    assert (packed(found, dtype).view(np.uint16) == bits)[numbers].all()


class Beside(SGD):
    """An optimiser that gets its rows as float32, as those of other packages do."""

    in_place: ClassVar[bool] = False


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("optimizer", [SGD(lr=1.0), Beside(lr=1.0)], ids=["in place", "beside"])
def test_kernels_torch_and_the_reference_round_alike(dtype: str, rounding: str, optimizer: SGD) -> None:
    for width in WIDTHS:
        layout, rows, version = layout_of(width, dtype, rounding), np.arange(40) * 99_991 + 5, 7
        # Nothing less the negative: an update that leaves the number itself to be rounded.
        numbers = hostile_numbers(len(rows), width)
        expected = half_reference.words(
            half_reference.rounded(torch.from_numpy(numbers), layout, rows, version), layout
        )
        cache = Rows(np.zeros((40, layout.value_words), np.float32), np.empty((40, 0), np.float32), np.zeros(40, "i4"))
        slots = np.random.default_rng(0).permutation(40).astype(np.int32)
        apply_rows(
            optimizer, cache, slots, -numbers[slots], version=version, form=form_of(layout), row_of_slot=rows
        )  # fmt: skip
        zero = numbers == 0  # the sign of 0 - 0 is lost before anything is rounded
        same = cache.values.view(np.uint16)[:, :width] == expected.view(np.uint16)[:, :width]
        assert (same | zero).all()
        assert (cache.values.view(np.uint16)[:, width:] == 0).all()
        halves = TensorHalves.of(layout)
        assert halves is not None
        plain = halves.packed(torch.from_numpy(numbers), torch.from_numpy(rows), version)
        assert plain.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_initial_values_are_rounded_as_by_an_update_to_version_0(dtype: str, rounding: str) -> None:
    layout = Layout(
        tables=(Table("t", 300),), width=5, state_width=0, optimizer="sgd", seed=9, init_scale=0.3, dtype=dtype,
        rounding=rounding,
    )  # fmt: skip
    expected = half_reference.words(half_reference.initial_rows(layout), layout)
    assert initial_values(layout, np.arange(300)).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", HALVES)
def test_what_is_no_number_stays_none(dtype: str) -> None:
    numbers = np.array([[np.nan, -np.nan, np.inf, -np.inf, 1e38, -1e38]], np.float32)
    found = unpacked(packed(numbers, dtype), 6, dtype)[0]
    assert np.isnan(found[:2]).all()
    assert found[2:4].tolist() == [np.inf, -np.inf]
    layout = layout_of(6, dtype)
    cache = Rows(np.zeros((1, 3), np.float32), np.empty((1, 0), np.float32), np.zeros(1, np.int32))
    apply_rows(
        SGD(lr=1.0), cache, np.zeros(1, np.int32), -numbers, version=1, form=form_of(layout),
        row_of_slot=np.zeros(1, np.int64),
    )  # fmt: skip
    found = unpacked(cache.values, 6, dtype)[0]
    assert np.isnan(found[:2]).all()
    assert found[2:4].tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("dtype", HALVES)
def test_no_payload_makes_infinity_of_what_is_no_number(dtype: str) -> None:
    """A NaN whose payload is only in the bits that a half does not have would be infinity without them."""
    payloads = np.array([[0x7F800001, 0xFF800001, 0x7F80FFFF, 0xFF801FFF, 0x7FFFFFFF, 0x7FC00000]], np.uint32)
    numbers = payloads.view(np.float32)
    assert np.isnan(unpacked(packed(numbers, dtype), 6, dtype)).all()
    for stochastic in (False, True):
        to_half = bfloat16_of if dtype == "bfloat16" else float16_of
        halves = [int(to_half(bits, stochastic, np.uint32(0))) for bits in payloads[0]]
        halves += [int(to_half(bits, stochastic, np.uint32(0xFFFF))) for bits in payloads[0]]
        words = np.array([halves], np.uint16).view(np.float32)
        assert np.isnan(unpacked(words, len(halves), dtype)).all()


def test_random_bits_are_those_of_every_release() -> None:
    """Table folders go on with the bits that they began with."""
    drawn = [
        bits_of_column(np.uint64(row_key(key_and(rounding_key(seed), version), row)), column)
        for seed in (0, 7) for version in (0, 1, 1000) for row in (0, 5, 1 << 40) for column in range(35)
    ]  # fmt: skip
    expected = [
        half_reference.random_number(seed, row, column, version)
        for seed in (0, 7) for version in (0, 1, 1000) for row in (0, 5, 1 << 40) for column in range(35)
    ]  # fmt: skip
    assert drawn == expected
    assert f"{zlib.crc32(np.array(drawn, np.uint16).tobytes()):08x}" == "7dd0d870"


@pytest.mark.parametrize("dtype", HALVES)
def test_stochastic_rounding_is_right_on_the_mean_and_random_bits_are_even(dtype: str) -> None:
    """A tenth of the way from one half to the next: one in ten goes up. Means of columns, rows and versions alike."""
    step = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    layout, num_rows = layout_of(32, dtype), 4096
    halves = TensorHalves.of(layout)
    assert halves is not None
    numbers = torch.full((num_rows, 32), 1 + 0.1 * step)
    ups = torch.stack([
        halves.unpacked(halves.packed(numbers, torch.arange(num_rows), version)) > 1 for version in range(4)
    ]).double()  # fmt: skip
    assert abs(float(ups.mean()) - 0.1) < 0.002
    assert float((ups.mean(dim=(0, 1)) - 0.1).abs().max()) < 0.012
    assert float((ups.mean(dim=(1, 2)) - 0.1).abs().max()) < 0.005
    flat = ups.reshape(4, -1) - 0.1
    assert float(torch.corrcoef(flat).fill_diagonal_(0).abs().max()) < 0.02  # versions
    by_column = ups.reshape(-1, 32).T - 0.1
    assert float(torch.corrcoef(by_column).fill_diagonal_(0).abs().max()) < 0.04
