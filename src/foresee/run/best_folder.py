"""The best rows and weights of a run, beside its last ones: `RUN/best/tables` and `RUN/best/checkpoints`.

In: the store and the dense half of a run at its best evaluation so far. Out: a second table folder with a checkpoint of
the same step, committed in two phases like the first, of which the last two are kept. Only rows that changed since the
best before are copied, in pieces, so memory stays bounded and rows that nobody has touched take no space.

The run commits right after a best was kept, and its checkpoint names the step of the best. So a run that was killed in
between finds the best that it knows of: the last one here, or the one before.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from foresee.engine.tables import ROWS_AT_ONCE
from foresee.errors import StoreError
from foresee.run import checkpoint
from foresee.run.dense_half import DenseHalf
from foresee.run.run_folder import RunFolder
from foresee.store.contract import Layout, Rows, Store
from foresee.store.disk import DiskStore
from foresee.store.disk.reader import DiskReader


class BestFolder:
    """Keeps the best of a run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def keep(self, step: int, store: Store, half: DenseHalf, *, before: int) -> None:
        """The state after `step` steps is the best; `before`: the step of the one before it, 0 if there was none."""
        with self._opened(store.layout, before) as best:
            _copy_changed(store, best)
            best.prepare(step)
            half.save(self._folder.best_checkpoints, step)
            best.settle(step)
        checkpoint.prune(self._folder.best_checkpoints)

    @contextmanager
    def _opened(self, layout: Layout, step: int) -> Iterator[DiskStore]:
        if not step:
            shutil.rmtree(self._folder.best, ignore_errors=True)
        best = DiskStore.open_or_create(self._folder.best_tables, layout)
        try:
            if step not in best.parts[0].openable:
                raise StoreError(
                    f"{self._folder.best} does not have the best of this run, that of step {step}; restore it from a "
                    "copy, or go on without it: leave train.best.metric out"
                )
            best.open_at(step)
            checkpoint.forget_after(self._folder.best_checkpoints, step)
            yield best
        finally:
            best.close()


def open_best(folder: RunFolder, layout: Layout) -> DiskReader:
    """The best rows for reading, at the newest step of which rows and weights are there."""
    if not folder.best_tables.is_dir():
        raise StoreError(
            f"{folder.path} keeps no best: none was evaluated yet, or train.best.metric was not given; "
            "leave --best out for the last commit"
        )
    best = DiskReader.open(folder.best_tables, layout)
    try:
        checkpoint.open_newest(best, folder.best_checkpoints)
    except BaseException:
        best.close()
        raise
    return best


def _copy_changed(source: Store, target: DiskStore) -> None:
    """Rows that were updated after the step that the target is at: a version is 1 + the last step that did."""
    for begin in range(0, source.layout.num_rows, ROWS_AT_ONCE):
        ids = np.arange(begin, min(begin + ROWS_AT_ONCE, source.layout.num_rows))
        rows = Rows.empty(len(ids), source.layout)
        source.read(ids, rows)
        changed = rows.versions > target.committed_step
        if changed.any():
            target.write(ids[changed], Rows(rows.values[changed], rows.state[changed], rows.versions[changed]))
