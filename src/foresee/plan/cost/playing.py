"""Steps played through by the rules of the engine (`engine/loop.py`, `pipeline.py`, `peers.py`), worker by worker:

    planned      one step after the other, ahead of training
    read         one fetch after the other, once the write-backs of its `not_before` are applied: hidden, unless late
    computed     rows into the cache, forward, backward as far as the gradients of rows
    gradients    due at the next step: exchanged once the slowest worker has them, on a thread of their own
    settled      the background exchange of the step before must be over
    written      a few write-backs may wait for the writer: hidden, unless the writer falls behind
    rows         for the next step, exchanged next; what is due later starts after them, hidden
    dense        meanwhile the rest of backward, then the sum of dense gradients, as far as backward does not hide it

The step ends when rows and dense are both done; they share the link, so that it carries one after the other. What is
hidden is still on the link and on the cores: it shares them with what is urgent (`sharing`). Workers go in lockstep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foresee.plan.cost import stores
from foresee.plan.cost.exchanges import GRADIENTS, LATER, ROWS, Exchanges, dense_link_seconds, dense_seconds
from foresee.plan.cost.sharing import SharedCores, SharedLink
from foresee.plan.cost.speeds import RowBytes, Speeds
from foresee.plan.volumes import Volumes

Float64 = NDArray[np.float64]

WRITES_IN_FLIGHT = 4
"""Write-backs that may wait for the writer before training waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Seconds by step; of the slowest worker where workers meet: an exchange begins when all are there."""

    begin: Float64  # [steps + 1]
    """When each step begins; the last entry is the end of all."""
    waited: Float64  # [steps]
    """For rows from the store."""
    exchanged: Float64  # [steps]
    """Rows and gradients that neither compute nor the dense sum hides."""
    late: Float64  # [steps]
    """For the background exchange, or for the writer."""


def play(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> Played:
    """When each step begins and the last one ends, and what each step waited for."""
    playing = _Playing(volumes, row_bytes, speeds)
    for step in range(volumes.num_steps):
        playing.step(step)
    return playing.played


class _Update(NamedTuple):
    """The exchanges of a step that the next one waits for."""

    arrived: float
    """When its rows are there."""
    on_link: float
    """Seconds."""
    late: float
    """Seconds that it waited for what the step before left in the background."""


class _Playing:
    """Where everything stands, step after step."""

    def __init__(self, volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> None:
        num_steps, num_workers = volumes.num_steps, volumes.num_workers
        self.played = Played(
            begin=np.zeros(num_steps + 1), waited=np.zeros(num_steps), exchanged=np.zeros(num_steps),
            late=np.zeros(num_steps),
        )  # fmt: skip
        self._not_before, self._planner_seconds = volumes.not_before, speeds.planner_seconds
        self._read = stores.read_seconds(volumes, row_bytes, speeds)
        self._write = stores.write_seconds(volumes, row_bytes, speeds)
        self._exchange = Exchanges.of(volumes, row_bytes, speeds)
        self._after_rows = speeds.compute_seconds * speeds.compute_after_rows_share
        self._compute = speeds.compute_seconds - self._after_rows + stores.cache_seconds(volumes, speeds)
        beside = self._after_rows * speeds.compute_threads + self._exchange.packed_seconds[..., :LATER].sum(axis=2)
        self._beside = beside.max(axis=1) / speeds.cores
        """[steps]: what the rest of compute and the update take of the cores together."""
        self._hidden_work = _hidden_work(volumes, self._exchange, speeds)
        self._dense, self._dense_on_link = dense_seconds(num_workers, speeds), dense_link_seconds(num_workers, speeds)
        self._link = SharedLink(num_workers)
        self._cores = SharedCores(num_workers, cores=speeds.cores, compute_threads=speeds.compute_threads)
        self._planned, self._background_over = 0.0, 0.0
        self._read_over, self._write_over = np.zeros(num_workers), np.zeros(num_workers)
        self._write_begun = np.zeros((num_steps, num_workers))
        self._applied = np.zeros(num_steps + 1)  # the last entry stands for step -1: nothing to wait for

    def step(self, step: int) -> None:
        computed = self._computed(step)
        update, played = self._updated(step, computed), self.played
        trained = computed + self._after_rows
        carried = computed + update.on_link + self._dense_on_link
        end = max(update.arrived, carried, trained + self._dense, computed + float(self._beside[step]))
        played.begin[step + 1] = end
        played.late[step] = min(update.late, end - trained - self._dense)
        played.exchanged[step] = end - trained - self._dense - played.late[step]
        later = self._exchange.link_seconds[step, :, :, LATER]
        self._link.pass_time(end - update.arrived)
        self._link.hide(later)
        self._background_over = end + float(self._exchange.fixed_seconds[step, LATER] + later.max())

    def _computed(self, step: int) -> float:
        """When the slowest worker has the gradients of its rows."""
        begin = self.played.begin[step]
        self._planned += self._planner_seconds
        may_read = np.maximum(self._planned, self._applied[self._not_before[step]])
        self._read_over = np.maximum(self._read_over, may_read) + self._read[step]
        started = np.maximum(self._read_over, begin)
        self.played.waited[step] = started.max() - begin
        self._cores.hide(self._hidden_work[step])
        self._cores.pass_time(started - begin)
        computed = float((started + self._cores.compute(self._compute[step])).max())
        self._link.pass_time(computed - begin)
        return computed

    def _updated(self, step: int, computed: float) -> _Update:
        link_seconds, fixed_seconds = self._exchange.link_seconds[step], self._exchange.fixed_seconds[step]
        sent = self._link.send(link_seconds[..., GRADIENTS])
        summed = computed + float(fixed_seconds[GRADIENTS]) + sent
        freed = float(self._write_begun[step - WRITES_IN_FLIGHT].max()) if step >= WRITES_IN_FLIGHT else 0.0
        settled = max(summed, self._background_over, freed)
        self._write_begun[step] = np.maximum(self._write_over, settled)
        self._write_over = self._write_begun[step] + self._write[step]
        self._applied[step] = self._write_over.max()
        self._link.pass_time(settled - summed)
        self._link.hide(self._exchange.stored_seconds[step])
        sent_rows = self._link.send(link_seconds[..., ROWS])
        arrived = settled + float(fixed_seconds[ROWS]) + sent_rows
        return _Update(arrived, sent + sent_rows, settled - summed)


def _hidden_work(volumes: Volumes, exchange: Exchanges, speeds: Speeds) -> Float64:
    """[steps, workers]: processor time of what begins with a step: fetches, and what the step before left to do."""
    left = stores.write_processor_seconds(volumes, speeds) + exchange.packed_seconds[..., LATER]
    work: Float64 = stores.read_processor_seconds(volumes, speeds) + speeds.planner_seconds * speeds.planner_cores_here
    work[1:] += left[:-1]
    return work
