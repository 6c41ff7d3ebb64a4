"""A batch stream from batches in memory, for tests, benchmarks and whoever makes batches without a log."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property

from foresee.data.batch import Batch


class MemoryStream:
    """Batches of steps 0, 1, 2, ... as they stand in a sequence. A `BatchStream`."""

    def __init__(self, batches: Sequence[Batch], *, num_rows: int) -> None:
        self.num_rows = num_rows
        self._batches = batches

    @property
    def num_steps(self) -> int:
        return len(self._batches)

    @cached_property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for batch in self._batches:
            digest.update(batch.rows.tobytes())
        return digest.hexdigest()

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        return iter(self._batches[first_step:])
