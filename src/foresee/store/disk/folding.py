"""When closing a table folder folds its log, and what a person is told of it.

Folding writes each row once more, in blocks of 4096 bytes, so it may take longer than the run that wrote the rows. The
log is as durable as `rows.npy`; only numpy cannot read it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from foresee.store.row_groups import groups_of

FoldAtEnd = Literal["auto", "always", "never"]
"""Whether closing a folder brings its last commit into `rows.npy`; auto: if the log has at most FOLD_BYTES_MAX."""
FOLD_BYTES_MAX = 1 << 28
PATIENCE_SECONDS, LINE_SECONDS = 1.0, 10.0
"""A fold that takes longer is announced, and its progress is printed so often."""


class FoldLines:
    """Prints the progress of a fold that takes longer than a moment; called with rows done and rows in all."""

    def __init__(
        self, folder: Path, say: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._say, self._clock = folder, say or tell, clock
        self._due: float | None = None

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        self._due = now + PATIENCE_SECONDS if self._due is None else self._due
        if now >= self._due:
            self._due = now + LINE_SECONDS
            self._say(
                f"{done:,} of {total:,} rows of the log are in {self._folder}/rows.npy, which numpy reads; "
                'Tables.on_disk(fold="never") leaves this to foresee fold'
            )


def kept_log_words(store: Any, folder: Path) -> str | None:
    """Say what stays in the log when a store is closed, because the log is large; None if nothing does."""
    num_bytes = sum(getattr(group, "kept_log_bytes", 0) for group in groups_of(store))
    if not num_bytes:
        return None
    return (
        f"{num_bytes / 1e9:,.1f} GB of rows stay in the log of {folder}, where training, evaluation and export read "
        f"them; to write them to rows.npy, for numpy: foresee fold {folder}"
    )


def tell(text: str) -> None:
    print(f"foresee: {text}", file=sys.stderr, flush=True)
