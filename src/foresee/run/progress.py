"""What a run reports while it trains: readings of a meter, as a bar on a terminal or as a plain line now and then.

In: the loss and the logits of every step, and the run's own counters and waiting times. Out: a `Reading` for each
interval, and text. One meter for each reader: the display and the metrics file read at different intervals. The display
never measures or decides; `due` only says whether anyone would see a reading now, because making one costs a sort.

Time counts from the end of the first step on: before it kernels are compiled and a window is planned. What a resumed
run fetches to fill its cache is no miss of its first step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from foresee.engine.run import Run
from foresee.plan.record import Counters
from foresee.run.group import Group as Workers
from foresee.run.metrics import SampleWindow
from foresee.run.tasks import Tasks
from foresee.store.disk.folder import FoldAtEnd, FoldsAtEnd

PLAIN_SECONDS = 10.0
TERMINAL_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The state of a run, over the interval since the last reading; of all workers together."""

    step: int
    """Steps done."""
    num_steps: int
    samples: int
    """Samples trained so far, in all epochs."""
    seconds: float
    """Since this process began to train."""
    loss: float
    """Mean over the interval."""
    figures: dict[str, float | None]
    """By name, such as auc, of the latest predictions, each made before its sample was learned from."""
    samples_per_second: float | None
    """None, as is `wait_share`, before a second step: the first one has the start-up in it, which is no training."""
    hit_rate: float | None
    """Share of the distinct rows of the steps that were in the cache already; None if there were none."""
    wait_share: float | None
    """Share of the time that the loop waited for rows; the mean over workers."""

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON: figures stand beside the others."""
        content = asdict(self)
        return {**content.pop("figures"), **content}

    def line(self) -> str:
        known = [f"loss {self.loss:.4f}", *(_said(*it) for it in self.figures.items())]
        if self.samples_per_second is not None:
            known.append(f"{self.samples_per_second:,.0f} samples/s")
        if self.hit_rate is not None:
            known.append(f"hits {self.hit_rate:.1%}")
        if self.wait_share is not None:
            known.append(f"waited {self.wait_share:.1%}")
        return "  ".join(known)


def _said(name: str, value: float | None) -> str:
    words = " ".join(word.upper() if word in ("auc", "rmse") else word for word in name.replace(".", " ").split())
    return f"{words} {'  -  ' if value is None else f'{value:.4f}'}"


class Display(Protocol):
    """Where readings go."""

    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def due(self) -> bool:
        """Would a reading be shown now?"""
        ...

    def show(self, reading: Reading) -> None: ...

    def say(self, text: str) -> None:
        """A line that stays."""
        ...


def make_display(console: Console, clock: Callable[[], float] = time.monotonic) -> Display:
    return TerminalDisplay(console, clock) if console.is_terminal else PlainDisplay(console, clock)


class _Every:
    """True at most once in so many seconds."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._last = clock()

    def due(self) -> bool:
        return self._clock() - self._last >= self._seconds

    def done(self) -> None:
        self._last = self._clock()


class PlainDisplay:
    """Lines, for files and pipes."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console, self._every = console, _Every(PLAIN_SECONDS, clock)

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def due(self) -> bool:
        return self._every.due()

    def show(self, reading: Reading) -> None:
        self._every.done()
        self.say(f"step {reading.step:,} of {reading.num_steps:,}  {reading.line()}")

    def say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)


class TerminalDisplay:
    """A bar and the latest figures, which stay at the bottom; two lines, so that 80 columns are enough."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._every = _Every(TERMINAL_SECONDS, clock)
        self._progress = Progress(
            TextColumn("step {task.completed:,} of {task.total:,}"),
            BarColumn(bar_width=30),
            TimeRemainingColumn(),
            console=console,
        )
        self._figures = Text("planning the first steps …")
        self._live = Live(Group(self._progress, self._figures), console=console, transient=True)
        self._task = self._progress.add_task("", total=None, visible=False)

    def __enter__(self) -> TerminalDisplay:
        self._live.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._live.stop()

    def due(self) -> bool:
        return self._every.due()

    def show(self, reading: Reading) -> None:
        self._every.done()
        self._figures.plain = reading.line()
        self._progress.update(self._task, completed=reading.step, total=reading.num_steps, visible=True)

    def say(self, text: str) -> None:
        self._live.console.print(text, highlight=False)


class Meter:
    """Sums since the last reading."""

    def __init__(
        self,
        run: Run,
        workers: Workers,
        tasks: Tasks | None,
        window: SampleWindow | None,
        *,
        samples_before: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._run, self._workers, self._tasks, self._window, self._clock = run, workers, tasks, window, clock
        self._begun = clock()
        self._samples = samples_before
        self._warm = False
        """The first step is done."""
        self._loss, self._num_steps, self._num_samples = 0.0, 0, 0
        self._forget()

    def add(self, loss: float, num_samples: int) -> None:
        """Counts a step in."""
        self._loss += loss
        self._num_steps += 1
        self._samples += num_samples
        if self._warm:
            self._num_samples += num_samples
        else:
            self._warm, self._last, self._waited = True, self._clock(), self._run.times.rows_seconds

    def read(self) -> Reading:
        """The interval since the last reading; a new one begins. All workers call it at the same point."""
        now, counters = self._clock(), self._run.counters
        seconds, timed = max(now - self._last, 1e-9), self._num_samples > 0
        num_unique, num_fetched, waited = self._workers.sum([
            counters.num_unique - self._counters.num_unique,
            counters.num_fetched - self._counters.num_fetched - (self._run.rows_refilled - self._refilled),
            self._run.times.rows_seconds - self._waited,
        ])  # fmt: skip
        wait_share = min(1.0, waited / (self._workers.num_workers * seconds))
        reading = Reading(
            step=self._run.steps_done,
            num_steps=self._run.stream.num_steps,
            samples=self._samples,
            seconds=now - self._begun,
            loss=self._loss / max(1, self._num_steps),
            figures=self._figures(),
            samples_per_second=self._num_samples / seconds if timed else None,
            hit_rate=1.0 - num_fetched / num_unique if num_unique else None,
            wait_share=wait_share if timed else None,
        )
        self._forget()
        return reading

    def _figures(self) -> dict[str, float | None]:
        if self._tasks is None or self._window is None:
            return {}
        if not (kept := self._window.samples()):
            return dict.fromkeys(self._tasks.shown)
        return self._tasks.measured(*map(self._workers.join, kept))

    def _forget(self) -> None:
        self._last = self._clock()
        self._counters: Counters = self._run.counters
        self._waited, self._refilled = self._run.times.rows_seconds, self._run.rows_refilled
        self._loss, self._num_steps, self._num_samples = 0.0, 0, 0


PATIENCE_SECONDS = 1.0


class FoldDisplay:
    """Called with rows done and rows in all; a context that ends what it shows."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._begun: float | None = None
        self._said = False
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("rows of the log into rows.npy")

    def __enter__(self) -> FoldDisplay:
        return self

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        self._begun = now if self._begun is None else self._begun
        if now - self._begun < PATIENCE_SECONDS:
            return
        if not self._said:
            self._said = True
            self._console.print(
                f"writing {total:,} rows of the log to rows.npy, which numpy reads; Ctrl-C leaves that to foresee fold",
                highlight=False, soft_wrap=True,
            )  # fmt: skip
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def show_fold(store: object, shown: Callable[[int, int], None], *, at_end: FoldAtEnd) -> None:
    """Set whether a store folds when it is closed, and what shows its progress; a store without a log does neither."""
    if isinstance(store, FoldsAtEnd):
        store.fold_at_end, store.fold_progress = at_end, shown
