"""Stopping cleanly: the first Ctrl-C or SIGTERM asks the loop to end after its step, the second ends it at once.

In: signals. Out: `asked`, and the exit code that shells expect. Handlers are put back when the block is left. Outside
the main thread Python delivers no signals, and nothing is installed.

How a worker process ends: at once, with the right code, whatever its threads and peers are doing.

In: what happened. Out: a sentence or a traceback on the error stream, and the end of the process: 0 done, 2 a person's
mistake, 3 another part was gone, 1 anything else, 130 and 143 after a signal. Python's own ending would join threads
that wait for peers.
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
from foresee.errors import ForeseeError, InputError
from foresee.launch.restarts import LOST_ANOTHER_CODE
from foresee.rpc.endpoint import TRANSPORT_ERRORS, is_refused_token


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


LOST_PEER = ("connection closed by peer", "connection reset by peer", "connection refused", "broken pipe", "timed out")

LOST_SERVER = ("it is stopping", "it was started again", "is not the one served here", "was given up")
"""What a server or planner says that is about to end, was replaced, or serves newer trainers."""


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Never returns to its caller."""
    code = 0
    try:
        yield
    except SystemExit as end:
        code = int(end.code or 0)
    except KeyboardInterrupt:
        code = 130
    except InputError as error:
        print(f"foresee: {error}", file=sys.stderr)
        code = LOST_ANOTHER_CODE if _lost_server(error) else 2
    except OSError as error:
        sentence = file_sentence(error)
        print(_told(error) if sentence is None else f"foresee: {sentence}", file=sys.stderr)
        code = 1 if sentence is None else 2
    except BaseException as error:
        lost = _lost_peer(error)
        print(lost or _told(error), file=sys.stderr)
        code = LOST_ANOTHER_CODE if lost else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _lost_server(error: InputError) -> bool:
    """Whether this is the end of a server or planner, and no mistake of a person."""
    cause = error.__cause__
    lost = isinstance(cause, TRANSPORT_ERRORS) and not is_refused_token(cause)
    return lost or any(sign in str(error) for sign in LOST_SERVER)


def _lost_peer(error: BaseException) -> str | None:
    """The sentence for a collective that broke because a peer is gone, if this is one."""
    text = str(error)
    if not isinstance(error, RuntimeError) or not any(sign in text.lower() for sign in LOST_PEER):
        return None
    cause = text.splitlines()[0].split("] ")[-1].split(". ")[0]
    return f"foresee: this worker lost another one ({cause}); see how that one ended, then resume from the last commit"


def _told(error: BaseException) -> str:
    if isinstance(error, ForeseeError):
        return f"foresee: {error}"
    return "".join(traceback.format_exception(error)).rstrip()
