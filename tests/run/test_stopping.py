"""A stop reaches a loop wherever it runs: by a signal, by a call from another thread, by a file."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from foresee.run import stop as ending
from foresee.run.stop import Stop


def test_the_first_signal_asks_and_the_second_ends() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Stop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        assert stop.exit_code == 143
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_thread_is_asked_by_a_call_and_a_signal_is_still_the_first() -> None:
    with Stop() as stop:
        asking = threading.Thread(target=stop.ask)
        asking.start()
        asking.join()
        assert stop.asked
        os.kill(os.getpid(), signal.SIGINT)  # not a second one: the call was none
    assert stop.exit_code == 130


def test_a_loop_in_a_thread_sees_a_file_and_removes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seen = tmp_path / "stop", list[bool]()

    monkeypatch.setattr(ending, "LOOK_SECONDS", 3600.0)

    def loop() -> None:
        handler = signal.getsignal(signal.SIGTERM)
        with Stop(file) as stop:
            seen.append(stop.asked)
            file.touch()
            seen.append(stop.asked)  # it was looked for a moment ago
            monkeypatch.setattr(ending, "LOOK_SECONDS", 0.0)
            seen.append(stop.asked)
            assert signal.getsignal(signal.SIGTERM) is handler
        seen.append(file.exists())
        seen.append(stop.exit_code == 143)

    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    assert seen == [False, False, True, False, True]


def fail_after_a_look(file: Path) -> None:
    with Stop(file) as stop:
        assert stop.asked
        raise ZeroDivisionError


def test_a_request_that_was_not_seen_stays(tmp_path: Path) -> None:
    file = tmp_path / "stop"
    file.touch()
    with pytest.raises(ZeroDivisionError):
        fail_after_a_look(file)
    assert file.exists(), "nothing was committed for it"
    with Stop(file):
        pass
    assert file.exists()
