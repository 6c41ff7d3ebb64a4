"""Which part of a run is to blame, and processes that are started and ended for real."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from foresee.errors import UNAVAILABLE_CODE
from foresee.launch.engine import Command, Role
from foresee.launch.processes import LocalEngine, Part, Processes, culprit, starting, wait


@dataclass
class Ended:
    """A process with this code; None: it runs."""

    code: int | None
    pid: int = 0
    address: str | None = None
    placed: bool = True

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        raise AssertionError("nobody signals a process that has ended")


def parts(folder: Path, *codes: int | None) -> list[Part]:
    """A server, a planner and two workers."""
    roles: list[tuple[Role, int]] = [("server", 0), ("planner", 0), ("worker", 0), ("worker", 1)]
    return [
        Part(Command(role=role, index=index, arguments=()), Ended(code), folder / "log")
        for (role, index), code in zip(roles, codes, strict=True)
    ]


@pytest.mark.parametrize(
    ("codes", "name"),
    [
        ((None, None, None, None), None),
        ((None, None, 0, None), None),
        ((None, None, 1, 1), "worker 0"),
        ((None, None, UNAVAILABLE_CODE, 1), "worker 1"),
        ((None, None, UNAVAILABLE_CODE, -9), "worker 1"),
        ((None, 0, None, None), "planner"),
        ((1, None, 2, 2), "server 0"),
        ((1, -9, 2, 2), "planner"),
    ],
)
def test_the_part_that_failed_first_is_named(tmp_path: Path, codes: tuple[int | None, ...], name: str | None) -> None:
    found = culprit(parts(tmp_path, *codes))
    assert (None if found is None else found.name) == name


def test_a_mistake_is_told_in_the_words_of_the_part(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("foresee: the first thing\nnoise\nforesee: the last thing\n")
    mistaken, failed = parts(tmp_path, 2, None, 1, None)[::2]
    assert mistaken.sentence() == "the last thing"
    assert failed.sentence() is None
    assert parts(tmp_path, -9, 0, 0, 0)[0].how_it_ended() == "was killed by SIGKILL"


@pytest.mark.slow
def test_processes_are_started_and_none_is_left(tmp_path: Path) -> None:
    with starting(2, []) as start, Processes(tmp_path, LocalEngine(start, tmp_path, 2)) as processes:
        mistaken = processes.start(Command(role="worker", index=0, arguments=("status", "no address")))
        # Serves until it is told to end, wherever it is when that happens.
        layout = '{"tables": [{"name": "t", "num_rows": 9}], "width": 2, "state_width": 0, "optimizer": "sgd"}'
        path = processes.engine.share("layout.json", layout[:-1] + ', "seed": 0, "init_scale": 0.1}')
        serving = processes.start(Command(role="server", index=0, arguments=("serve", "--layout", str(path))))
        assert wait([mistaken], 60.0)
        assert mistaken.code == 2, mistaken.last_lines()
        assert "is not the address of a server" in str(mistaken.sentence())
        assert serving.code is None
    assert serving.code in (0, -signal.SIGTERM)
