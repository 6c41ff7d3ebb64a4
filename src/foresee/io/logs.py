"""What the processes of a run say of themselves beside their results: standard `logging`, one line for each event.

In: records of the loggers below `foresee`. Out: lines on the error stream with time, level, role, rank and step:

    2026-11-17 00:40:01.123 INFO server 1 step 300: rolled back to the commit of step 300

Each process calls `configure` once, where it begins. Results and progress are not logged: they are for a person and go
to stdout. Below a program that is not ours nothing is configured, and its own handlers decide.
"""

from __future__ import annotations

import logging
import sys
from enum import StrEnum
from typing import IO

LEVEL_VARIABLE = "FORESEE_LOG_LEVEL"
"""Takes the level of a launcher to its parts."""
FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(place)s: %(message)s"
TIME_FORMAT = "%Y-%m-%d %H:%M:%S"


class LogLevel(StrEnum):
    """How much is said."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _Place:
    """Where the process stands. One of a process: threads of a server have no other rank or step than it has."""

    role = "foresee"
    rank: int | None = None
    step: int | None = None

    def __str__(self) -> str:
        rank = "" if self.rank is None else f" {self.rank}"
        return f"{self.role}{rank}" + ("" if self.step is None else f" step {self.step}")


_PLACE = _Place()


def configure(level: LogLevel, role: str, rank: int | None = None) -> None:
    """Sends what the loggers of Foresee say, from this level on, to the error stream; called again, it replaces.

    Args:
        level: What is less than this is not shown.
        role: worker, server, planner, launcher or trainer.
        rank: Which of several; the shard of a server.
    """
    _PLACE.role, _PLACE.rank, _PLACE.step = role, rank, None
    logger = logging.getLogger("foresee")
    for handler in [it for it in logger.handlers if isinstance(it, _ErrorStream)]:
        logger.removeHandler(handler)
    logger.addHandler(_ErrorStream())
    logger.setLevel(level.value.upper())


def at_step(step: int) -> None:
    """The lines that follow say this step."""
    _PLACE.step = step


def level() -> LogLevel:
    """What is shown in this process, for the processes that it starts."""
    number, names = logging.getLogger("foresee").getEffectiveLevel(), logging.getLevelNamesMapping()
    return next((it for it in LogLevel if names[it.name] >= number), LogLevel.ERROR)


class _ErrorStream(logging.StreamHandler[IO[str]]):
    """Writes to whatever the error stream is when something is said: a display that redraws itself may have put its own
    there, and a forked process has another than the one it comes from."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(logging.Formatter(FORMAT, TIME_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        record.place = str(_PLACE)
        super().emit(record)
