"""What is known of nodes (labels, splits, features, their given numbers), brought into the order of their numbers.

Rows come in any order, go through an external sort, and are written block by block; a node of which nothing is known
has no label, is in no split, and has zeros as features. Classes that are words are numbered in the order of the words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from foresee.arrays import Int32, Int64
from foresee.data.order import SPLIT_NAMES
from foresee.data.source import ReportProgress
from foresee.errors import DataError
from foresee.graph.external_sort import ExternalSort, begins_group, keys_of
from foresee.graph.folder import NAMES_FILE
from foresee.graph.formats.source import NodeChunk, rows_at_once
from foresee.graph.npy import ArrayWriter

WORDS_MAX = 1 << 24


class Words:
    """Relations or classes: few enough to be held in memory. Words are numbered in their order, numbers stay."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._codes: dict[str, int] = {}
        self._num_given = 0

    def codes(self, values: Any) -> Int32:
        """Codes, final only after `order`; -1 for "" and for numbers below 0."""
        if isinstance(values, np.ndarray):
            self._num_given = max(self._num_given, 1 + int(values.max(initial=-1)))
            self._check(self._num_given)
            return np.maximum(values, -1).astype(np.int32)
        encoded = values.dictionary_encode()
        known = self._codes
        words = encoded.dictionary.to_pylist()
        found = [-1 if word == "" else known.setdefault(word, len(known)) for word in words]
        self._check(len(known))
        codes: Int32 = np.array(found, np.int32)[encoded.indices.to_numpy()]
        return codes

    def _check(self, num: int) -> None:
        if num > WORDS_MAX:
            raise DataError(f"there are more than {WORDS_MAX:,} {self._noun}; check which column they are read from.")

    def __len__(self) -> int:
        return len(self._codes) or self._num_given

    def __contains__(self, word: str) -> bool:
        return word in self._codes

    def order(self) -> Int32:
        """[codes + 1]: the number of each code; that of -1 is -1."""
        if not self._codes:
            return np.append(np.arange(self._num_given), -1).astype(np.int32)
        ranks = np.empty(len(self._codes) + 1, np.int32)
        ranks[[self._codes[word] for word in sorted(self._codes)]] = np.arange(len(self._codes))
        ranks[-1] = -1
        return ranks

    def names(self) -> pa.Array:
        return pa.array(sorted(self._codes) or list(map(str, range(self._num_given))), pa.large_string())


class NodeSort:
    """Takes chunks of nodes with their numbers, writes what is known of all nodes.

    Args:
        twice: The error if the node of this number has two rows.
    """

    def __init__(self, sort: ExternalSort, num_nodes: int, classes: Words, twice: Callable[[int], DataError]) -> None:
        self._sort, self._num_nodes, self._classes = sort, num_nodes, classes
        self._twice = twice
        self.num_features = 0
        self.sizes: dict[str, int] = {}

    def add(self, numbers: Int64, chunk: NodeChunk, splits: Int64 | None, first: int) -> None:
        """`first` is the place of the chunk's first node among all."""
        columns: dict[str, Any] = {"key": numbers.astype(np.uint64), "given": np.arange(first, first + chunk.num)}
        if chunk.labels is not None:
            columns["label"] = self._classes.codes(chunk.labels)
        if splits is not None:
            columns["split"] = splits.astype(np.int8)
        if chunk.features is not None:
            self.num_features = chunk.features.shape[1]
            bad = ~np.isfinite(chunk.features).all(axis=1)
            if bad.any():
                raise DataError(
                    f"the features of node {first + int(np.flatnonzero(bad)[0]):,} (counted from 0) are not all finite "
                    "numbers; replace them."
                )
            kind = pa.binary(4 * self.num_features)
            data = pa.py_buffer(np.ascontiguousarray(chunk.features, "<f4"))
            columns["features"] = pa.FixedSizeBinaryArray.from_buffers(kind, chunk.num, [None, data])
        self._sort.add(pa.RecordBatch.from_pydict(columns))

    def write(self, folder: Path, content: Any, *, given_names: bool, progress: ReportProgress | None) -> None:
        """Writes the arrays that there is something for, and hashes them."""
        writers: dict[str, ArrayWriter] = {}
        hashes: dict[str, Any] = {}  # one for each array, so that blocks leave no trace
        order = self._classes.order()
        names = _NameFile(folder / NAMES_FILE) if given_names else None
        try:
            for start, stop, rows in blocks(self._sort.sorted(), self._num_nodes, rows_at_once(self.num_features)):
                if not (begins := begins_group(keys_of(rows))).all():
                    raise self._twice(int(keys_of(rows)[np.flatnonzero(~begins)[0]]))
                for name, array in self._arrays(start, stop, rows, order).items():
                    if name not in writers:
                        writers[name] = ArrayWriter(folder / f"{name}.npy", array.dtype, array.shape[1:])
                        hashes[name] = hashlib.blake2b(digest_size=16)
                    writers[name].append(array)
                    hashes[name].update(np.ascontiguousarray(array).data)
                if names is not None:
                    names.append(_filled(rows, "given", start, stop, np.int64))
                if progress is not None:
                    progress("nodes", stop, self._num_nodes)
            for writer in writers.values():
                writer.finish()
            for name in sorted(hashes):
                content.update(name.encode() + hashes[name].digest())
        finally:
            for writer in writers.values():
                writer.close()
            if names is not None:
                names.close()
        self.sizes = {name: writers[f"{name}-nodes"].num_rows for name in SPLIT_NAMES if f"{name}-nodes" in writers}

    def _arrays(self, start: int, stop: int, rows: pa.RecordBatch, order: Int32) -> dict[str, Any]:
        arrays: dict[str, Any] = {}
        columns = rows.schema.names
        if "label" in columns:
            arrays["labels"] = order[_filled(rows, "label", start, stop, np.int32)].astype(np.int64)
        if "split" in columns:
            codes = _filled(rows, "split", start, stop, np.int8)
            for code, name in enumerate(SPLIT_NAMES):
                arrays[f"{name}-nodes"] = start + np.flatnonzero(codes == code)
        if "features" in columns:
            dense = np.zeros((stop - start, self.num_features), np.float32)
            flat = np.frombuffer(rows.column("features").buffers()[1], "<f4").reshape(-1, self.num_features)
            offset = rows.column("features").offset
            dense[keys_of(rows).astype(np.int64) - start] = flat[offset : offset + len(rows)]
            arrays["features"] = dense
        return arrays


class _NameFile:
    """Given numbers as an Arrow file."""

    def __init__(self, path: Path) -> None:
        self._schema = pa.schema([("name", pa.int64())])
        self._writer: Any = pa.ipc.new_file(str(path), self._schema)

    def append(self, given: Int64) -> None:
        self._writer.write_batch(pa.record_batch([pa.array(given)], self._schema))

    def close(self) -> None:
        self._writer.close()


def _filled(rows: pa.RecordBatch, column: str, start: int, stop: int, dtype: Any) -> Any:
    """A column of a block, -1 where a node has no row."""
    out = np.full(stop - start, -1, dtype)
    out[keys_of(rows).astype(np.int64) - start] = rows.column(column).to_numpy()
    return out


def blocks(batches: Iterator[pa.RecordBatch], num: int, size: int) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Rows sorted by key as (start, stop, rows with keys start..stop-1), block after block up to `num`."""
    start, rest = 0, None
    for batch in batches:
        rest = batch if rest is None else pa.concat_batches([rest, batch])
        keys = keys_of(rest)
        while len(keys) and keys[-1] >= start + size:
            cut = int(np.searchsorted(keys, np.uint64(start + size)))
            yield start, start + size, rest.slice(0, cut)
            rest, keys, start = rest.slice(cut), keys[cut:], start + size
    if rest is None:
        return
    while start < num:
        stop = min(num, start + size)
        yield start, stop, rest
        rest, start = rest.slice(len(rest)), stop
