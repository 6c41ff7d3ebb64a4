"""How a process ends: asked to, after its step, so that it can commit; or at once, with the right code.

    with foresee.Stop("build/stop") as stop:
        for step in run:
            ...
            if stop.asked:
                break

`Stop`: a signal, a call of `ask` from any thread, or a file that somebody makes. The first Ctrl-C or SIGTERM asks, the
second ends the process; handlers are put back when the block is left. Outside the main thread Python installs none, as
in a loop that Ray Train runs: there file and call are what reaches it. A request is not lost: a file that is there
already asks at once, and it is removed only when the block is left after it was seen.

`ending_at_once`: for a worker, whose peers and threads may hang; Python's own ending would join threads that wait for
peers. In: what happened. Out: a sentence or a traceback on the error stream, and the exit code, by the class of the
error and never by its words (`foresee.errors` has the codes).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from foresee.errors import DONE_CODE, FAILED_CODE, INPUT_CODE, INTERRUPTED_CODE, ForeseeError
from foresee.io.files import file_sentence

LOOK_SECONDS = 0.25
"""A file is looked for so often at most: on a shared disk that takes its time."""


class Stop:
    """Use it as a context manager around a loop that looks at `asked` after each step.

    Args:
        file: Training is asked to stop when this file is there, whatever is in it; None: there is none to look for.
    """

    def __init__(self, file: str | Path | None = None) -> None:
        self.received: signal.Signals | None = None
        """The signal that asked, if one did."""
        self._file = None if file is None else Path(file)
        self._asked, self._file_seen, self._looked = threading.Event(), False, float("-inf")
        self._before: dict[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether somebody has asked; once it is true, it stays so."""
        return self.received is not None or self._asked.is_set() or self._seen()

    def ask(self) -> None:
        """Asks training to stop. Any thread may call it, and as often as it likes."""
        self._asked.set()

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended; 0: nobody has asked."""
        if self.received is None and not self._asked.is_set():
            return 0
        return 128 + (self.received or signal.SIGTERM)

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM):
                self._before[kind] = signal.signal(kind, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._file is not None and self._file_seen and error is None:
            self._file.unlink(missing_ok=True)

    def _seen(self) -> bool:
        if self._file is not None and time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            if self._file.exists():
                self._file_seen = True
                self.ask()
        return self._asked.is_set()

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
