"""Nodes become numbers 0..n-1 in random order, from names of any kind, in bounded memory.

Names are numbered by the rank of their hash under a seed: that is a random permutation, it does not depend on the
order of files, and one external sort finds it, however many names there are. Each chunk's distinct names go into the
sort with a place; what comes back is the number for each place. Nodes that are numbers already (0..n-1) are permuted
by a Feistel network, which needs no memory at all. Nodes to train may be given the smallest numbers in both cases.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from foresee.arrays import Bool, Int64
from foresee.data.vocabulary import hash_strings
from foresee.errors import DataError
from foresee.graph.external_sort import ExternalSort, begins_group, keys_of
from foresee.graph.folder import NODES_MAX
from foresee.graph.npy import ArrayWriter, read_rows
from foresee.io.hashing import key_of

ROUNDS = 6


class Names:
    """Numbers for names. First all of them are added, then `finish` says which number each place has."""

    def __init__(self, folder: Path, seed: int, memory_bytes: int) -> None:
        self._folder, self._memory_bytes = folder, memory_bytes
        self._salt = key_of(seed, 11)
        self._sort = ExternalSort(folder, memory_bytes)
        self._num_places = 0

    def add(self, names: pa.Array, first: Bool | None = None) -> Int64:
        """The place of each name.

        Args:
            names: Text without nulls.
            first: Those that are to have the smallest numbers.
        """
        if not len(names):
            return np.empty(0, np.int64)
        encoded = names.dictionary_encode()
        distinct = encoded.dictionary
        codes: Int64 = encoded.indices.to_numpy().astype(np.int64)
        flags = np.zeros(len(distinct), bool)
        if first is not None:
            flags[codes[first]] = True
        places: Int64 = np.arange(self._num_places, self._num_places + len(distinct))
        self._num_places += len(distinct)
        columns = {"key": hash_strings(distinct, self._salt), "place": places, "first": flags, "name": distinct}
        self._sort.add(pa.RecordBatch.from_pydict(columns))
        return np.asarray(codes + places[0])

    def finish(self, out: Path) -> int:
        """Writes the names by number; gives how many there are. From then on `numbers` answers."""
        with self._sort, ExternalSort(self._folder, self._memory_bytes) as by_place:
            num_first, num_nodes = self._number(by_place)
            self._sort.__exit__(None, None, None)
            _join_names(self._folder, out)
            with ArrayWriter(self._folder / "numbers.npy", np.int64) as numbers:
                for batch in by_place.sorted():
                    ranks, firsts = (
                        batch.column("rank").to_numpy(),
                        batch.column("first").to_numpy(zero_copy_only=False),
                    )
                    numbers.append(np.where(firsts, ranks, ranks + num_first))
        return num_nodes

    def numbers(self, places: Int64) -> Int64:
        """The number of each place; quick and small if the places lie close to each other."""
        if not len(places):
            return places
        low = int(places.min())
        return read_rows(self._folder / "numbers.npy", low, int(places.max()) + 1)[places - low]

    def _number(self, by_place: ExternalSort) -> tuple[int, int]:
        """Ranks by hash, those that come first apart from the others; names go into two files in that order."""
        counts = [0, 0]
        schema = pa.schema([("name", pa.large_string())])
        paths = [self._folder / f"names-{part}.arrow" for part in ("first", "other")]
        with (
            pa.ipc.new_file(str(paths[0]), schema) as first_file,
            pa.ipc.new_file(str(paths[1]), schema) as other_file,
        ):
            for batch in self._sort.sorted():
                batch, begins = _grouped(batch)
                group = np.cumsum(begins) - 1
                flags = np.zeros(group[-1] + 1, bool)
                np.logical_or.at(flags, group, batch.column("first").to_numpy(zero_copy_only=False))
                ranks = np.where(flags, counts[0] + np.cumsum(flags) - 1, counts[1] + np.cumsum(~flags) - 1)
                names = batch.column("name").filter(pa.array(begins))
                for part, (file, which) in enumerate(((first_file, flags), (other_file, ~flags))):
                    file.write_batch(pa.record_batch([names.filter(pa.array(which))], schema))
                    counts[part] += int(which.sum())
                places = batch.column("place").to_numpy().astype(np.uint64)
                by_place.add(pa.RecordBatch.from_pydict({"key": places, "rank": ranks[group], "first": flags[group]}))
        if sum(counts) > NODES_MAX:
            raise DataError(f"the graph has {sum(counts):,} nodes, more than {NODES_MAX:,} that can be numbered.")
        return counts[0], sum(counts)


def _grouped(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Bool]:
    """The batch with equal names side by side, and where each name begins."""
    begins = begins_group(keys_of(batch))
    names = batch.column("name")
    differs = pc.not_equal(names.slice(1), names.slice(0, len(names) - 1)).to_numpy(zero_copy_only=False)
    if (differs & ~begins[1:]).any():  # two names with one hash
        batch = batch.take(pc.sort_indices(batch, sort_keys=[("key", "ascending"), ("name", "ascending")]))
        names, begins = batch.column("name"), begins_group(keys_of(batch))
        differs = pc.not_equal(names.slice(1), names.slice(0, len(names) - 1)).to_numpy(zero_copy_only=False)
    begins[1:] |= np.asarray(differs, bool)
    return batch, begins


def _join_names(folder: Path, out: Path) -> None:
    schema = pa.schema([("name", pa.large_string())])
    with pa.ipc.new_file(str(out), schema) as writer:
        for part in ("first", "other"):
            path = folder / f"names-{part}.arrow"
            with pa.OSFile(str(path)) as file:
                reader = pa.ipc.open_file(file)
                for number in range(reader.num_record_batches):
                    writer.write_batch(reader.get_batch(number))
            path.unlink()


class GivenNumbers:
    """Numbers for nodes that are numbers already.

    Args:
        num_nodes: They are 0..num_nodes-1.
        first: Those that are to have the smallest numbers; None: nobody.
    """

    def __init__(self, num_nodes: int, seed: int, first: Bool | None = None) -> None:
        if not 1 <= num_nodes <= NODES_MAX:
            raise DataError(f"{num_nodes:,} nodes cannot be numbered; give 1 to {NODES_MAX:,}.")
        self.num_nodes, self._key = num_nodes, np.uint64(key_of(seed, 12))
        self._first = first
        self._num_first = 0 if first is None else int(first.sum())
        self._ranks = None if first is None else np.cumsum(first, dtype=np.int64)

    def numbers(self, given: Int64) -> Int64:
        """The number of each given one."""
        if self._first is None or self._ranks is None:
            return np.asarray(permuted(given, self.num_nodes, self._key))
        ranks, among = self._ranks[given], self._first[given]
        firsts = permuted(np.where(among, ranks - 1, 0), max(1, self._num_first), self._key)
        others = permuted(np.where(among, 0, given - ranks), max(1, self.num_nodes - self._num_first), self._key)
        return np.asarray(np.where(among, firsts, others + self._num_first))


@njit(nogil=True, cache=True)
def permuted(values: Int64, num: int, key: np.uint64) -> Int64:
    """A permutation of 0..num-1, value by value: a Feistel network over the next power of four, walked until inside."""
    half = np.uint64(1)
    while np.uint64(1) << (np.uint64(2) * half) < np.uint64(num):
        half += np.uint64(1)
    mask = (np.uint64(1) << half) - np.uint64(1)
    out = np.empty(len(values), np.int64)
    for index in range(len(values)):
        value = np.uint64(values[index])
        while True:
            left, right = value >> half, value & mask
            for turn in range(ROUNDS):
                left, right = right, left ^ (_scrambled(right, key + np.uint64(turn)) & mask)
            value = left << half | right
            if value < np.uint64(num):
                break
        out[index] = np.int64(value)
    return out


@njit(nogil=True, cache=True)
def _scrambled(value: np.uint64, key: np.uint64) -> np.uint64:
    value = (value + key) * np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
