"""The command `foresee`: starts at once, and turns what went wrong into a sentence and an exit code.

A person's mistake (InputError) is one sentence on the error stream and exit code 2, here and nowhere else; so is a file
or disk that the system does not let us use. A server or planner that is away (UnavailableError) is a sentence and 3.
Any other exception keeps its traceback: it is ours to repair. Ctrl-C is a word and 130, from the first import on:
therefore next to nothing is imported outside `main`.

`commands.py` lists the commands; each other module `name.py` is one of them, imported when it is invoked.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from foresee.errors import INTERRUPTED_CODE

WORD = "foresee: interrupted"


def main() -> None:
    """Runs the command of sys.argv."""
    try:
        with _interruptible():
            _run()
    except KeyboardInterrupt:
        print(WORD, file=sys.stderr)
        sys.exit(INTERRUPTED_CODE)
    except SystemExit as end:
        # typer makes this of a KeyboardInterrupt, without a word. A command that stops by itself has said its own.
        if end.code == INTERRUPTED_CODE and _was_interrupted(end):
            print(WORD, file=sys.stderr)
        raise


def _run() -> None:
    from foresee.io.machine import end_with_launcher, let_threads_sleep

    end_with_launcher()
    let_threads_sleep()
    from foresee.errors import INPUT_CODE, InputError, UnavailableError
    from foresee.tools.cli.commands import app

    try:
        app(prog_name="foresee")
    except (InputError, UnavailableError) as error:
        print(f"foresee: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        from foresee.io.files import file_sentence

        if (sentence := file_sentence(error)) is None:
            raise
        print(f"foresee: {sentence}", file=sys.stderr)
        sys.exit(INPUT_CODE)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the process at once while something is imported, and is a KeyboardInterrupt elsewhere."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, as with nohup, or somebody else's
        yield
        return
    try:
        signal.signal(signal.SIGINT, _interrupt)
    except ValueError:  # not in the main thread, which receives no signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _is_importing(frame):
        # A half-imported numpy or torch answers an exception with stranger ones. Leaving here is as safe as a kill,
        # which everything that writes withstands.
        os.write(2, f"{WORD}\n".encode())
        os._exit(INTERRUPTED_CODE)
    raise KeyboardInterrupt


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _was_interrupted(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
