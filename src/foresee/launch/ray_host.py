"""One node of a Ray cluster, as a Ray actor: forks the parts of a run that are placed there, and tells what they do.

In: commands of `foresee`, from the process that controls the run. Out: for each part its process id, exit code, port
and what it printed. Parts are forked from a warm process, as on one machine, so that a killed one is back at once.

A lease keeps two sets of parts from living at once: a host that has not heard from its controller for `LEASE_SECONDS`
ends its parts, and a controller gives a host up only after longer than that. The host itself ends with its actor, and
its parts with it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foresee.io.failpoints import PART_VARIABLE
from foresee.io.files import Files
from foresee.io.folders import replace_text
from foresee.io.logs import LEVEL_VARIABLE
from foresee.launch.fork_server import Forked, ForkServer

LEASE_SECONDS = 8.0
OUTPUT_BYTES_MAX = 1 << 20
SIOCGIFADDR = 0x8915


@dataclass(frozen=True, slots=True)
class Added:
    """What a part has added to a file."""

    path: str
    content: bytes
    anew: bool
    """The file begins with it: the part, or one before it, has replaced the file."""

    def carry_out(self) -> None:
        """The same to the file of this machine."""
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.anew:
            Files().publish(path, self.content)
        else:
            with open(path, "ab") as file:
                file.write(self.content)


class Followed:
    """A file that a part adds to, and that is replaced when the part starts over."""

    def __init__(self, path: str) -> None:
        self._path, self._inode, self._told_bytes = path, -1, 0

    def added(self, *, all_of_it: bool) -> Added | None:
        """Since the last time; None: nothing. Much of it comes in several pieces, unless all is wanted."""
        try:
            with open(self._path, "rb") as file:
                found = os.fstat(file.fileno())
                anew = found.st_ino != self._inode or found.st_size < self._told_bytes
                file.seek(0 if anew else self._told_bytes)
                content = file.read(-1 if all_of_it else OUTPUT_BYTES_MAX)
        except FileNotFoundError:
            return None
        self._inode, self._told_bytes = found.st_ino, len(content) + (0 if anew else self._told_bytes)
        return Added(self._path, content, anew) if content or anew else None


@dataclass(frozen=True, slots=True)
class PartState:
    """What is new of one part."""

    pid: int
    code: int | None
    port: int | None
    output: bytes
    records: tuple[Added, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """What a host needs to know of its run."""

    scratch: str
    """A folder of this run, the same path on every node."""
    address: str
    """This node's IP address."""
    optimizers: tuple[str, ...]
    log_level: str
    files: Mapping[str, str] = field(repr=False)
    """Small files that all parts can read."""
    listen: tuple[str, ...] = ()
    """Options of parts that listen, beside host and port file."""
    connect: tuple[str, ...] = ()
    """Options of workers."""


@dataclass
class _Running:
    process: Forked
    output: Path
    port_file: Path
    told_bytes: int = 0
    records: tuple[Followed, ...] = ()


class Host:
    """Made as a Ray actor by `RayEngine`. Calls come one after the other."""

    def __init__(self, settings: HostSettings) -> None:
        self._settings, self._scratch = settings, Path(settings.scratch)
        self._scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in settings.files.items():
            self.write(name, content)
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": interface_of(settings.address)}
        environment[LEVEL_VARIABLE] = settings.log_level
        self._environment = environment
        self._warm = ForkServer(environment, settings.optimizers)
        self._parts: dict[str, _Running] = {}
        self._failed: dict[str, str] = {}
        self._heard, self._busy = time.monotonic(), False
        threading.Thread(target=self._watch_lease, name="foresee-lease", daemon=True).start()

    def start(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], records: Sequence[str],
        mark: tuple[str, str],
    ) -> None:  # fmt: skip
        """Starts a part; what goes wrong with that is told by `poll`, as the part's own end.

        `mark`: a file of the controller's machine, with its content; who finds it has the same files, so that `records`
        need not be told.
        """
        self._busy = True
        try:
            followed = [] if _has(*mark) else [Followed(path) for path in records]
            self._start(name, arguments, environment, followed)
        except Exception as error:
            self._failed[name] = f"it could not be started: {error!r}\n"
        finally:
            self._heard, self._busy = time.monotonic(), False

    def _start(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], followed: Sequence[Followed]
    ) -> None:
        file_name = name.replace(" ", "-")
        output, port_file = self._scratch / f"{file_name}.log", self._scratch / f"{file_name}.port"
        for file in (output, port_file):
            file.unlink(missing_ok=True)
        listen = ["--host", self._settings.address, "--port-file", str(port_file), *self._settings.listen]
        everything = {**self._environment, **environment, PART_VARIABLE: name}
        more = listen if not name.startswith("worker") else self._settings.connect
        process = self._warm.start([*arguments, *more], everything, output)
        self._parts[name] = _Running(process, output, port_file, records=tuple(followed))

    def poll(self) -> dict[str, PartState]:
        """What is new of all parts that this host has started."""
        self._heard = time.monotonic()
        told = {name: PartState(0, 70, None, text.encode()) for name, text in self._failed.items()}
        self._failed.clear()
        return told | {name: self._state(part) for name, part in self._parts.items()}

    def _state(self, part: _Running) -> PartState:
        code, new = part.process.poll(), b""  # before anything is read: nothing is written after it
        with suppress(FileNotFoundError), open(part.output, "rb") as file:
            file.seek(part.told_bytes)
            new = file.read(OUTPUT_BYTES_MAX)
            part.told_bytes += len(new)
        added = [it.added(all_of_it=code is not None) for it in part.records]
        return PartState(part.process.pid, code, _port(part.port_file), new, tuple(filter(None, added)))

    def send_signal(self, name: str, number: int) -> None:
        if (part := self._parts.get(name)) is not None and part.process.poll() is None:
            part.process.send_signal(number)

    def forget(self, name: str) -> None:
        """A part that has ended, and will be started elsewhere."""
        self._parts.pop(name, None)

    def write(self, name: str, content: str) -> None:
        """A small file for all parts, readable for this user only."""
        before = os.umask(0o077)
        try:
            replace_text(self._scratch / name, content)
        finally:
            os.umask(before)

    def end(self) -> None:
        """Kills whatever still runs."""
        self._kill()
        self._warm.__exit__(None, None, None)

    def _kill(self) -> None:
        for part in self._parts.values():
            part.process.send_signal(signal.SIGKILL)

    def _watch_lease(self) -> None:
        """Ends all parts when nobody has asked for them for too long."""
        while True:
            time.sleep(0.5)
            if not self._busy and time.monotonic() - self._heard > LEASE_SECONDS:
                self._kill()


def _has(path: str, content: str) -> bool:
    with suppress(OSError):
        return Path(path).read_text() == content
    return False


def _port(file: Path) -> int | None:
    with suppress(FileNotFoundError, ValueError):
        return int(file.read_text())
    return None


def interface_of(address: str) -> str:
    """The network interface that has this IP address, which workers then use among themselves; empty: not found."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer: Any = fcntl.ioctl(asked.fileno(), SIOCGIFADDR, struct.pack("256s", name[:15].encode()))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return ""
