"""An external sort gives every row back in order whatever memory it has, and a permutation needs none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.graph import external_sort
from foresee.graph.external_sort import ExternalSort, keys_of
from foresee.graph.naming import GivenNumbers, Names, permuted


@given(
    keys=st.lists(st.lists(st.integers(0, 40), max_size=60), max_size=30), memory=st.sampled_from([64, 4096, 1 << 20])
)
def test_rows_come_back_by_key_and_keys_stay_whole(
    tmp_path_factory: pytest.TempPathFactory, keys: list[list[int]], memory: int
) -> None:
    given_rows = [(key, number, f"{key}:{number}") for number, some in enumerate(keys) for key in some]
    found: list[tuple[int, int, str]] = []
    folder = tmp_path_factory.mktemp("sort")
    with ExternalSort(folder, memory) as sort:
        for number, some in enumerate(keys):
            columns = {"key": pa.array(some, pa.uint64()), "number": pa.array([number] * len(some), pa.int64())}
            texts = pa.array([f"{key}:{number}" for key in some], pa.large_string())
            sort.add(pa.RecordBatch.from_pydict(columns | {"text": texts}))
        last = -1
        for batch in sort.sorted():
            assert keys_of(batch)[0] > last, "a key was parted"
            last = int(keys_of(batch)[-1])
            found += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    assert [row[0] for row in found] == sorted(row[0] for row in given_rows)
    assert sorted(found) == sorted(given_rows)
    assert not list(folder.iterdir())


def test_more_runs_than_can_be_merged_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_sort, "RUNS_MAX", 3)
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 1 << 63, size=5000, dtype=np.uint64)
    with ExternalSort(tmp_path, 1 << 10) as sort:
        for some in np.array_split(keys, 100):
            sort.add(pa.RecordBatch.from_pydict({"key": some}))
        found = np.concatenate([keys_of(batch) for batch in sort.sorted()])
    assert np.array_equal(found, np.sort(keys))


@given(num=st.integers(1, 3000), key=st.integers(0, (1 << 64) - 1))
def test_permuted_is_a_permutation(num: int, key: int) -> None:
    assert np.array_equal(np.sort(permuted(np.arange(num), num, np.uint64(key))), np.arange(num))


def test_permutations_look_random() -> None:
    """Neighbours go anywhere: the mean distance of two random places among n is n / 3."""
    places = permuted(np.arange(30_000), 30_000, np.uint64(7))
    assert np.abs(np.diff(places)).mean() == pytest.approx(10_000, rel=0.03)


@given(flags=st.lists(st.booleans(), min_size=1, max_size=200), seed=st.integers(0, 100))
def test_given_numbers_put_some_first(flags: list[bool], seed: int) -> None:
    first = np.array(flags)
    numbers = GivenNumbers(len(first), seed, first).numbers(np.arange(len(first)))
    assert sorted(numbers.tolist()) == list(range(len(first)))
    assert sorted(numbers[first].tolist()) == list(range(int(first.sum())))


@given(chunks=st.lists(st.lists(st.text(max_size=3), min_size=1, max_size=20), min_size=1, max_size=8))
def test_names_get_one_number_each(tmp_path_factory: pytest.TempPathFactory, chunks: list[list[str]]) -> None:
    folder = tmp_path_factory.mktemp("names")
    names = Names(folder, 0, 1 << 12)
    places = [names.add(pa.array(chunk, pa.large_string())) for chunk in chunks]
    num = names.finish(folder / "out.arrow")
    with pa.OSFile(str(folder / "out.arrow")) as file:
        stored = pa.ipc.open_file(file).read_all().column("name").to_pylist()
    assert sorted(stored) == sorted({name for chunk in chunks for name in chunk})
    assert num == len(stored)
    for chunk, some in zip(chunks, places, strict=True):
        assert [stored[number] for number in names.numbers(some)] == chunk


def test_names_with_one_hash_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foresee.graph.naming.hash_strings", lambda values, salt: np.zeros(len(values), np.uint64))
    names = Names(tmp_path, 0, 1 << 20)
    places = names.add(pa.array(["b", "a", "b", "c"], pa.large_string()))
    again = names.add(pa.array(["c", "a"], pa.large_string()))
    num = names.finish(tmp_path / "out.arrow")
    assert num == 3
    assert names.numbers(places).tolist() == [1, 0, 1, 2]
    assert names.numbers(again).tolist() == [2, 0]
