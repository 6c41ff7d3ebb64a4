"""A side of a comparison as a process of its own, stopped except while it answers.

`Process` starts a command and asks it questions, a line each; `serve` answers them in that process with a line of JSON.
Between answers the whole process is stopped, its background threads included: no side works while another is timed, or
ahead of its own clock.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

END_SECONDS = 60.0
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""
Answer = dict[str, Any]


class Process:
    """The asking end. Leaving it says that no question follows and waits for the end; after an error, it kills."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """before: called in the new process before the command takes it over."""
        self._name = " ".join(command[-2:])
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **(environment or {})}, preexec_fn=lambda: _prepare(before),
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT if kind is None else signal.SIGKILL)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait(timeout=END_SECONDS)
        self._process.stdout.close()
        if code != 0 and kind is None:
            sys.exit(f"the side {self._name} ended with code {code}")

    def ask(self, question: str) -> Answer:
        """What the side answers; it runs until then, and no longer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        try:
            print(question, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            sys.exit(f"the side {self._name} ended before it was asked to {question}")
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"the side {self._name} ended before it could {question}")
        self._process.send_signal(signal.SIGSTOP)
        answer: Answer = json.loads(line)
        return answer


def _prepare(before: Callable[[], None] | None) -> None:
    """In the new process: a side that is stopped when the comparison is killed must not stay behind."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if before is not None:
        before()


def serve(answers: Mapping[str, Callable[[], Answer]]) -> None:
    """Answers questions until there are no more."""
    for line in sys.stdin:
        print(json.dumps(answers[line.strip()]()), flush=True)
