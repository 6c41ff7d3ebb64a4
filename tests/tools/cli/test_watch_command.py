"""`foresee watch`, `foresee report` and `foresee train --watch` as a person meets them."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from command_line import foresee
from foresee.data import tiny
from foresee.run.progress import Display, Reading
from foresee.tools.cli.watch import WatchDisplay

RUN_FILE = (
    "log: log\nrun: run\nmodel: {dim: 4, options: {bottom: [8], top: [8]}}\n"
    "cache: {rows: 150}\ntrain: {batch_size: 32, num_threads: 1}\n"
)
READING = Reading(
    step=3, num_steps=25, samples=96, seconds=1.0, loss=0.5, figures={"auc": 0.7}, samples_per_second=100.0,
    hit_rate=0.9, wait_share=0.01,
)  # fmt: skip
PATIENCE_SECONDS = 100


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    tiny(tmp_path / "log")
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    return tmp_path / "run.yaml"


def test_a_run_is_watched_and_reported(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_file.parent / "run"
    assert foresee("train", run_file, "--watch", monkeypatch=monkeypatch) == 0  # not a terminal: plain lines
    assert "done: 25 steps" in capsys.readouterr().out
    assert foresee("watch", run, monkeypatch=monkeypatch) == 0
    line = capsys.readouterr().out
    assert re.match(r"step 25 of 25  loss 0\.\d+  valid AUC 0\.\d+  [\d.]+ ms a step", line)
    assert line.count("\n") == 1
    assert foresee("watch", run, "--once", monkeypatch=monkeypatch) == 0
    view = capsys.readouterr().out
    for name in ("loss", "valid AUC", "step", "waits", "hits", "cache", "ahead", "links"):
        assert re.search(rf"^{name}\s", view, re.MULTILINE), name
    assert foresee("report", run, monkeypatch=monkeypatch) == 0
    assert "report.html" in capsys.readouterr().out
    assert foresee("report", run, "--out", run_file.parent / "other.html", monkeypatch=monkeypatch) == 0
    same = [(run / "report.html").read_bytes(), (run_file.parent / "other.html").read_bytes()]
    assert same[0] == same[1], "the same records give the same bytes"


@pytest.mark.parametrize("command", ["watch", "report"])
def test_a_folder_without_a_run_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee(command, tmp_path, monkeypatch=monkeypatch) == 2
    assert capsys.readouterr().err == (
        f"foresee: {tmp_path} holds no run; give the folder that `run` in a run file names\n"
    )


def test_a_page_that_cannot_be_written_is_one_sentence(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_file.parent / "run").mkdir()
    (run_file.parent / "run" / "config.yaml").write_text("log: ../log\n")
    run, page = run_file.parent / "run", run_file.parent / "none" / "a.html"
    assert foresee("report", run, "--out", page, monkeypatch=monkeypatch) == 2
    assert "the page cannot be written" in capsys.readouterr().err


def test_the_display_of_train_shows_the_records_and_what_is_said(tmp_path: Path) -> None:
    text = io.StringIO()
    display: Display = WatchDisplay(Console(file=text, force_terminal=True, width=100), tmp_path)
    with display:
        display.say("a line that stays")
        display.show(READING)  # nothing recorded yet
        (tmp_path / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 3, "num_steps": 25, "loss": 0.5}))
        display.show(READING)
        assert not display.due()
    assert "a line that stays" in text.getvalue()
    assert "loss 0.5000  AUC 0.7000" in text.getvalue()
    assert "step 3 of 25" in text.getvalue()


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    line = {"kind": "train", "step": 3, "num_steps": 25, "loss": 0.5}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return tmp_path


def hear_interrupts() -> None:
    """Tests that run in the background of a shell inherit that SIGINT is ignored; a person's terminal does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_watching_cleanly(unfinished: Path) -> None:
    """In a pipe: the first line comes at once, and the signal ends it without a traceback."""
    watcher = subprocess.Popen(
        [sys.executable, "-u", "-m", "foresee", "watch", str(unfinished)], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, preexec_fn=hear_interrupts,
    )  # fmt: skip
    assert watcher.stdout is not None
    assert watcher.stdout.readline().startswith("step 3 of 25")
    watcher.send_signal(signal.SIGINT)
    _, errors = watcher.communicate(timeout=PATIENCE_SECONDS)
    assert (watcher.returncode, errors) == (0, "")


def test_in_a_terminal_it_follows_the_run_until_it_is_done(unfinished: Path) -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    watcher = subprocess.Popen(
        [sys.executable, "-m", "foresee", "watch", str(unfinished)], stdin=follower, stdout=follower, stderr=follower,
        env=environment, preexec_fn=hear_interrupts,
    )  # fmt: skip
    os.close(follower)
    try:
        chunks = _output(leader)
        seen = _read_until(chunks, "step 3 of 25")
        with open(unfinished / "metrics.jsonl", "a") as out:
            out.write(json.dumps({"kind": "train", "step": 25, "num_steps": 25, "loss": 0.4}) + "\n")
            out.write(json.dumps({"kind": "commit", "step": 25, "seconds": 0.1}) + "\n")
        seen += _read_until(chunks, "step 25 of 25")
        assert watcher.wait(PATIENCE_SECONDS) == 0
        assert "Traceback" not in seen
    finally:
        watcher.kill()
        watcher.wait()
        os.close(leader)


def _output(descriptor: int) -> Iterator[str]:
    """What comes out of a terminal, until its other end is closed or nothing comes for too long."""
    while select.select([descriptor], [], [], PATIENCE_SECONDS)[0]:
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:
            return
        if not data:
            return
        yield data.decode("utf-8", errors="replace")


def _read_until(chunks: Iterator[str], text: str) -> str:
    seen, deadline = "", time.monotonic() + PATIENCE_SECONDS
    for chunk in chunks:
        seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", chunk)
        if text in seen:
            return seen
        assert time.monotonic() < deadline, f"{text!r} did not come: {seen[-500:]!r}"
    raise AssertionError(f"the terminal closed before {text!r} came: {seen[-500:]!r}")
