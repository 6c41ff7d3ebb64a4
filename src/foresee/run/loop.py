"""The training loop: forward, backward, update, and whatever has to happen beside it.

In: steps whose rows are there (`Run`), the group that trains them, and callbacks. Out: a trained model and tables. It
is the only such loop of this package, for one process and for several, and it decides nothing: rows move as the plan
says, and callbacks show, evaluate and save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from foresee.engine.loop import Run
from foresee.engine.step import Step
from foresee.errors import ConfigError
from foresee.run import checkpoint
from foresee.run.callbacks import (
    Callback,
    FillWindow,
    LogSteps,
    MoveRate,
    SaveCheckpoint,
    ShowProgress,
    Sink,
    StepResult,
    WriteMetrics,
)
from foresee.run.config import AnyRun
from foresee.run.dense_half import DenseHalf
from foresee.run.group import Group
from foresee.run.metrics import MetricsWindow
from foresee.run.progress import Display, Meter
from foresee.run.run_folder import RunFolder


def train_run(
    config: AnyRun, run: Run, half: DenseHalf, group: Group, folder: RunFolder, sinks: Sequence[Sink],
    display: Display, *, callbacks: Sequence[Callback], stop_asked: Callable[[], bool], stop_after: int | None,
    task: Task | None = None,
) -> None:  # fmt: skip
    """Trains with all that a run folder gets. `callbacks` act before progress is shown and state is saved."""
    save = SaveCheckpoint(config, run, half, group, folder, sinks)
    if half.best.exhausted or (stop_after is not None and run.steps_done >= stop_after):
        return
    task = task or CLICKS
    shown = _readings(config, run, task, sinks, display) if group.rank == 0 else []
    train_steps(
        run, half.optimizer, group, [LogSteps(), MoveRate(half.schedule), *callbacks, *shown, save],
        stop_asked=stop_asked, commit_due=save.due, stop_after=stop_after, task=task,
    )  # fmt: skip


def _readings(config: AnyRun, run: Run, task: Task, sinks: Sequence[Sink], display: Display) -> list[Callback]:
    """Progress on the display and in the record, each since its own last reading."""
    window, samples_before = (
        MetricsWindow() if task.has_labels else None,
        run.header.first_step * config.train.batch_size,
    )
    shown, written = (Meter(run, window, samples_before=samples_before) for _ in range(2))
    every_steps = config.train.log_every_steps
    return [
        *([FillWindow(window)] if window is not None else ()),
        ShowProgress(shown, display),
        WriteMetrics(written, run, sinks, every_steps=every_steps),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is learned: where runs of different kinds differ inside the loop."""

    loss: Callable[[torch.Tensor, Step], torch.Tensor]
    """Of what the model gave for a step's samples."""
    num_samples: Callable[[Step], int]
    """Of a step, those of all workers."""
    has_labels: bool
    """Samples have a logit and a label each, so there are figures over the latest of them."""
    summed: bool = False
    """The loss is a sum over samples; their mean is shown."""


def train_steps(
    run: Run,
    optimizer: torch.optim.Optimizer,
    group: Group,
    callbacks: Sequence[Callback],
    *,
    stop_asked: Callable[[], bool] = lambda: False,
    commit_due: Callable[[], bool] = lambda: False,
    stop_after: int | None = None,
    task: Task | None = None,
) -> None:
    """To the last step, until any worker is asked to stop, or until a callback or `stop_after` says so."""
    task = task or CLICKS
    group.model.train()
    with closing(iter(run)) as steps:
        for step in steps:
            logits = group.forward(step)
            # All gradients are averaged over workers: weighted by its samples, each worker's mean is its part of the
            # batch's. Where all have the same number the weight is exactly 1, which changes no bit.
            num_samples = task.num_samples(step)
            loss = task.loss(logits, step) * (group.num_workers * len(logits) / num_samples)
            mean = _finite(loss.item() / (num_samples if task.summed else 1), step)
            step.span("forward")
            loss.backward()  # type: ignore[no-untyped-call]
            step.span("backward")
            optimizer.step()
            optimizer.zero_grad()
            step.span("dense")
            step.update()
            agreed = group.agree(stop=stop_asked(), commit=commit_due(), loss=mean)
            finished = run.steps_done == run.stream.num_steps
            done = StepResult(
                steps_done=run.steps_done,
                loss=mean if agreed.loss is None else agreed.loss,
                num_samples=num_samples,
                logits=logits.detach(),
                labels=step.labels,
                commit=agreed.commit,
                last=finished or agreed.stop or run.steps_done == stop_after,
                finished=finished,
            )
            for callback in callbacks:
                callback.after(done)
            if done.last:
                break
    group.close()


def loss_of(logits: torch.Tensor, step: Step) -> torch.Tensor:
    """The mean over the step's samples; refuses logits of another shape."""
    if logits.shape != step.labels.shape:
        raise ConfigError(
            f"model.name: the model gives logits of shape {tuple(logits.shape)} for {len(step.labels)} samples; "
            "it must give one logit for each sample, [samples]"
        )
    return binary_cross_entropy_with_logits(logits, step.labels)


def _finite(loss: float, step: Step) -> float:
    """The loss itself; refuses a training that has diverged."""
    if not math.isfinite(loss):
        raise checkpoint.diverged(step.index, f"the loss is {loss}")
    step.learned(loss)
    return loss


CLICKS = Task(loss=loss_of, num_samples=lambda step: step.batch_size, has_labels=True)
"""A logit and a label for each sample of a click log."""
