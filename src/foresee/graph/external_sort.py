"""Sorting more rows than memory holds, by a 64-bit key: sorted runs on disk, then merged.

In: Arrow batches with a column `key` (uint64). Out: the same rows by ascending key, in batches that never part rows
of one key; rows of equal keys come in no particular order, so whoever needs one sorts them, which is cheap since they
stand together. Memory stays within `memory_bytes`, unless the rows of a single key alone need more.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from foresee.arrays import Bool, UInt64

RUN_SHARE = 8
"""A run is this fraction of memory: its pieces, the whole and the sorted copy of it are there at the same time."""
BLOCK_SHARE = 512
"""A block is this fraction of memory; merging holds a few of each run."""
RUNS_MAX = 96
"""Merged at once; more are merged into longer runs first."""


class ExternalSort:
    """Takes batches, then gives them sorted. A context manager: its files go when it ends."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sort-", dir=folder))
        self._run_bytes, self._block_bytes = memory_bytes // RUN_SHARE, max(1 << 12, memory_bytes // BLOCK_SHARE)
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = self._num_written = 0
        self._runs: list[Path] = []
        self.num_rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not len(batch):
            return
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        self.num_rows += len(batch)
        if self._pending_bytes > self._run_bytes:
            self._end_run()

    def sorted(self) -> Iterator[pa.RecordBatch]:
        """All rows; once."""
        if not self._runs:
            yield from _blocks(self._take_pending(), self._block_bytes)
            return
        self._end_run()
        while len(self._runs) > RUNS_MAX:
            merged, self._runs = self._runs[:RUNS_MAX], self._runs[RUNS_MAX:]
            self._runs.append(self._write(_merged(merged)))
            for path in merged:
                path.unlink()
        yield from _merged(self._runs)

    def _end_run(self) -> None:
        if self._pending:
            self._runs.append(self._write(self._take_pending()))

    def _take_pending(self) -> Iterator[pa.RecordBatch]:
        batches, self._pending, self._pending_bytes = self._pending, [], 0
        if batches:
            yield _by_key(batches)

    def _write(self, batches: Iterable[pa.RecordBatch]) -> Path:
        path, writer = self._folder / f"run-{self._num_written}.arrow", None
        self._num_written += 1
        with pa.OSFile(str(path), "wb") as file:
            for block in _blocks(batches, self._block_bytes):
                writer = writer or pa.ipc.new_file(file, block.schema)
                writer.write_batch(block)
            assert writer is not None
            writer.close()
        return path

    def __enter__(self) -> ExternalSort:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def keys_of(batch: pa.RecordBatch) -> UInt64:
    return batch.column("key").to_numpy()  # type: ignore[no-any-return]


def begins_group(keys: UInt64) -> Bool:
    """Where another key begins, in sorted keys."""
    begins = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=begins[1:])
    return begins


def _by_key(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    together = pa.concat_batches(batches)
    batches.clear()
    return together.take(pa.array(np.argsort(keys_of(together))))


def _blocks(batches: Iterable[pa.RecordBatch], block_bytes: int) -> Iterator[pa.RecordBatch]:
    """Sorted batches in pieces of about so many bytes, cut where another key begins."""
    for batch in batches:
        starts = np.flatnonzero(begins_group(keys_of(batch)))
        num_rows = max(1, block_bytes * len(batch) // max(1, batch.nbytes))
        cuts = np.unique(starts[np.searchsorted(starts, np.arange(0, len(batch), num_rows), side="right") - 1])
        for start, stop in zip(cuts, [*cuts[1:], len(batch)], strict=True):
            yield batch.slice(start, stop - start)


class _Run:
    """One sorted run: what was read of it and not given out yet."""

    def __init__(self, path: Path) -> None:
        self._file = pa.OSFile(str(path))
        self._reader: Any = pa.ipc.open_file(self._file)
        self._next = 0
        self._rows: pa.RecordBatch = self._reader.get_batch(0).slice(0, 0)
        self.keys: UInt64 = keys_of(self._rows)
        self.extend()

    @property
    def ended(self) -> bool:
        return self._next == int(self._reader.num_record_batches)

    def extend(self) -> None:
        """Reads one block more."""
        self._rows = pa.concat_batches([self._rows, self._reader.get_batch(self._next)])
        self._next += 1
        self.keys = keys_of(self._rows)

    def below(self, bound: np.uint64 | None) -> pa.RecordBatch:
        """Gives out the rows with keys below the bound, or all of them."""
        cut = len(self.keys) if bound is None else int(np.searchsorted(self.keys, bound))
        given, self._rows = self._rows.slice(0, cut), self._rows.slice(cut)
        self.keys = self.keys[cut:]
        return given

    def close(self) -> None:
        self._file.close()


def _merged(paths: list[Path]) -> Iterator[pa.RecordBatch]:
    """What is below the last key read of every run that goes on is complete."""
    runs: list[_Run] = []
    try:
        runs.extend(map(_Run, paths))
        while runs:
            going = [run for run in runs if not run.ended]
            bound = min(run.keys[-1] for run in going) if going else None
            batch = _by_key([run.below(bound) for run in runs])
            if len(batch):
                yield batch
            for run in going:
                if run.keys[-1] == bound:
                    run.extend()
            for run in [run for run in runs if run.ended and not len(run.keys)]:
                run.close()
                runs.remove(run)
    finally:
        for run in runs:
            run.close()
