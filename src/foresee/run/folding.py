"""The fold at the end of a run, as a person sees it: nothing if it takes a moment, else how far it is.

In: the store of a run, and whether the run file wants its rows in plain arrays when it ends. Out: a bar on a terminal,
one line elsewhere. Ctrl-C, or a kill, leaves the rest to whoever opens the tables next: the rows are in the log still.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
                f"{total:,} rows of the log go into rows.npy, which numpy reads; Ctrl-C leaves that to foresee fold",
                highlight=False, soft_wrap=True,
            )  # fmt: skip
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


def show_fold(store: object, shown: Callable[[int, int], None], *, at_end: bool) -> None:
    """How a store folds when it is closed, if it does."""
    if hasattr(store, "fold_at_end"):
        store.fold_at_end, store.fold_progress = at_end, shown  # type: ignore[attr-defined]
