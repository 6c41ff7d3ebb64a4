"""The file of one worker's recording: RUN/timeline/worker-N.jsonl, one JSON object a line.

In: lines. Out: a file that a later start of the run continues. Steps that will be trained again are forgotten first, so
that every step stands there once and the file does not grow with the number of starts. A recording is no result: what
cannot be written is given up with a warning, once, and training goes on.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from foresee.store.disk.files import Files

TIMELINE_FOLDER = "timeline"


class TimelineFile:
    """Appends to a worker's file."""

    def __init__(self, run_folder: Path, worker: int) -> None:
        self.path = run_folder / TIMELINE_FOLDER / f"worker-{worker}.jsonl"
        self._given_up = False

    def forget_from(self, step: int) -> None:
        """Keeps what was recorded of the steps before this one."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            kept = [json.dumps(line) + "\n" for line in self._lines() if step and before(line, step)]
            Files().publish(self.path, "".join(kept).encode())
        except OSError as error:
            self._give_up(error)

    def append(self, lines: Sequence[dict[str, Any]]) -> None:
        """In one write, so that a reader sees whole lines."""
        if self._given_up or not lines:
            return
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))
        except OSError as error:
            self._give_up(error)

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for text in self.path.read_text("utf-8").splitlines():
            try:
                yield json.loads(text)
            except json.JSONDecodeError:
                continue  # half a line of a process that was killed

    def _give_up(self, error: OSError) -> None:
        self._given_up = True
        warnings.warn(
            f"{self.path} cannot be written ({error.strerror}); training goes on, and `foresee report` will show less",
            RuntimeWarning,
            stacklevel=2,
        )


def before(line: dict[str, Any], step: int) -> bool:
    """Is this a line of steps before `step`? Points of the series count the steps done, spans name their step."""
    return bool(line["step"] < step or (line["step"] == step and line["kind"] in ("series", "tables")))
