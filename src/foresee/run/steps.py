"""`foresee.steps`: a log or batches of one's own, and tables, made into steps whose rows are there.

In: what to train on, the tables, the size of the cache and a planner. Out: a `Run` that goes on after the tables' last
commit. What cannot be is refused here, before the first step: other batches than the tables were trained on, a cache
without a row, a log without a batch size.
"""

from __future__ import annotations

from pathlib import Path

import torch

from foresee.custom_data.batches import Batches
from foresee.data.batch import BatchStream
from foresee.data.click_log import ClickLog
from foresee.engine.header import make_header
from foresee.engine.loop import Run
from foresee.engine.planned_step import Pooling
from foresee.engine.recording.timeline import NOT_RECORDED, Recording
from foresee.engine.tables import Tables
from foresee.errors import UsageError
from foresee.run.sources import enter


def steps(
    log: ClickLog | Batches,
    tables: Tables,
    *,
    batch_size: int | None = None,
    cache_rows: int,
    epochs: int = 1,
    seed: int = 0,
    planner: str = "lookahead",
    window_steps: int | None = None,
    window_bytes: int | None = None,
    device: str | torch.device = "cpu",
    num_threads: int = 1,
    record: str | Path | None = None,
    first_step: int | None = None,
) -> Run:
    """Steps over the log's train split, or over `Batches` of one's own, from the step after the tables' last commit.

    Tables that were trained on other batches refuse these, unless `first_step` says that they are meant.

    Args:
        log: What to train on.
        tables: The rows and how they learn. They are committed when the loop ends, by itself or by `break`.
        batch_size: Samples of a step, of a log; batches of one's own have theirs.
        cache_rows: Slots of the cache; at least the distinct rows of the largest batch.
        epochs: Passes over a log.
        seed: Of the order in which a log's samples come.
        planner: Any of `foresee.plan.PLANNERS`; all give the same bytes, with more or fewer rows moved.
        window_steps: A fixed lookahead as in the Bagpipe paper, instead of all that the cache can use.
        window_bytes: What the batches that the planner looks at may take; left out, 2 GB, and as much as
            `window_steps` need.
        device: Where the model computes and the cache is.
        num_threads: Threads of the kernels that gather and update rows.
        record: A folder into which the run records itself, for `foresee report` and `foresee watch`.
        first_step: The batch to begin with, such as 0 to train all batches of a new day on the tables of the days
            before, whose steps go on counting. Without it, a loop goes on after the last batch that these tables have
            committed.

    Returns:
        A `Run`: iterate over it once, and call `step.update()` in every step.
    """
    stream, pooling = _stream_of(log, tables, batch_size=batch_size, epochs=epochs, seed=seed)
    committed_step = tables.store.committed_step
    source = enter(stream, first_step, committed_step, tables.history)
    header = make_header(
        source, planner=planner, cache_rows=cache_rows, first_step=committed_step, window_steps=window_steps,
        window_bytes=window_bytes,
    )  # fmt: skip
    if isinstance(log, Batches):
        header = log.bounded(header)
    timeline = NOT_RECORDED if record is None else Recording(Path(record))
    return Run(
        source, tables, header, pooling, device=torch.device(device), num_threads=num_threads, timeline=timeline,
        trained=source.trained,
    )  # fmt: skip


lookahead = steps
"""The same, by the name of the planner that it has unless told otherwise."""


def _stream_of(
    log: ClickLog | Batches, tables: Tables, *, batch_size: int | None, epochs: int, seed: int
) -> tuple[BatchStream, Pooling]:
    if isinstance(log, Batches):
        if batch_size is not None or epochs != 1 or seed != 0:
            raise UsageError("batches of one's own have their size, order and epochs; give these to Batches, not here")
        log.bags.check_tables(tables)
        return log, Pooling.of(log.bags.mean_features)
    if batch_size is None:
        raise UsageError("a log is cut into batches of batch_size samples; give it, such as batch_size=2048")
    return log.batches(batch_size=batch_size, seed=seed, epochs=epochs), Pooling.of(log.mean_features)
