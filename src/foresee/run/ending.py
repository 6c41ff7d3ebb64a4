"""How a process ends: asked by a signal, after its step; or at once, with the right code, whatever its threads do.

`StopSignals`: the first Ctrl-C or SIGTERM asks the loop to end after its step, the second ends it at once. Handlers are
put back when the block is left; outside the main thread Python delivers no signals, and nothing is installed.

`ending_at_once`: for a worker, whose peers and threads may hang; Python's own ending would join threads that wait for
peers. In: what happened. Out: a sentence or a traceback on the error stream, and the exit code, by the class of the
error and never by its words (`foresee.errors` has the codes).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from foresee.base.files import file_sentence
from foresee.errors import DONE_CODE, FAILED_CODE, INPUT_CODE, INTERRUPTED_CODE, ForeseeError


class StopSignals:
    """Use it as a context manager around a loop that looks at `asked`."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        return self.received is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended."""
        return 0 if self.received is None else 128 + self.received

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM):
                self._before[kind] = signal.signal(kind, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Never returns to its caller."""
    code = DONE_CODE
    try:
        yield
    except SystemExit as end:
        code = int(end.code or 0)
    except KeyboardInterrupt:
        code = INTERRUPTED_CODE
    except BaseException as error:
        print(_told(error), file=sys.stderr)
        code = exit_code(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def exit_code(error: BaseException) -> int:
    """By the class of an error; a file or disk that the system does not let us use is for a person to look at."""
    if isinstance(error, ForeseeError):
        return error.exit_code
    return INPUT_CODE if isinstance(error, OSError) and file_sentence(error) is not None else FAILED_CODE


def _told(error: BaseException) -> str:
    sentence = file_sentence(error) if isinstance(error, OSError) else None
    if isinstance(error, ForeseeError) or sentence is not None:
        return f"foresee: {sentence or error}"
    return "".join(traceback.format_exception(error)).rstrip()
