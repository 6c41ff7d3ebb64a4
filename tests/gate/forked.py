"""`foresee` commands as processes that start quickly: forks of this process, which has the libraries loaded.

Only `python -m foresee` is called, so nothing here knows a module of the package.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

PATIENCE_SECONDS = 300.0
"""Only a bound for runs that hang; machines may be busy."""


class FailedError(Exception):
    """A command or a function of a run that did not end well, with what it printed."""


def load_libraries() -> None:
    """Import what all commands need, once."""
    import numba  # noqa: F401
    import torch

    import foresee

    torch.set_num_threads(1)
    model = torch.nn.Linear(2, 1)
    torch.optim.Adam(model.parameters()).step()  # imports much more than one would think
    for name in foresee.__all__:
        getattr(foresee, name)


def fork(call: Callable[[], object], output: Path, environment: dict[str, str] | None = None) -> int:
    """Run a function in a process of its own; standard output and errors go into a file. Returns the process id."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.environ.update(environment or {})
        signal.signal(signal.SIGINT, signal.default_int_handler)
        call()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # the long way out takes seconds with torch loaded


def wait(process: int) -> int:
    """Exit code of a forked process; one that takes too long is killed."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.005)


def call(function: Callable[[], object], folder: Path) -> None:
    """Run a function in a process of its own to its end."""
    output = folder / "output.txt"
    code = wait(fork(function, output))
    if code:
        raise FailedError(f"a function ended with {code}:\n{output.read_text(errors='replace')[-3000:]}")


def foresee(*arguments: object, folder: Path) -> str:
    """Run a command to its end in a folder. Returns what it printed."""
    output = folder / "output.txt"
    code = wait(fork(lambda: _main(arguments, folder), output))
    text = output.read_text(errors="replace")
    if code:
        raise FailedError(f"foresee {' '.join(map(str, arguments))} ended with {code}:\n{text[-3000:]}")
    return text


@contextlib.contextmanager
def serving(*arguments: object, folder: Path) -> Iterator[None]:
    """A command that runs until SIGTERM."""
    output = folder / f"serving-{time.monotonic_ns()}.txt"
    process = fork(lambda: _main(arguments, folder), output)
    try:
        yield
    finally:
        os.kill(process, signal.SIGTERM)
        wait(process)


def wait_for(path: Path) -> None:
    """Wait until a file has something in it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (path.exists() and path.stat().st_size):
        if time.monotonic() > deadline:
            raise FailedError(f"{path} did not appear")
        time.sleep(0.005)


def _main(arguments: tuple[object, ...], folder: Path) -> None:
    os.chdir(folder)
    sys.argv = ["foresee", *map(str, arguments)]
    runpy.run_module("foresee", run_name="__main__", alter_sys=True)
