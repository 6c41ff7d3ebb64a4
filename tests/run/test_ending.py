"""How a worker ends: with the code of its error's class. What the error says is printed, and decides nothing."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

import pytest

from foresee.errors import (
    ConfigError,
    ConsistencyError,
    LostWriteError,
    PeerLostError,
    PlanUnavailableError,
    StoreError,
    StoreUnavailableError,
    UsageError,
)
from foresee.run.stop import ending_at_once


class Ended(BaseException):
    """What os._exit is here."""


def code_after(error: BaseException | None, monkeypatch: pytest.MonkeyPatch) -> int:
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(os, "_exit", end)
    with suppress(Ended), ending_at_once():
        if error is not None:
            raise error
    (code,) = codes
    return code


def caused_by(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


OLD_WORDS = "it is stopping; it was started again; is not the one served here; was given up; connection reset by peer"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (SystemExit(0), 0),
        (SystemExit(143), 143),
        (KeyboardInterrupt(), 130),
        (StoreUnavailableError("x"), 3),
        (PlanUnavailableError("x"), 3),
        (PeerLostError("x"), 3),
        (ConfigError("x"), 2),
        (StoreError(OLD_WORDS), 2),
        (caused_by(StoreError("x cannot be written"), OSError(errno.EACCES, "Permission denied", "x")), 2),
        (OSError(errno.ENOSPC, "No space left on device", "rows.bin"), 2),
        (UsageError("x"), 1),
        (ConsistencyError(OLD_WORDS), 1),
        (LostWriteError("x"), 1),
        (RuntimeError(OLD_WORDS), 1),
    ],
    ids=repr,
)
def test_the_class_of_an_error_is_the_exit_code(
    error: BaseException | None, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_after(error, monkeypatch) == code
    told = capsys.readouterr().err
    assert told.startswith("foresee: ") == (error is not None and code in (1, 2, 3) and type(error) is not RuntimeError)
