"""The processes of a launched run: started, watched, started again and ended together; and one machine as an engine.

In: commands, and an engine. Out: running parts whose output is in files, the first of them that fails, and the promise
that none is left when the block is left. `parts.json` beside their output has the process ids. On one machine each has
a process group of its own, so Ctrl-C reaches only the launcher, and each ends with the launcher (`io.machine`).
Nothing here knows what the processes do.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from foresee.errors import INPUT_CODE, UNAVAILABLE_CODE
from foresee.io.failpoints import PART_VARIABLE
from foresee.io.folders import replace_text
from foresee.io.logs import LEVEL_VARIABLE, level
from foresee.io.machine import LAUNCHER_VARIABLE
from foresee.launch.engine import Command, Engine, Process, Role
from foresee.launch.fork_server import ForkServer

_logger = logging.getLogger(__name__)

STOP_SECONDS = 15.0
"""What a process may take to end when it is asked to."""
POLL_SECONDS = 0.05
LAST_LINES = 15
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


class Started(Protocol):
    """What is needed of a process of this machine."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def send_signal(self, number: int) -> None: ...


Start = Callable[[Sequence[str], dict[str, str], Path], Started]
"""`foresee` with these arguments and this environment; what it prints is added to the file."""


@contextmanager
def starting(num_workers: int, optimizers: Sequence[str]) -> Iterator[Start]:
    """How parts are started here: forked from a warm process, which begins to warm up now."""
    with ForkServer({**os.environ, **worker_environment(num_workers)}, optimizers) as server:
        yield server.start


def worker_environment(num_workers: int) -> dict[str, str]:
    """What the person has set stays; by default workers talk on this machine only and share its cores."""
    return {
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", LOOPBACK),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_workers))),
    }


@dataclass
class Part:
    """One process of a run."""

    command: Command
    process: Process
    output: Path

    @property
    def name(self) -> str:
        return self.command.name

    @property
    def role(self) -> Role:
        return self.command.role

    @property
    def endless(self) -> bool:
        return self.command.endless

    @property
    def address(self) -> str | None:
        return self.process.address

    @property
    def code(self) -> int | None:
        return self.process.poll()

    def how_it_ended(self) -> str:
        code = self.code
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def last_lines(self) -> list[str]:
        return self.output.read_text("utf-8", errors="replace").splitlines()[-LAST_LINES:]

    def sentence(self) -> str | None:
        """What it said of a person's mistake, if that is how it ended."""
        said = [line.removeprefix("foresee: ") for line in self.last_lines() if line.startswith("foresee: ")]
        return said[-1] if self.code == INPUT_CODE and said else None


def culprit(parts: Sequence[Part]) -> Part | None:
    """Which part failed first, as well as can be told: one that was killed before one that failed by itself, and that
    before one that only lost another; else in the order in which they were started, and depend on each other."""
    ended = [(part, code) for part in parts if (code := part.code) is not None]
    failed = [(part, code) for part, code in ended if code != 0 or part.endless]
    rank = {UNAVAILABLE_CODE: 2}
    return min(failed, key=lambda it: 0 if it[1] < 0 else rank.get(it[1], 1), default=(None, 0))[0]


class Processes:
    """Use it as a context manager: on leaving, whatever still runs is ended."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        """`folder` is for what the parts print."""
        self._folder, self.engine = folder, engine
        self.parts: list[Part] = []
        self._written_down: dict[str, int] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """What runs until it is told to end is told so. The others would only wait for each other now."""
        with _undisturbed():
            send(self.parts if kind is KeyboardInterrupt else [], signal.SIGKILL)
            self.end_all()

    def start(self, command: Command) -> Part:
        """A part of this name that has ended is replaced."""
        output = self._folder / f"{command.name.replace(' ', '-')}.log"
        part = Part(command, self.engine.start(command, output), output)
        self.parts = [*(it for it in self.parts if it.name != part.name), part]
        self.write_down()
        _logger.info("started %s; its output goes to %s", part.name, output)
        return part

    def kill(self, parts: Sequence[Part]) -> None:
        """Ends these at once, and forgets them."""
        _logger.info("ending %s at once", ", ".join(part.name for part in parts))
        send(parts, signal.SIGKILL)
        wait(parts, None)
        self.parts = [part for part in self.parts if part not in parts]

    def end_all(self) -> None:
        """Ends everything, servers in peace, and forgets it: all is started anew."""
        send([part for part in self.parts if not part.endless], signal.SIGKILL)
        self.end(self.parts, STOP_SECONDS)
        self.parts = []

    def write_down(self) -> None:
        """For a person who wants to look at one of them. On a cluster a part has its process some time after it was
        started, so this is called now and then."""
        found = {part.name: part.process.pid for part in self.parts}
        if found != self._written_down:
            replace_text(self._folder / "parts.json", json.dumps(found, indent=2) + "\n")
            self._written_down = found

    def end(self, parts: Sequence[Part], seconds: float) -> None:
        """Asks these to end; kills those that do not, and waits for all."""
        send(parts, signal.SIGTERM)
        wait(parts, seconds)
        send(parts, signal.SIGKILL)
        wait(parts, None)


def send(parts: Sequence[Part], number: signal.Signals) -> None:
    for part in parts:
        if part.code is None:
            part.process.send_signal(number)


def wait(parts: Sequence[Part], seconds: float | None) -> bool:
    """True if all have ended. Without a number of seconds it is for processes that were killed: they do end."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while any(part.code is None for part in parts):
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Another Ctrl-C while everything is being taken down would leave processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class LocalProcess:
    """A part of this machine."""

    placed = True

    def __init__(self, forked: Started, port_file: Path) -> None:
        self._forked, self._port_file = forked, port_file

    @property
    def pid(self) -> int:
        return self._forked.pid

    @property
    def address(self) -> str | None:
        return f"grpc://127.0.0.1:{self._port_file.read_text().strip()}" if self._port_file.exists() else None

    def poll(self) -> int | None:
        return self._forked.poll()

    def send_signal(self, number: int) -> None:
        self._forked.send_signal(number)


class LocalEngine:
    """One machine: parts talk over loopback, and small files for all of them are in one folder."""

    one_machine = True

    def __init__(self, start: Start, scratch: Path, num_workers: int) -> None:
        self._start, self._scratch, self._num_workers = start, scratch, num_workers

    def start(self, command: Command, output: Path) -> Process:
        port_file = self._scratch / f"{command.role}-{command.index}.port"
        port_file.unlink(missing_ok=True)
        arguments = [*command.arguments, *(["--port-file", str(port_file)] if command.endless else [])]
        environment = {**os.environ, **worker_environment(self._num_workers), **command.environment}
        environment |= {LAUNCHER_VARIABLE: str(os.getpid()), PART_VARIABLE: command.name, LEVEL_VARIABLE: level()}
        return LocalProcess(self._start(arguments, environment, output), port_file)

    def share(self, name: str, content: str) -> Path:
        replace_text(self._scratch / name, content)
        return self._scratch / name

    def rendezvous(self, attempt: int) -> str:
        return f"file://{self._scratch / f'rendezvous-{attempt}'}"
