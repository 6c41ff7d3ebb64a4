"""Initial values are pinned: old table folders would otherwise silently get other rows."""

from __future__ import annotations

import zlib

import numpy as np

from foresee.store.kernels import initial_values
from foresee.store.layout import Layout, Table

GOLDEN = [
    [-0.32389509677886963, -0.7955316305160522, -0.46173954010009766, -0.43800532817840576],
    [0.05942893028259277, 0.9730889797210693, -0.6168166399002075, 0.1799910068511963],
    [0.9710602760314941, 0.3988887071609497, 0.6691842079162598, -0.6035743951797485],
]
GOLDEN_CRC = 0x5F5A9ED5


def layout_of(width: int = 4, seed: int = 0, init_scale: float = 1.0) -> Layout:
    return Layout(
        tables=(Table("t", 10**6),), width=width, state_width=0, optimizer="sgd", seed=seed, init_scale=init_scale
    )


def test_golden_values() -> None:
    found = initial_values(layout_of(), np.array([0, 1, 999_999], np.int64))
    assert found.tolist() == GOLDEN


def test_golden_checksum_over_many_rows_and_seeds() -> None:
    crc = 0
    for seed in (0, 1, -5, 2**63):
        crc = zlib.crc32(initial_values(layout_of(7, seed, 0.01), np.arange(1000, dtype=np.int64)).tobytes(), crc)
    assert crc == GOLDEN_CRC


def test_same_numbers_without_numba() -> None:
    """The hash written a second time in plain Python integers."""
    mask = 2**64 - 1

    def mix(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & mask
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB & mask
        return word ^ (word >> 31)

    golden, seed, row = 0x9E3779B97F4A7C15, 42, 123_456
    state = mix(seed ^ mix((row * golden + golden) & mask))
    expected = []
    for _ in range(3):
        state = (state + golden) & mask
        word = mix(state)
        expected += [(word >> 40) - 2**23, ((word & 0xFFFFFFFF) >> 8) - 2**23]
    found = initial_values(layout_of(5, seed), np.array([row], np.int64))
    assert (found[0].astype(np.float64) * 2**23).tolist() == expected[:5]


def test_uniform_in_the_half_open_interval() -> None:
    values = initial_values(layout_of(64, init_scale=0.3), np.arange(20_000, dtype=np.int64))
    scale = np.float32(0.3)
    assert values.min() >= -scale
    assert values.max() < scale
    assert abs(float(values.mean())) < 0.001
    # Variance of a uniform distribution: (2 * scale)^2 / 12.
    assert abs(float(values.var()) / (0.3**2 / 3) - 1) < 0.01
    assert abs(float(np.corrcoef(values[:, 0], values[:, 1])[0, 1])) < 0.03
    assert abs(float(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1])) < 0.03


def test_a_row_does_not_depend_on_its_company() -> None:
    layout = layout_of(6, seed=3)
    together = initial_values(layout, np.array([5, 6, 7], np.int64))
    alone = initial_values(layout, np.array([6], np.int64))
    wider = initial_values(layout_of(9, seed=3), np.array([6], np.int64))
    assert together[1].tobytes() == alone[0].tobytes() == wider[0, :6].tobytes()


def test_seeds_differ() -> None:
    rows = np.arange(100, dtype=np.int64)
    assert not np.any(initial_values(layout_of(seed=0), rows) == initial_values(layout_of(seed=1), rows))
