"""The watch that every test is under sees each kind of leak, and nothing where there is none."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import leaks
from leaks import held, left_behind

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not list open files")


def test_nothing_is_found_where_nothing_was_left(tmp_path: Path) -> None:
    before = held()
    (tmp_path / "file").write_text("closed")
    thread = threading.Thread(target=lambda: None)
    thread.start()
    assert left_behind(before) == []


def test_a_thread_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "FAREWELL_SECONDS", 0.01)
    before, end = held(), threading.Event()
    thread = threading.Thread(target=end.wait, name="straggler")
    thread.start()
    assert left_behind(before) == ["threads still run: straggler"]
    end.set()
    thread.join()


@needs_proc
def test_a_file_is_named(tmp_path: Path) -> None:
    before = held()
    with (tmp_path / "file").open("w"):
        assert left_behind(before) == [f"files are still open: {tmp_path / 'file'}"]


@needs_proc
def test_a_child_is_named() -> None:
    before = held()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert left_behind(before) == [f"child processes were not waited for: {child.pid}"]
