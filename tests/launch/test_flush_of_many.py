"""In the middle of a run a flush of many workers leaves at the store the state after the step, rows on the way too."""

from __future__ import annotations

from threading import Barrier, Thread

import numpy as np
import pytest
import torch

from foresee.data import ClickLog
from foresee.engine.exchange.peers import PeerExchange
from foresee.engine.header import make_header
from foresee.engine.optimizers import RowwiseAdagrad
from foresee.engine.planned_step import Pooling
from foresee.engine.run import Run
from foresee.engine.tables import Tables, layout_for
from foresee.store.contract import Rows
from foresee.store.memory import MemoryStore
from foresee.testing.delays import Meeting, SharedStore, ThreadMesh

NUM_WORKERS = 3


def states(log: ClickLog, planner: str, cache_rows: int) -> list[bytes]:
    """All rows after every step, as the store has them after a flush."""
    layout = layout_for(log, 4, RowwiseAdagrad(lr=0.1), 0, 0.1)
    shared, meeting, found = SharedStore(MemoryStore(layout), NUM_WORKERS), Meeting(NUM_WORKERS), list[bytes]()
    together, errors = Barrier(NUM_WORKERS, timeout=30.0), list[BaseException]()

    def work(rank: int) -> None:
        stream = log.batches(batch_size=15, seed=3)
        header = make_header(
            stream, planner=planner, cache_rows=cache_rows, num_workers=NUM_WORKERS, placement="contiguous"
        )
        exchange = PeerExchange(layout, ThreadMesh(meeting, rank))
        tables = Tables(shared.for_worker(rank), RowwiseAdagrad(lr=0.1))
        run = Run(stream, tables, header, Pooling.of(log.mean_features), exchange=exchange, commit_at_end=False)
        for step in run:
            step.embeddings.grad = torch.tanh(step.embeddings.detach()) - step.labels[:, None, None] * 0.3
            step.update()
            run.flush()
            together.wait()
            if rank == 0:
                rows = Rows.empty(layout.num_rows, layout)
                shared.store.read(np.arange(layout.num_rows), rows)
                found.append(rows.values.tobytes() + rows.state.tobytes() + rows.versions.tobytes())
            together.wait()
        exchange.close()

    def safely(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            errors.append(error)
            meeting.abort()
            together.abort()

    threads = [Thread(target=safely, args=(rank,)) for rank in range(NUM_WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found


@pytest.mark.parametrize("cache_rows", [60, 189])
def test_a_flush_after_any_step_is_the_state_of_unplanned_training(small_log: ClickLog, cache_rows: int) -> None:
    unplanned = states(small_log, "none", 189)
    assert len(set(unplanned)) == len(unplanned) > 20
    assert states(small_log, "lookahead", cache_rows) == unplanned
