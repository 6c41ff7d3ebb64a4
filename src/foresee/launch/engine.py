"""What a run asks of an engine: a machine or a cluster on which the parts of the run are started and watched.

In: parts as commands of `foresee`. Out: for each whether it runs, how it ended, where it listens and what it printed.
An engine starts parts, and tells; it decides nothing. What is started again after a loss is decided in `restarts`, by
`supervisor`, for every engine alike. `foresee.testing.EngineSuite` is this contract as tests.

    `processes.LocalEngine`   one machine: parts are forked from a warm process
    `ray.RayEngine`           a Ray cluster: Ray reserves places and notices lost nodes, a host on each node forks parts
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from foresee.launch.decisions import Room
from foresee.run.config import RunConfig

Role = Literal["server", "planner", "worker"]

LOST_CODE = -int(signal.SIGKILL)
"""How a part ended that is gone together with the process, machine or link it was reached through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A part before it is started."""

    role: Role
    index: int
    """Which server, or which worker, from 0."""
    arguments: tuple[str, ...]
    """Of `foresee`, without those that say where to listen and how connections are kept safe: the engine adds them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside what the engine's own processes have."""
    records: tuple[Path, ...] = ()
    """Files that it adds lines to, wherever it is: the engine keeps them the same here, for a person to look at."""

    @property
    def name(self) -> str:
        return self.role if self.role == "planner" else f"{self.role} {self.index}"

    @property
    def endless(self) -> bool:
        """It should run until it is told to end: any end before is a failure."""
        return self.role != "worker"


class Process(Protocol):
    """A started part. It may still be waiting for a place."""

    @property
    def pid(self) -> int:
        """On its machine; 0 while it has none."""
        ...

    @property
    def placed(self) -> bool:
        """A machine was found for it; it may take a while there until it has a process."""
        ...

    @property
    def address(self) -> str | None:
        """Where it listens, once it does."""
        ...

    def poll(self) -> int | None:
        """Its exit code, or minus a signal; None while it runs."""
        ...

    def send_signal(self, number: int) -> None: ...


class Engine(Protocol):
    """Use it as a context manager: whatever it started is gone when the block is left."""

    def start(self, command: Command, output: Path) -> Process:
        """Starts a part, now or as soon as there is a place for it; what it prints is added to the file here."""
        ...

    def share(self, name: str, content: str) -> Path:
        """A small file for all parts, also for those that run already: the same path wherever they are."""
        ...

    def rendezvous(self, attempt: int) -> str:
        """Where the workers of one start of all of them meet."""
        ...

    @property
    def one_machine(self) -> bool:
        """All parts take their memory from this machine."""
        ...


@runtime_checkable
class ElasticEngine(Protocol):
    """An engine whose machines come and go while a run is on it. Others have the size that they began with."""

    def room(self) -> Room:
        """What there is for the run, as it was seen last; costs nothing."""
        ...

    def reserve(self, config: RunConfig) -> None:
        """Gives up all places and asks for those of a run of another size; no part is running."""
        ...
