"""The display of a run, one process away: worker 0 writes lines of JSON, the launcher shows them.

In, at the worker: readings and sentences. Out: lines. In, at the launcher: those lines. Out: calls of a real display.
Other output of the worker passes by unharmed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import IO, Any

from foresee.engine.progress import TERMINAL_SECONDS, Display, Reading

MARK = '{"foresee": '


class SilentDisplay:
    """For all workers but the first."""

    def __enter__(self) -> SilentDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def due(self) -> bool:
        return False

    def show(self, reading: Reading) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class RelayedDisplay(SilentDisplay):
    """Writes lines for a launcher."""

    def __init__(self, file: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._last = clock()

    def due(self) -> bool:
        return self._clock() - self._last >= TERMINAL_SECONDS

    def show(self, reading: Reading) -> None:
        self._last = self._clock()
        self._write("reading", asdict(reading))

    def say(self, text: str) -> None:
        self._write("say", text)

    def _write(self, kind: str, content: Any) -> None:
        print(json.dumps({"foresee": kind, "content": content}), file=self._file, flush=True)


def relay(line: str, display: Display) -> bool:
    """Shows a line of `RelayedDisplay`; False if it is something else."""
    if not line.startswith(MARK):
        return False
    try:
        message = json.loads(line)
        kind, content = message["foresee"], message["content"]
        if kind == "say":
            display.say(str(content))
        elif display.due() or content["step"] == content["num_steps"]:
            display.show(Reading(**content))
    except (ValueError, KeyError, TypeError):
        return False
    return True
