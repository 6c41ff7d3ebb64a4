"""`foresee train` as a function: a configuration in, a trained model and tables in a run folder out.

The loop is the one a person would write (`run.loop`); what happens beside it are callbacks. Everything that can be
found wrong is found before anything is written. A run that stops, however it stops, goes on with `resume=True` from
its last commit and ends with the same bytes as one that never stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from foresee.data.click_log import ClickLog
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.engine.trace.tracer import NULL_TRACER, Tracer
from foresee.errors import ConfigError
from foresee.io.units import counted
from foresee.io.urls import shown
from foresee.plan.record import Counters
from foresee.run import checkpoint
from foresee.run.backup import RunStorage, copying, opened_folder
from foresee.run.build import (
    build_model,
    check_alone,
    check_batch_fits,
    make_run,
    open_log,
    open_tables,
    plan_header,
    saved_plan,
    table_layout,
    train_stream,
)
from foresee.run.callbacks import Callback, EvaluateValid, Evaluation, Sink, TakeTime, of_log, tensorboard_sink
from foresee.run.config import AnyRun, RunConfig
from foresee.run.dense_state import Best, DenseHalf
from foresee.run.evaluation import group_position, ranked_task
from foresee.run.folder import BEHIND_FILE, RunFolder
from foresee.run.given_metrics import Given, GivenMetrics, given_metrics
from foresee.run.group import Alone, Group
from foresee.run.kept_plan import KeptPlan
from foresee.run.loop import Clip, Objective, clip_of, train_run
from foresee.run.memory import check_memory, in_words, memory_needed, rows_in_words, uses_in_words, window_in_words
from foresee.run.progress import Display, FoldDisplay, make_display, show_fold
from foresee.run.stop import Stop
from foresee.run.tasks import Tasks, tasks_of
from foresee.run.torch_settings import torch_settings
from foresee.store.disk.folder import kept_log_words
from foresee.store.registry import store_kind
from foresee.store.row_groups import groups_of
from foresee.store.shard_folders import finish_switch

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a call of `train` ended."""

    steps_done: int
    num_steps: int
    valid: Any
    """The figures of this call's last evaluation, if there was one; of clicks, `Metrics`."""
    counters: Counters
    """What this call moved."""
    ready_seconds: float
    """Until the first step was done: compiling kernels, reading ahead, planning the first window."""
    seconds: float
    """After the first step, to the end of the loop."""
    waited_seconds: float
    """Of `seconds`, waiting for rows."""
    exit_code: int
    """0, or what a shell expects after the signal that ended the loop."""
    best: Best
    """The best evaluation so far, if the configuration says by which figure."""

    @property
    def finished(self) -> bool:
        return self.steps_done == self.num_steps

    @property
    def wait_share(self) -> float:
        return self.waited_seconds / max(1e-9, self.seconds)


def train(
    config: RunConfig,
    *,
    resume: bool = False,
    replace: bool = False,
    stop_after: int | None = None,
    console: Console | None = None,
    display: Display | None = None,
    callbacks: Sequence[Callback] = (),
    metrics: Given = (),
) -> Outcome:
    """Trains to the end of the last epoch, until a signal, or until `stop_after` steps of the run are done.

    Args:
        config: The run, as `load_run` reads it.
        resume: Go on from the last commit of the run folder.
        replace: Start anew over a run that is there.
        stop_after: Stop when so many steps of the run are done, counted from its very first.
        console: Where progress goes.
        display: Takes progress instead of the console's own display.
        callbacks: Called after every step, before the commit of that step: one that sets `done.last` ends the run
            there, kept.
        metrics: More figures of every evaluation: objects of torchmetrics, or a dict of them by task.

    Returns:
        How it ended.
    """
    log = open_log(config)
    model, stream = build_model(config, log), train_stream(config, log)
    half = DenseHalf.of(config, model, stream.num_steps)
    tasks, given = checked_tasks(config, log, metrics)
    first_batch, saved, header = stream.batch(0), saved_plan(config, stream), plan_header(config, log, stream)
    kept: KeptPlan | None = None
    if saved is not None:
        check_alone(saved, header)
        kept = KeptPlan.from_saved(saved)
        header = kept.header
    check_batch_fits(header, first_batch, stream)
    memory = memory_needed(
        table_layout(config, log), header, first_batch, config.train.shuffle_samples,
        kind=store_kind(config.tables.store),
    )  # fmt: skip
    check_memory(memory)
    if resume:
        finish_switch(config.tables_folder)
    parts = Parts(
        digest=log.digest, half=half, group=Alone(model, precision=config.train.precision),
        objective=Objective.of(tasks), clip=clip_of(config.train.clip_norm, model),
        open_tables=lambda stored: open_tables(config, log, stored),
        make_run=lambda tables, num_threads: make_run(
            config, log, stream, tables, header, kept, num_threads=num_threads
        ),
        evaluation=lambda run: of_log(run, model, log, config.train.ranking, tasks, given),
        opening=lambda run, first_step: [
            _opening(config, run, first_step), in_words(memory), window_in_words(header, first_batch),
            *([uses_in_words(header, first_batch)] if header.options.uses_ahead_steps else []),
            *([kept.summary()] if kept is not None and first_step == kept.header.first_step else []),
        ],
    )  # fmt: skip
    return carry_out(
        config, parts, resume=resume, replace=replace, stop_after=stop_after, console=console, display=display,
        callbacks=callbacks,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a run of any kind is made of, checked and not yet begun."""

    digest: str
    """Of what is trained on."""
    half: DenseHalf
    group: Group
    objective: Objective
    open_tables: Callable[[RunStorage | None], Tables]
    """At the last commit that all parts have, here or in the storage."""
    make_run: Callable[[Tables, int], Run]
    """With so many threads, from the tables' last commit on."""
    evaluation: Callable[[Run], Evaluation | None]
    opening: Callable[[Run, int], Sequence[str]]
    """What is said when training begins after so many steps."""
    clip: Clip = lambda step: None
    keep: Callable[[Run], bool] = lambda run: False
    """Writes rows that would end with the process to the run folder, to be evaluated and exported; False: none."""


def carry_out(
    config: AnyRun, parts: Parts, *, resume: bool, replace: bool, stop_after: int | None, console: Console | None,
    display: Display | None, callbacks: Sequence[Callback],
) -> Outcome:  # fmt: skip
    """Trains what is ready, in its run folder; see `train`."""
    console, half = console or Console(), parts.half
    with (
        opened_folder(config, log_digest=parts.digest, resume=resume, replace=replace) as folder,
        copying(config) as stored,
        torch_settings(config.train.num_threads) as num_threads,
        FoldDisplay(console) as folding,
        parts.open_tables(stored) as tables,
        Stop(folder.stop_file) as stop,
        sinks_of(config, folder) as sinks,
        display or make_display(console) as display,
    ):
        for store in groups_of(tables.store):
            show_fold(store, folding, at_end=config.tables.fold)
        first_step = _restore(folder, tables.store.committed_step, half, stored)
        run = parts.make_run(tables, num_threads)
        run.tracer = recording(config)
        for line in parts.opening(run, first_step):
            display.say(line)
        if (way := getattr(run.tables.store, "way", None)) is not None:
            display.say(str(way))
        clock = TakeTime(run)
        valid = EvaluateValid(config, run, half, parts.group, parts.evaluation(run), folder, sinks, display)
        train_run(
            config, run, half, parts.group, folder, sinks, display, callbacks=[clock, valid, *callbacks],
            stop_asked=lambda: stop.asked, stop_after=stop_after, objective=parts.objective, clip=parts.clip,
            stored=stored,
        )  # fmt: skip
        outcome = Outcome(
            steps_done=run.steps_done,
            num_steps=run.stream.num_steps,
            valid=valid.result,
            counters=run.counters,
            ready_seconds=clock.ready_seconds,
            seconds=clock.seconds,
            waited_seconds=clock.waited_seconds,
            exit_code=stop.exit_code,
            best=half.best,
        )
        display.say(_closing(config, outcome, rows_kept=parts.keep(run)))
        if kept := kept_log_words(tables.store, config.tables_folder):
            display.say(kept)
    return outcome


def checked_tasks(config: RunConfig, log: ClickLog, metrics: Given = ()) -> tuple[Tasks, GivenMetrics]:
    """What is learned, and by what else it is judged; refuses what cannot be evaluated, before anything is written."""
    tasks, ranking, metric = tasks_of(config.tasks, log), config.train.ranking, config.train.best.metric
    given = given_metrics(config.train.metrics, tasks, metrics)
    known = [*tasks.figures, *given.figures(tasks)]
    if ranking.group is not None:
        group_position(log, ranking.group)
        known += [tasks.named(ranked_task(tasks), figure) for figure in ranking.figures]
    if metric is not None and metric not in known:
        more = "" if ranking.group is not None else "; with ranking.group also gauc, ndcg@K and recall@K"
        raise ConfigError(f"train.best.metric: there is no {metric!r}; choose one of {', '.join(known)}{more}")
    if config.train.best.metric is not None and "valid" not in log.split_sizes:
        raise ConfigError(f"train.best.metric: {config.log} has no valid split to evaluate on; leave the key out")
    return tasks, given


def _restore(folder: RunFolder, step: int, half: DenseHalf, stored: RunStorage | None) -> int:
    """Brings the dense half to the step the store is at. At step 0 it is there already: the seed gave it."""
    if stored is not None:
        stored.open_at(step)
    checkpoint.forget_after(folder.checkpoints, step)
    folder.forget_metrics_after(step)
    if step:
        half.load(folder.checkpoints, step)
        _logger.info("goes on from the commit of step %d", step)
        folder.mark(step)  # a stop may have come before the mark, or the run went back to the commit before
    return step


@contextmanager
def sinks_of(config: AnyRun, folder: RunFolder) -> Iterator[list[Sink]]:
    """Where lines of metrics go."""
    with ExitStack() as open_sinks:
        sinks: list[Sink] = [folder.append_metrics]
        if config.train.tensorboard:
            sinks.append(open_sinks.enter_context(tensorboard_sink(folder.tensorboard)))
        yield sinks


def recording(config: AnyRun) -> Tracer:
    """Return what records the run for `foresee report`, if anything does."""
    report = config.report
    if not report.timeline_steps and not report.series_points:
        return NULL_TRACER
    return Tracer(
        config.run, timeline_steps=report.timeline_steps, series_points=report.series_points,
        num_servers=config.num_servers,
    )  # fmt: skip


def _opening(config: RunConfig, run: Run, first_step: int) -> str:
    header, layout = run.header, run.tables.layout
    share = header.capacity_rows / layout.num_rows
    where = config.tables_folder if store_kind(config.tables.store).in_folder else config.tables.store
    begin = f"from step {first_step:,} on" if first_step else "from the start"
    return (
        f"{config.model.name} on {config.log}: {counted(run.stream.num_steps, 'step')} of "
        f"{config.train.batch_size:,} samples, {begin}\n"
        f"{rows_in_words(layout, header)} in {where}; cache of {header.capacity_rows:,} rows "
        f"({share:.1%}), planner {header.planner}{' as kept' if run.records is not None else ''}"
    )


def early_words(config: AnyRun, best: Best, steps_done: int, num_steps: int) -> str:
    """The end of a run that has run out of patience."""
    return (
        f"stopped early after {steps_done:,} of {counted(num_steps, 'step')}: {best.num_since} evaluations were no "
        f"better than {best.words()}, kept in {RunFolder(config.run).best}; use it with --best, or raise "
        "train.best.patience and go on with --resume"
    )


def _closing(config: AnyRun, outcome: Outcome, *, rows_kept: bool) -> str:
    if outcome.best.exhausted and not outcome.finished:
        return early_words(config, outcome.best, outcome.steps_done, outcome.num_steps)
    if outcome.finished and not outcome.counters.num_steps:
        done = "the only step was" if outcome.num_steps == 1 else f"all {outcome.num_steps:,} steps were"
        return f"{done} done already; raise train.epochs to go on"
    figures = (
        f"{outcome.counters.hit_rate:.1%} of a step's rows were in the cache, {outcome.wait_share:.1%} of the time "
        "was spent waiting for rows"
    )
    durable = store_kind(config.tables.store).durable
    copied = config.storage is not None and not (config.run / BEHIND_FILE).exists()
    there = f" and {shown(str(config.storage))}" if copied else ""
    where = f"kept in {config.run}{there}"
    if not durable and not rows_kept:
        where = "the rows were in memory and end with this process"
    if outcome.finished:
        return f"done: {counted(outcome.steps_done, 'step')}, {where}; {figures}"
    onwards = "; go on with --resume" if durable else ""
    num_steps = counted(outcome.num_steps, "step")
    return f"stopped after {outcome.steps_done:,} of {num_steps}, {where}; {figures}{onwards}"
