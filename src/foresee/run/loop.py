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
from torch import nn

from foresee.engine.run import Run
from foresee.engine.step import Step
from foresee.run import checkpoint
from foresee.run.backup import RunStorage
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
from foresee.run.dense_state import DenseHalf
from foresee.run.folder import RunFolder
from foresee.run.group import Group
from foresee.run.metrics import SampleWindow
from foresee.run.progress import Display, Meter
from foresee.run.tasks import CLICKS, Tasks

Clip = Callable[[Step], object]
"""What is done to the gradients of a step before anything is updated."""


def clip_of(max_norm: float | None, model: nn.Module) -> Clip:
    """Gradients of weights and rows at most so large together; without a norm they stay as they are."""
    if max_norm is None:
        return lambda step: None
    return lambda step: step.clip_grad_norm(model.parameters(), max_norm)


WINDOW_SAMPLES = 65_536
"""Figures of training are over so many of the latest samples, of all workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What is learned: where runs of different kinds differ inside the loop."""

    loss: Callable[[torch.Tensor, Step], torch.Tensor]
    """Of what the model gave for a step's samples."""
    num_samples: Callable[[Step], int]
    """Of a step, those of all workers."""
    tasks: Tasks | None = None
    """Where samples have labels: what figures over the latest of them are made of."""
    summed: bool = False
    """The loss is a sum over samples; their mean is shown."""

    @classmethod
    def of(cls, tasks: Tasks) -> Objective:
        """The labels of a log."""
        return cls(
            loss=lambda outputs, step: tasks.loss(outputs, step.labels, step.sample_weights),
            num_samples=lambda step: step.batch_size,
            tasks=tasks,
        )


def train_run(
    config: AnyRun, run: Run, half: DenseHalf, group: Group, folder: RunFolder, sinks: Sequence[Sink],
    display: Display, *, callbacks: Sequence[Callback], stop_asked: Callable[[], bool], stop_after: int | None,
    objective: Objective, clip: Clip = lambda step: None, stored: RunStorage | None = None,
) -> None:  # fmt: skip
    """Trains with all that a run folder gets. `callbacks` act before progress is shown and state is saved."""
    save = SaveCheckpoint(config, run, half, group, folder, sinks, stored=stored)
    if half.best.exhausted or (stop_after is not None and run.steps_done >= stop_after):
        save.finish(display.say)
        return
    shown = _readings(config, run, group, objective, sinks, display)
    train_steps(
        run, half.optimizer, group, [LogSteps(), MoveRate(half.schedule), *callbacks, *shown, save],
        stop_asked=stop_asked, commit_due=save.due, show_due=display.due, stop_after=stop_after, objective=objective,
        clip=clip,
    )  # fmt: skip
    save.finish(display.say)


def _readings(
    config: AnyRun, run: Run, group: Group, objective: Objective, sinks: Sequence[Sink], display: Display
) -> list[Callback]:
    """Progress on the display and in the record, each since its own last reading; of all workers together."""
    tasks, samples_before = objective.tasks, run.header.first_step * config.train.batch_size
    window = SampleWindow(samples_max=WINDOW_SAMPLES // group.num_workers) if tasks is not None else None
    shown, written = (Meter(run, group, tasks, window, samples_before=samples_before) for _ in range(2))
    return [
        *([FillWindow(window)] if window is not None else ()),
        ShowProgress(shown, display, group),
        WriteMetrics(written, run, group, sinks, every_steps=config.train.log_every_steps),
    ]


def train_steps(
    run: Run,
    optimizer: torch.optim.Optimizer,
    group: Group,
    callbacks: Sequence[Callback],
    *,
    stop_asked: Callable[[], bool] = lambda: False,
    commit_due: Callable[[], bool] = lambda: False,
    show_due: Callable[[], bool] = lambda: False,
    stop_after: int | None = None,
    objective: Objective | None = None,
    clip: Clip = lambda step: None,
) -> None:
    """To the last step, until any worker is asked to stop, or until a callback or `stop_after` says so."""
    objective = objective or Objective.of(CLICKS)
    group.model.train()
    with closing(iter(run)) as steps:
        for step in steps:
            outputs = group.forward(step)
            # All gradients are averaged over workers: weighted by its samples, each worker's mean is its part of the
            # batch's. Where all have the same number the weight is exactly 1, which changes no bit.
            num_samples = objective.num_samples(step)
            loss = objective.loss(outputs, step) * (group.num_workers * len(outputs) / num_samples)
            mean = _finite(loss.item() / (num_samples if objective.summed else 1), step)
            step.span("forward")
            loss.backward()  # type: ignore[no-untyped-call]
            step.span("backward")
            clip(step)
            optimizer.step()
            optimizer.zero_grad()
            step.span("dense")
            step.update()
            agreed = group.agree(stop=stop_asked(), commit=commit_due(), show=show_due(), loss=mean)
            finished = run.steps_done == run.stream.num_steps
            done = StepResult(
                steps_done=run.steps_done,
                loss=mean if agreed.loss is None else agreed.loss,
                num_samples=num_samples,
                outputs=outputs.detach(),
                labels=step.labels,
                commit=agreed.commit,
                show=agreed.show,
                last=finished or agreed.stop or run.steps_done == stop_after,
                finished=finished,
            )
            for callback in callbacks:
                callback.after(done)
            if done.last:
                break
    group.close()


def _finite(loss: float, step: Step) -> float:
    """The loss itself; refuses a training that has diverged."""
    if not math.isfinite(loss):
        raise checkpoint.diverged(step.index, f"the loss is {loss}")
    step.learned(loss)
    return loss
