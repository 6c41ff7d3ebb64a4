"""What has to happen beside training: show, write down, evaluate, save. Each is a callback with its own schedule.

In: `StepResult`, after every step. Out: lines on the display, lines in metrics.jsonl, checkpoints and commits. The loop
calls all callbacks in order and knows nothing of them. `CheckpointInterval` says when to commit: without a number of
seconds the next commit waits until the last one's cost is `COST_SHARE` of the time since, so that commits cost that
share of training, however large the tables are; and at least `SECONDS_MIN`, so that small runs are not all commits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from foresee.data.click_log import ClickLog
from foresee.engine.run import Run
from foresee.errors import ConfigError, UsageError
from foresee.io import failpoints, logs
from foresee.io.failpoints import failpoint
from foresee.run import checkpoint, task_metrics
from foresee.run.backup import RunStorage
from foresee.run.by_name import Schedule
from foresee.run.config import AnyRun, RankingConfig
from foresee.run.dense_state import BestFolder, DenseHalf
from foresee.run.evaluation import evaluate
from foresee.run.folder import RunFolder
from foresee.run.given_metrics import GivenMetrics
from foresee.run.group import Group
from foresee.run.metrics import Figures, Metrics, SampleWindow
from foresee.run.progress import Display, Meter
from foresee.run.tasks import Tasks
from foresee.store.contract import Store, TwoPhaseStore

_logger = logging.getLogger(__name__)

Sink = Callable[[dict[str, Any]], None]
"""Takes one line of metrics: kind, step and figures."""


@dataclass(slots=True, kw_only=True)
class StepResult:
    """A step that was carried out."""

    steps_done: int
    loss: float
    num_samples: int
    """Of all workers."""
    outputs: Tensor
    """What the model gave for this worker's samples: logits, [samples], or [samples, outputs] of several tasks."""
    labels: Tensor
    commit: bool
    """All workers have agreed that it is time, by the clock."""
    show: bool
    """All workers have agreed to give their figures for the display."""
    last: bool
    """The loop ends here, for whatever reason; a callback that comes first may decide so."""
    finished: bool
    """All steps of the run are done."""


class Callback(Protocol):
    """Something that looks at every step and acts on some."""

    def after(self, done: StepResult) -> None: ...


class LogSteps:
    """Log lines of this process say the step that it has done."""

    def after(self, done: StepResult) -> None:
        logs.at_step(done.steps_done)
        _logger.debug("loss %.6f", done.loss)


class MoveRate:
    """The learning rate of the dense part, as its schedule says after this step."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def after(self, done: StepResult) -> None:
        self._schedule.step(done.steps_done)


class FillWindow:
    """The samples just trained, for figures over the last ones."""

    def __init__(self, window: SampleWindow) -> None:
        self._window = window

    def after(self, done: StepResult) -> None:
        self._window.add(done.outputs.float().cpu().numpy(), done.labels.cpu().numpy())


class ShowProgress:
    """Readings for the display of worker 0, whenever one would be seen."""

    def __init__(self, meter: Meter, display: Display, group: Group) -> None:
        self._meter, self._display, self._group = meter, display, group

    def after(self, done: StepResult) -> None:
        self._meter.add(done.loss, done.num_samples)
        if not (done.show or done.last):
            return
        reading = self._meter.read()
        if self._group.rank == 0:
            self._display.show(reading)


class WriteMetrics:
    """Readings for the record, every so many steps."""

    def __init__(self, meter: Meter, run: Run, group: Group, sinks: Sequence[Sink], *, every_steps: int) -> None:
        self._meter, self._run, self._group, self._sinks, self._every_steps = meter, run, group, sinks, every_steps

    def after(self, done: StepResult) -> None:
        self._meter.add(done.loss, done.num_samples)
        if done.steps_done % self._every_steps == 0 or done.last:
            counters = self._run.counters
            moved_here = [float(it) for it in (counters.num_fetched, counters.num_evicted, self._run.bytes_moved)]
            fetched, written, num_bytes = map(int, self._group.sum(moved_here))
            moved = {
                "rows_fetched": fetched,
                "rows_written": written,
                "bytes_moved": num_bytes,
            }
            send({"kind": "train", **self._meter.read().as_dict(), **moved}, self._sinks)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a run is evaluated."""

    figures: Callable[[int | None], Any]
    """Of at most so many samples of the valid split, with the rows that the store has; None: of all."""
    in_words: Callable[[Any], str]
    """The same on one line."""


def of_log(
    run: Run, model: nn.Module, log: ClickLog, ranking: RankingConfig, tasks: Tasks, given: GivenMetrics
) -> Evaluation | None:
    """The evaluation of a log; None if it has no valid split."""

    def figures(samples_max: int | None) -> Any:
        return evaluate(
            model, run.tables.store, log, samples_max=samples_max, ranking=ranking, device=run.device,
            num_threads=run.num_threads, tasks=tasks, given=given,
        )  # fmt: skip

    return (
        Evaluation(figures, lambda found: task_metrics.in_words(found, in_words))
        if "valid" in log.split_sizes
        else None
    )


class EvaluateValid:
    """The valid split, every so many steps and when all are done; keeps the best, and ends a loop that has had it.

    All workers write what they hold, worker 0 computes, and nobody trains on before: it reads the rows of that step.
    """

    def __init__(
        self, config: AnyRun, run: Run, half: DenseHalf, group: Group, evaluation: Evaluation | None,
        folder: RunFolder, sinks: Sequence[Sink], display: Display,
    ) -> None:  # fmt: skip
        self._train, self._run, self._half, self._group, self._evaluation = config.train, run, half, group, evaluation
        self._best, self._sinks, self._display = BestFolder(folder), sinks, display
        self.result: Any = None
        """The figures of the last evaluation."""

    def after(self, done: StepResult) -> None:
        if not self._due(done):
            return
        self._run.flush()
        self._group.barrier()
        if self._group.rank == 0:
            self._evaluate_for_all(done)
        best = self._half.best
        best.take(self._group.share(best.numbers()))  # also a barrier: all wait, and then know what was found
        done.last = done.last or best.exhausted
        self._run.span("evaluate")

    def _due(self, done: StepResult) -> bool:
        every = self._train.evaluate_every_steps
        return self._evaluation is not None and (done.finished or (every is not None and done.steps_done % every == 0))

    def _evaluate_for_all(self, done: StepResult) -> None:
        """With the rows that the store has; all samples when the run is finished."""
        assert self._evaluation is not None
        samples_max, evaluate = self._train.evaluate_samples_max, self._evaluation.figures
        compared = self.result = evaluate(None if done.finished else samples_max)
        if done.finished and samples_max is not None and self._train.best.metric is not None:
            compared = evaluate(samples_max)  # on the samples that those before it had
        send({"kind": "valid", "step": done.steps_done, **self.result.as_dict()}, self._sinks)
        kept = "  the best so far, kept" if self._keep_if_best(done.steps_done, compared) else ""
        self._display.say(f"step {done.steps_done:,}  valid  {self._evaluation.in_words(self.result)}{kept}")

    def _keep_if_best(self, step: int, metrics: Figures) -> bool:
        before = self._half.best.step
        if not self._half.best.look(step, metrics):
            return False
        self._best.keep(step, self._run.tables.store, self._half, before=before)
        return True


class SaveCheckpoint:
    """One commit of rows and dense half; every so many steps, as often as its cost allows, at a best and at the end.

    All workers write what they hold, worker 0 commits for all, whose dense half is that of all, and nobody trains on
    before it is done.
    """

    def __init__(
        self, config: AnyRun, run: Run, half: DenseHalf, group: Group, folder: RunFolder, sinks: Sequence[Sink],
        clock: Callable[[], float] = time.monotonic, *, stored: RunStorage | None = None,
    ) -> None:  # fmt: skip
        self._stored, self._owed = stored, False
        self._every_steps = config.train.commit_every_steps
        self._interval = CheckpointInterval(config.train.commit_every_seconds, clock)
        self._run, self._half, self._group, self._folder = run, half, group, folder
        self._sinks, self._clock = sinks, clock
        self._copies = config.storage is not None
        self._store = two_phase(run.tables.store)
        self._num_shards = len(self._store.parts)

    def due(self) -> bool:
        """Is it time, by this worker's clock? With a storage worker 0 decides, which knows what is copied."""
        if not self._copies:
            return self._interval.due()
        self._owed = self._owed or self._interval.due() or self._by_steps(self._run.steps_done)
        return self._owed and self._stored is not None and self._stored.ready(lambda: self._store.parts)

    def _by_steps(self, step: int) -> bool:
        return self._every_steps is not None and step % self._every_steps == 0

    def after(self, done: StepResult) -> None:
        failpoint(failpoints.STEP_DONE)
        by_steps = self._by_steps(done.steps_done) and not self._copies
        # A best is known to the run once its step is committed: see `best_folder`.
        if done.last or by_steps or self._half.best.step == done.steps_done or done.commit:
            self.keep()

    def keep(self) -> None:
        """After this returns, a run that ends in any way can go on from here."""
        begun, step = self._clock(), self._run.steps_done
        self._run.flush()
        failpoint(failpoints.FLUSHED)
        self._group.barrier()
        if self._group.rank == 0:
            self._commit(step)
        self._group.barrier()
        seconds, self._owed = self._interval.committed(begun), False
        send({"kind": "commit", "step": step, "seconds": seconds}, self._sinks)
        _logger.info("committed in %.3f s", seconds)
        self._run.span("commit")

    def _commit(self, step: int) -> None:
        """All rows are in the store, and nobody writes before this is over."""
        self._store.prepare(step)
        failpoint(failpoints.PREPARED)
        self._half.save(self._folder.checkpoints, step, num_shards=self._num_shards)
        self._store.settle(step)
        failpoint(failpoints.SETTLED)
        self._folder.mark(step)  # all parts have the commit: others may know, and older ones may go
        failpoint(failpoints.MARKED)
        checkpoint.prune(self._folder.checkpoints)
        if self._stored is not None:
            self._stored.copy(step)

    def finish(self, say: Callable[[str], None]) -> None:
        """No commit follows: waits until the storage has the last one."""
        if self._stored is not None:
            self._stored.finish(lambda: self._store.parts, say)


def two_phase(store: Store) -> TwoPhaseStore:
    """The store of a run that keeps rows and dense half together."""
    if not isinstance(store, TwoPhaseStore):
        raise UsageError(f"{type(store).__name__} cannot commit in two phases; use a store that can")
    return store


def send(line: dict[str, Any], sinks: Sequence[Sink]) -> None:
    for sink in sinks:
        sink(line)


def in_words(metrics: Metrics) -> str:
    """The figures of an evaluation on one line."""
    if metrics.reason is not None:
        return metrics.reason
    figures = [
        ("AUC", metrics.auc, ".4f"),
        ("log loss", metrics.log_loss, ".4f"),
        ("normalised entropy", metrics.normalised_entropy, ".4f"),
        ("calibration", metrics.calibration, ".3f"),
    ]
    if metrics.ranking is not None:
        figures += [
            (name.upper().replace("RECALL", "recall"), value, ".4f")
            for name, value in metrics.ranking.figures().items()
        ]
    said = [f"{name} {value:{form}}" for name, value, form in figures if value is not None]
    return "  ".join([*said, f"({metrics.num_samples:,} samples)"])


@contextmanager
def tensorboard_sink(folder: Path) -> Iterator[Sink]:
    """The same lines for TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "train.tensorboard is true, but tensorboard is not installed; "
            "use `pip install foresee[tensorboard]`, or set it to false"
        ) from None
    writer: Any = SummaryWriter(str(folder))

    def sink(line: dict[str, Any]) -> None:
        for name, value in line.items():
            if isinstance(value, int | float) and name not in ("step", "num_steps"):
                writer.add_scalar(f"{line['kind']}/{name}", value, line["step"])

    try:
        yield sink
    finally:
        writer.close()


class TakeTime:
    """How long the run took, and how much of it the loop waited for rows once its first step was done."""

    def __init__(self, run: Run, clock: Callable[[], float] = time.perf_counter) -> None:
        self._run, self._clock = run, clock
        self._begun = clock()
        self._first: tuple[float, float] | None = None

    def after(self, done: StepResult) -> None:
        if self._first is None:
            self._first = self._clock() - self._begun, self._run.times.rows_seconds

    @property
    def ready_seconds(self) -> float:
        """Until the first step was done: compiling kernels, reading ahead, planning the first window."""
        return self._first[0] if self._first is not None else 0.0

    @property
    def seconds(self) -> float:
        """After the first step, until now."""
        return self._clock() - self._begun - self.ready_seconds

    @property
    def waited_seconds(self) -> float:
        """Of `seconds`, waiting for rows."""
        return self._run.times.rows_seconds - self._first[1] if self._first is not None else 0.0


COST_SHARE = 0.015
"""Of the time between two commits. What a commit still does in the background afterwards costs about as much again."""
SECONDS_MIN = 20.0


class CheckpointInterval:
    """Asked after every step; told of every commit."""

    def __init__(self, every_seconds: float | None, clock: Callable[[], float]) -> None:
        self._every_seconds, self._clock = every_seconds, clock
        self._last, self._cost_seconds = clock(), 0.0

    @property
    def interval_seconds(self) -> float:
        """From the end of the last commit to the next one."""
        if self._every_seconds is not None:
            return self._every_seconds
        return max(SECONDS_MIN, self._cost_seconds / COST_SHARE)

    def due(self) -> bool:
        return self._clock() - self._last >= self.interval_seconds

    def committed(self, begun: float) -> float:
        """A commit that began at this time is done; returns what it took."""
        self._last = self._clock()
        self._cost_seconds = self._last - begun
        return self._cost_seconds
