"""Stopping cleanly: the first Ctrl-C or SIGTERM asks the loop to end after its step, the second ends it at once.

In: signals. Out: `asked`, and the exit code that shells expect. Handlers are put back when the block is left. Outside
the main thread Python delivers no signals, and nothing is installed.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


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
