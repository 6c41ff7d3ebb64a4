"""Log lines: one format with role, rank and step, on the error stream and nowhere else."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import foresee
from foresee.data import tiny
from foresee.io import logs
from foresee.io.logs import LogLevel
from foresee.store.rpc.connection_limiter import TELL_SECONDS, ConnectionLimiter, Rules

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|WARNING|ERROR) [a-z]+( \d+)?( step \d+)?: .+")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    logger = logging.getLogger("foresee")
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:], logger.level = handlers, level
    logger.setLevel(level)


def test_a_line_has_time_level_role_rank_and_step(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("foresee.store.server.service")
    logs.configure(LogLevel.INFO, "server", 1)
    logger.info("begins")
    logs.at_step(300)
    logger.warning("rolled back to step %d", 300)
    logger.debug("not shown")
    captured = capsys.readouterr()
    begins, rolled = captured.err.splitlines()
    assert LINE.fullmatch(begins)
    assert begins.endswith(" INFO server 1: begins")
    assert rolled.endswith(" WARNING server 1 step 300: rolled back to step 300")
    assert captured.out == ""


def test_configured_again_nothing_is_said_twice(capsys: pytest.CaptureFixture[str]) -> None:
    for role in ("launcher", "planner"):
        logs.configure(LogLevel.WARNING, role)
    logging.getLogger("foresee.launch").warning("once")
    assert capsys.readouterr().err.count("planner: once") == 1
    assert logs.level() is LogLevel.WARNING


def test_the_level_of_a_program_that_is_not_ours_is_taken_over() -> None:
    logging.getLogger("foresee").setLevel(logging.INFO - 3)
    assert logs.level() is LogLevel.INFO
    logging.getLogger("foresee").setLevel(logging.CRITICAL)
    assert logs.level() is LogLevel.ERROR


def test_training_logs_beside_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(tmp_path / "log", num_samples=200)
    file = tmp_path / "run.yaml"
    file.write_text(
        "log: log\nrun: run\nmodel: {dim: 4, options: {bottom: [8], top: [8]}}\n"
        "cache: {rows: 150}\ntrain: {batch_size: 32, num_threads: 1, commit_every_steps: 2}\n"
    )
    assert foresee("train", file, monkeypatch=monkeypatch) == 0
    quiet = capsys.readouterr()
    assert quiet.err == ""
    assert foresee("train", file, "--replace", "--log-level", "info", monkeypatch=monkeypatch) == 0
    said = capsys.readouterr()
    assert all(LINE.fullmatch(line) for line in said.err.splitlines()), said.err
    assert " INFO trainer step 2: committed in " in said.err
    assert not any(LINE.fullmatch(line) for line in said.out.splitlines())
    assert foresee("train", file, "--log-level", "loud", monkeypatch=monkeypatch) == 2


def test_ended_connections_are_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """A crowd of strangers is a line in ten seconds, not one for each."""
    now = [0.0]
    rules = Rules(connections_max=9, unread_bytes_max=1, unread_total_bytes_max=1)
    limiter = ConnectionLimiter(0, rules, clock=lambda: now[0])
    try:
        with caplog.at_level(logging.WARNING, "foresee"):
            for look in range(3):
                limiter.num_cut += 1
                limiter._tell("no call came through", now[0])
                now[0] = look * TELL_SECONDS
    finally:
        limiter.close()
    assert [record.getMessage() for record in caplog.records] == [
        "ended a connection (no call came through); 1 were ended so far",
        "ended a connection (no call came through); 3 were ended so far",
    ]
