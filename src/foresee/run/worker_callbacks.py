"""What several workers have to do together beside training: evaluate and keep.

All workers come here after the same step. Each writes what its cache holds to the servers; when all have, worker 0 acts
for everybody, and nobody trains on before it is done. The rows that it reads or commits are those of that step.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from foresee.base import failpoints
from foresee.base.failpoints import failpoint
from foresee.engine.loop import Run
from foresee.run.callbacks import EvaluateValid, Sink, StepResult, finish_commit, send
from foresee.run.checkpoint_interval import CheckpointInterval
from foresee.run.config import RunConfig
from foresee.run.dense_half import Best, DenseHalf
from foresee.run.run_folder import RunFolder
from foresee.store.remote import RemoteStore

_logger = logging.getLogger(__name__)


class EvaluateTogether:
    """The valid split when it is due; all write what they hold, worker 0 computes, and nobody goes on before."""

    def __init__(self, valid: EvaluateValid, run: Run, best: Best) -> None:
        self._valid, self._run, self._best = valid, run, best

    def after(self, done: StepResult) -> None:
        if not self._valid.due(done):
            return
        self._run.flush()
        dist.barrier()
        if dist.get_rank() == 0:
            self._valid.evaluate(done)
        # Also the barrier: all wait for worker 0, and then know what it has found.
        numbers = torch.tensor(self._best.numbers(), dtype=torch.float64)
        dist.broadcast(numbers, 0)
        self._best.take(numbers.tolist())
        done.last = done.last or self._best.exhausted
        self._run.span("evaluate")


class SaveCheckpointTogether:
    """One commit of all servers and the dense half of worker 0, which is that of all."""

    def __init__(
        self, config: RunConfig, run: Run, half: DenseHalf, folder: RunFolder, sinks: Sequence[Sink],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._every_steps, self._pace = (
            config.train.commit_every_steps,
            CheckpointInterval(config.train.commit_every_seconds, clock),
        )
        self._run, self._half, self._folder = run, half, folder
        self._num_shards, self._sinks, self._clock = config.num_servers, sinks, clock
        self._announced = False
        self.asked = False
        """All workers have agreed that it is time."""

    def announce(self) -> bool:
        """Is it time, by this worker's clock? Said once: clocks differ, so workers act on what they have agreed."""
        before, self._announced = self._announced, self._pace.due()
        return self._announced and not before

    def after(self, done: StepResult) -> None:
        failpoint(failpoints.STEP_DONE)
        by_steps = self._every_steps is not None and done.steps_done % self._every_steps == 0
        if done.last or by_steps or self._half.best.step == done.steps_done or self.asked:
            self.keep()

    def keep(self) -> None:
        """After this returns, a run that ends in any way can go on from here."""
        begun, step = self._clock(), self._run.steps_done
        self._run.flush()
        failpoint(failpoints.FLUSHED)
        dist.barrier()
        if dist.get_rank() == 0:
            self._commit(step)
        dist.barrier()
        seconds, self._announced = self._pace.committed(begun), False
        send({"kind": "commit", "step": step, "seconds": seconds}, self._sinks)
        _logger.info("committed in %.3f s", seconds)
        self._run.span("commit")

    def _commit(self, step: int) -> None:
        """All rows are at the servers, and nobody writes before this is over."""
        store = self._run.tables.store
        assert isinstance(store, RemoteStore), "workers have their rows on servers"
        store.prepare(step)
        failpoint(failpoints.PREPARED)
        self._half.save(self._folder.checkpoints, step, num_shards=self._num_shards)
        store.settle(step)
        failpoint(failpoints.SETTLED)
        finish_commit(self._folder, step)
