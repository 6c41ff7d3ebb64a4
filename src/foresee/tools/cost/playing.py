"""Steps played through by the rules of the engine (`engine/run.py`, `pipeline.py`, `peers.py`), worker by worker:

    planned      one step after the other, ahead of training
    read         one fetch after the other, once the write-backs of its `not_before` are applied: hidden, unless late
    computed     rows into the cache, forward, backward as far as the gradients of rows
    gradients    due at the next step: exchanged once the slowest worker has them, on a thread of their own
    settled      the background exchange of the step before must be over
    written      a few write-backs may wait for the writer: hidden, unless the writer falls behind
    rows         for the next step, exchanged next; what is due later starts after them, hidden
    dense        meanwhile the rest of backward, then the sum of dense gradients, as far as backward does not hide it

The step ends when rows and dense are both done; they share the link, so it carries one after the other. Hidden work
(fetches, write-backs, the background exchange) begins beside compute and costs nothing while there is enough of
everything; where there is not, it shares links and cores evenly with what is urgent, which takes longer. Workers go in
lockstep. Out: a mean step, its parts, how busy each resource is, the bottleneck; no step can fall below some bounds:
bytes over a link, rows over what servers serve, processor time over cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from foresee.arrays import Float64
from foresee.plan.count import Volumes
from foresee.tools.cost import exchanges
from foresee.tools.cost.exchanges import (
    GRADIENTS,
    LATER,
    ROWS,
    Exchanges,
    RowBytes,
    Speeds,
    dense_link_seconds,
    dense_seconds,
)

HIDDEN_FLOWS = 2
"""Hidden flows that an urgent one shares a link with, each way: one with the servers, one with the other trainers."""
HIDDEN_THREADS = 3
"""Threads that compute shares its cores with: who reads, who writes, who exchanges in the background."""


class SharedLink:
    """Hidden and urgent traffic on the links of the trainers: flows that are there at once share them evenly."""

    def __init__(self, num_workers: int) -> None:
        self._waiting = np.zeros((num_workers, 2))
        """[workers, directions]: seconds of hidden traffic that are not sent yet."""

    def hide(self, seconds: Float64) -> None:
        """More hidden traffic. It is never let grow beyond what matters: a bound of its own sees to that."""
        self._waiting = self._waiting + seconds

    def pass_time(self, seconds: float) -> None:
        self._waiting = np.maximum(self._waiting - seconds, 0.0)

    def send(self, urgent: Float64) -> float:
        """Seconds until urgent traffic has gone over, of the slowest worker."""
        alone = (1 + HIDDEN_FLOWS) * urgent
        took = float(np.minimum(alone, urgent + self._waiting).max())
        self._waiting = np.maximum(self._waiting - np.maximum(took - urgent, 0.0), 0.0)
        return took


class SharedCores:
    """Compute and hidden work on the cores of each trainer.

    A gate lets hidden work begin when a step's update is over, so most of it meets the compute of the next step.
    """

    def __init__(self, num_workers: int, *, cores: float, compute_threads: int) -> None:
        self._cores, self._threads = cores, compute_threads
        self._waiting = np.zeros(num_workers)
        """[workers]: hidden work that is not done, in seconds of all cores."""

    def hide(self, processor_seconds: Float64) -> None:
        """More hidden work, as seconds of one core."""
        self._waiting = self._waiting + processor_seconds / self._cores

    def pass_time(self, seconds: Float64) -> None:
        """Training waits, and all cores are for hidden work."""
        self._waiting = np.maximum(self._waiting - seconds, 0.0)

    def compute(self, seconds: Float64) -> Float64:
        """[workers]: how long compute takes that would take so many seconds by itself."""
        own, evenly = self._threads / self._cores * seconds, (self._threads + HIDDEN_THREADS) / self._cores * seconds
        took: Float64 = np.maximum(seconds, np.minimum(own + self._waiting, evenly))
        self._waiting = np.maximum(self._waiting - (took - own), 0.0)
        return took


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
            begin=np.zeros(num_steps + 1),
            waited=np.zeros(num_steps),
            exchanged=np.zeros(num_steps),
            late=np.zeros(num_steps),
        )
        self._not_before, self._planner_seconds = volumes.not_before, speeds.planner_seconds
        self._read = exchanges.read_seconds(volumes, row_bytes, speeds)
        self._write = exchanges.write_seconds(volumes, row_bytes, speeds)
        self._exchange = Exchanges.of(volumes, row_bytes, speeds)
        self._after_rows = speeds.compute_seconds * speeds.compute_after_rows_share
        self._compute = speeds.compute_seconds - self._after_rows + exchanges.cache_seconds(volumes, speeds)
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
    left = exchanges.write_processor_seconds(volumes, speeds) + exchange.packed_seconds[..., LATER]
    work: Float64 = (
        exchanges.read_processor_seconds(volumes, speeds) + speeds.planner_seconds * speeds.planner_cores_here
    )
    work[1:] += left[:-1]
    return work


COMPUTE, WAITED, EXCHANGE, DENSE, BEHIND = "compute", "waiting for rows", "exchange", "dense sum", "background late"
PARTS = (COMPUTE, WAITED, EXCHANGE, DENSE, BEHIND)
PLANNER, READER, WRITER, TRAINER_LINK, SERVER_LINK, SERVERS, CORES, DEPENDENCY = (
    "planner",
    "reading rows",
    "writing rows",
    "trainer link",
    "server link",
    "servers",
    "processor cores",
    "write, then read",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Seconds of a mean step."""

    step_seconds: float
    parts: dict[str, float]
    """By `PARTS`; what they leave is the stretch that a bound below adds."""
    lanes: dict[str, float]
    """How long each resource is busy in a step: the step cannot be shorter than any of them."""
    bottleneck: str


def predict(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds, *, first_step: int = 0) -> Prediction:
    """The mean step from `first_step` on; the steps before fill caches and queues."""
    played = play(volumes, row_bytes, speeds)
    first_step = min(first_step, volumes.num_steps - 1)
    steady = volumes.from_step(first_step)
    lanes = _lanes(steady, row_bytes, speeds)
    parts = {
        COMPUTE: float(speeds.compute_seconds + exchanges.cache_seconds(steady, speeds).max(axis=1).mean()),
        WAITED: float(played.waited[first_step:].mean()),
        EXCHANGE: float(played.exchanged[first_step:].mean()),
        DENSE: dense_seconds(volumes.num_workers, speeds),
        BEHIND: float(played.late[first_step:].mean()),
    }
    mean = float(played.begin[-1] - played.begin[first_step]) / steady.num_steps
    seconds = max(mean, *lanes.values())
    return Prediction(step_seconds=seconds, parts=parts, lanes=lanes, bottleneck=_bottleneck(seconds, parts, lanes))


def _lanes(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> dict[str, float]:
    """How long each resource is busy in a mean step; of several trainers, the busiest."""
    read, write = (
        exchanges.read_seconds(volumes, row_bytes, speeds),
        exchanges.write_seconds(volumes, row_bytes, speeds),
    )
    stored_in, stored_out = exchanges.bytes_read(volumes, row_bytes), exchanges.bytes_written(volumes, row_bytes)
    exchange = Exchanges.of(volumes, row_bytes, speeds)
    busy = exchange.link_seconds.sum(axis=3) * speeds.exchange_link_share
    on_link = exchange.stored_seconds + busy  # [steps, workers, directions]
    dense = dense_link_seconds(volumes.num_workers, speeds)
    at_servers = float(max(stored_in.sum(axis=1).mean(), stored_out.sum(axis=1).mean()))
    served = float((volumes.fetched + volumes.refreshed + volumes.evicted + volumes.pushed).sum(axis=1).mean())
    return {
        PLANNER: speeds.planner_seconds,
        READER: float(read.mean(axis=0).max()),
        WRITER: float(write.mean(axis=0).max()),
        TRAINER_LINK: float(on_link.mean(axis=0).max()) + dense,
        SERVER_LINK: at_servers / speeds.num_servers / speeds.server_bytes_per_second,
        SERVERS: served / speeds.num_servers / speeds.server_rows_per_second,
        CORES: float(_processor_seconds(volumes, exchange, speeds).mean(axis=0).max()) / speeds.cores,
    }


def _processor_seconds(volumes: Volumes, exchange: Exchanges, speeds: Speeds) -> Float64:
    """[steps, workers]: work on the cores of a trainer's machine, whoever does it."""
    seconds: Float64 = (
        speeds.compute_seconds * speeds.compute_threads
        + exchanges.cache_seconds(volumes, speeds)
        + exchanges.read_processor_seconds(volumes, speeds)
        + exchanges.write_processor_seconds(volumes, speeds)
        + exchange.packed_seconds.sum(axis=2)
        + speeds.planner_seconds * speeds.planner_cores_here
    )
    return seconds


def _bottleneck(seconds: float, parts: dict[str, float], lanes: dict[str, float]) -> str:
    """A resource that is busy all the time, or else the largest part of a step."""
    busiest = max(lanes, key=lambda name: lanes[name])
    if lanes[busiest] >= 0.98 * seconds and lanes[busiest] > 1.1 * parts[COMPUTE]:
        return busiest
    named = {name: spent for name, spent in parts.items() if name not in (WAITED, BEHIND)}
    largest = max(named, key=lambda name: named[name])
    if named[largest] >= seconds - sum(named.values()):
        return largest
    return busiest if lanes[busiest] >= 0.8 * seconds else DEPENDENCY
