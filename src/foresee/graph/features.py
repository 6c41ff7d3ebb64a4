"""Features of nodes as rows that are only read: the store that a plan fetches them from, straight from the graph.

In: the features of a prepared graph, mapped from the disk, and the step of the run's last checkpoint. Out: a store with
a state of width 0, which refuses to be written. Rows never change, so every commit has the same ones: this store only
remembers the step.
"""

from __future__ import annotations

import numpy as np

from foresee.arrays import Float32, Int64
from foresee.engine.optimizers import SGD
from foresee.errors import UsageError
from foresee.store.commits import GoBack, Instruction, Part, Promote, Seal
from foresee.store.contract import Rows, check_request
from foresee.store.layout import Layout, Table
from foresee.store.parts import OnePart

NO_OPTIMIZER = SGD(lr=0.0)
"""Nothing learns."""


def feature_layout(features: Float32) -> Layout:
    """How these rows look."""
    num_nodes, width = features.shape
    return Layout(tables=(Table("nodes", num_nodes),), width=width, state_width=0, optimizer=NO_OPTIMIZER.name)


class FeatureStore(OnePart):
    """Rows of an array on disk."""

    def __init__(self, features: Float32, committed_step: int = 0) -> None:
        self._features, self.layout = features, feature_layout(features)
        self._part = Part(committed=committed_step)

    @property
    def parts(self) -> tuple[Part]:
        return (self._part,)

    def read(self, rows: Int64, out: Rows) -> None:
        check_request(self.layout, rows, out)
        np.take(self._features, rows, axis=0, out=out.values)
        out.versions[:] = 0

    def write(self, rows: Int64, source: Rows) -> None:
        if len(rows):
            raise UsageError(f"features of {len(rows)} nodes were to be written; they are only read")

    def written(self, begin: int, end: int) -> Int64:
        """Of a range: none, so a copy of what changed reads nothing."""
        return np.empty(0, np.int64)

    def carry_out(self, instruction: Instruction) -> None:
        """Only the step is remembered."""
        match instruction:
            case Seal(step):
                self._part = Part(committed=self._part.committed, prepared=step)
            case Promote(step) | GoBack(step):
                self._part = Part(committed=step)
            case _:
                self._part = Part(committed=self._part.committed)

    def close(self) -> None:
        """Nothing is held but the map of the file."""
