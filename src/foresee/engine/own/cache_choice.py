"""How many rows a cache of each size would fetch, before anything is trained.

    for cache_rows, fetched in fetches_by_cache(batches).items():
        print(f"{cache_rows:>10,} rows in the cache: {fetched:,.0f} fetched a step")

In: a person's own batches, or the stream of a log. Out: rows fetched a step by the lookahead planner, for sizes from
the smallest cache that works to one that holds every row. Plans the first steps and opens no tables. For a prepared log
`foresee plan` shows the same beside other policies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foresee.data.batch import Batch, BatchStream
from foresee.engine.loop import make_header
from foresee.engine.planning import counters_of, curve_capacities, demand_of, first_steps
from foresee.errors import DataError

STEPS = 200


@dataclass(frozen=True, slots=True)
class _Read:
    """Batches that were read already: a source need not give them twice."""

    read: Sequence[Batch]
    num_rows: int
    digest: str = "read already"

    @property
    def num_steps(self) -> int:
        return len(self.read)

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        return iter(self.read[first_step:])


def fetches_by_cache(stream: BatchStream, *, num_steps: int = STEPS) -> dict[int, float]:
    """Rows fetched a step, by rows of the cache, over the first steps. Keeps these steps in memory meanwhile."""
    read = list(first_steps(stream, num_steps).batches())
    if not read:
        raise DataError("there is no batch to plan; give batches, or a log with more samples than a batch")
    kept = _Read(read, stream.num_rows)
    sizes = curve_capacities(demand_of(read), capacity_rows=0)
    headers = [make_header(kept, planner="lookahead", cache_rows=size) for size in sizes]
    return {size: counters_of(kept, it).num_fetched / len(read) for size, it in zip(sizes, headers, strict=True)}
