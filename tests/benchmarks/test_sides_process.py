"""Sides of a comparison answer when they are asked, and do nothing in between."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from sides.process import Process
from waiting import wait_until

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COUNTER = f"""
import sys, threading, time
sys.path.insert(0, {str(BENCHMARKS)!r})
from sides.process import serve
count = 0
def work():
    global count
    while True:
        count += 1
        if len(sys.argv) > 1:
            open(sys.argv[1], "w").write(str(count))
        time.sleep(0.001)
threading.Thread(target=work, daemon=True).start()
serve({{"count": lambda: {{"count": count}}, "fail": lambda: 1 / 0}})
"""


def side(code: str = COUNTER, *arguments: str) -> Process:
    return Process([sys.executable, "-c", code, *arguments])


def test_a_side_is_stopped_between_its_answers(tmp_path: Path) -> None:
    counted = tmp_path / "count"
    with side(COUNTER, str(counted)) as process:
        process.ask("count")
        threads = Path(f"/proc/{process._process.pid}/task")
        wait_until(lambda: all(state_of(thread) == "T" for thread in threads.iterdir()), "the stop of all threads")
        before = counted.read_text()
        time.sleep(0.1)
        assert counted.read_text() == before, "a thread that counts every millisecond went on"
        process.ask("count")


FORKS = f"""
import os, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from sides.process import in_a_fork, say, serve
def work():
    say({{}})
    serve({{"pid": lambda: {{"pid": os.getpid()}}, "fail": lambda: 1 / 0}}, last="pid")
for line in sys.stdin:
    in_a_fork(work)
"""


def test_a_side_has_a_process_for_each_thing_it_does() -> None:
    with side(FORKS) as process:
        found = []
        for _ in range(2):
            process.ask("next")
            found.append(process.ask("pid")["pid"])
    assert len({*found, process._process.pid}) == 3


def test_a_fork_that_fails_ends_its_side() -> None:
    process = side(FORKS)
    process.ask("next")
    with (
        pytest.raises(SystemExit, match="ended with code 1"),
        process,
        pytest.raises(SystemExit, match="ended before it could fail"),
    ):
        process.ask("fail")


def test_a_side_that_fails_ends_the_comparison_with_its_name() -> None:
    with (
        pytest.raises(SystemExit, match="ended with code 1"),
        side() as process,
        pytest.raises(SystemExit, match="ended before it could fail"),
    ):
        process.ask("fail")


def test_no_side_stays_behind_when_the_comparison_is_killed() -> None:
    code = f"""
import sys, time
sys.path.insert(0, {str(BENCHMARKS)!r})
from sides.process import Process
with Process([sys.executable, "-c", {COUNTER!r}]) as process:
    process.ask("count")
    print(process._process.pid, flush=True)
    time.sleep(100)
"""
    asking = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert asking.stdout is not None
    side_id = int(asking.stdout.readline())
    asking.kill()
    asking.wait()
    asking.stdout.close()
    wait_until(lambda: not is_alive(side_id), "the end of the side")


def state_of(process: Path) -> str:
    return (process / "stat").read_text().rsplit(")", 1)[1].split()[0]


def is_alive(process_id: int) -> bool:
    try:
        state = state_of(Path(f"/proc/{process_id}"))
    except FileNotFoundError:
        return False
    return state != "Z"
