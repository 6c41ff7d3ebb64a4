"""A side of a comparison as a process of its own, stopped except while it answers.

`Process` starts a command and asks it questions, a line each; `serve` answers them in that process with a line of JSON.
Between answers the process is stopped, with its background threads and what it forked: no side works while another is
timed, or ahead of its own clock. `in_a_fork` is for a side that has several things to do one after the other: it
imports its libraries once, and still has a process of its own for each of them.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import traceback
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
        self._signal(signal.SIGCONT if kind is None else signal.SIGKILL)
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
        self._signal(signal.SIGCONT)
        try:
            print(question, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            sys.exit(f"the side {self._name} ended before it was asked to {question}")
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"the side {self._name} ended before it could {question}{self._reason()}")
        self._signal(signal.SIGSTOP)
        answer: Answer = json.loads(line)
        return answer

    def _reason(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            if self._process.wait(timeout=END_SECONDS) == -signal.SIGKILL:
                return ": it was killed, as the system does where a memory limit is reached; give a larger --limit-mb"
        return ""

    def _signal(self, number: signal.Signals) -> None:
        """To the process and to what it forked."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _prepare(before: Callable[[], None] | None) -> None:
    """In the new process: a side that is stopped when the comparison is killed must not stay behind."""
    os.setpgid(0, 0)
    _die_with_parent()
    if before is not None:
        before()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


def serve(answers: Mapping[str, Callable[[], Answer]], *, last: str | None = None) -> None:
    """Answers questions until there are no more, or until `last` is answered."""
    for line in sys.stdin:
        say(answers[line.strip()]())
        if line.strip() == last:
            return


def say(answer: Answer) -> None:
    print(json.dumps(answer), flush=True)


def in_a_fork(work: Callable[[], None]) -> None:
    """Does the work in a process of its own and waits for its end.

    The caller must not have computed on several threads before: a fork has none of them, and would wait for them.
    """
    if child := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != 0:
            sys.exit(f"a fork of the side ended with code {code}")
        return
    code = 1
    try:
        _die_with_parent()
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Nothing is left to be saved, and taking down torch and a gigabyte of tables would take a second.
        os._exit(code)
