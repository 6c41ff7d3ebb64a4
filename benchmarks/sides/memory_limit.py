"""A memory limit for one side of a comparison: a control group where this process may make one, else a resource limit.

In: bytes. Out: something that a child enters before it becomes its side, that knows the peak and is removed at the end.
A control group counts all memory of the process, page cache included, and takes back what it can.
"""

from __future__ import annotations

import ctypes
import os
import resource
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

FORGET_AT = 0.9
"""Share of the limit at which the warden lets the system forget table pages."""
WATCH_SECONDS, LOOK_SECONDS = 0.02, 0.2
"""How often the warden looks: where it has to hold the limit itself, and where a control group does."""
CACHESTAT = 451
"""Number of the system call that says how much of a file is in the page cache."""


class Limit:
    """RLIMIT_DATA: what a process may allocate. The warden does the rest."""

    name = "rlimit"

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def enter(self) -> None:
        """Called in the child before it becomes the side."""
        resource.setrlimit(resource.RLIMIT_DATA, (self.num_bytes, self.num_bytes))

    def peak_bytes(self) -> int:
        """As far as the system counts it."""
        return 0

    def leave(self) -> None:
        """Called when all processes under the limit have ended."""


def end_early(num_bytes: int) -> None:
    """Who needs far more than the limit fails at once, instead of reading the pages of its libraries over and over."""
    resource.setrlimit(resource.RLIMIT_DATA, (2 * num_bytes, 2 * num_bytes))


class Cgroup(Limit):
    """A cgroup v2: the kernel counts all memory of the process, page cache included, and takes back what it can."""

    name = "cgroup"

    def __init__(self, num_bytes: int, path: Path) -> None:
        super().__init__(num_bytes)
        self.path = path
        (path / "memory.max").write_text(str(num_bytes))
        if (path / "memory.swap.max").exists():
            (path / "memory.swap.max").write_text("0")

    def enter(self) -> None:
        (self.path / "cgroup.procs").write_text(str(os.getpid()))
        end_early(self.num_bytes)

    def peak_bytes(self) -> int:
        return int((self.path / "memory.peak").read_text())

    def leave(self) -> None:
        self.path.rmdir()


class OlderCgroup(Limit):
    """The same of a cgroup v1, where memory has a hierarchy of its own."""

    name = "cgroup"

    def __init__(self, num_bytes: int, path: Path) -> None:
        super().__init__(num_bytes)
        self.path = path
        (path / "memory.limit_in_bytes").write_text(str(num_bytes))

    def enter(self) -> None:
        (self.path / "cgroup.procs").write_text(str(os.getpid()))
        end_early(self.num_bytes)

    def peak_bytes(self) -> int:
        return int((self.path / "memory.max_usage_in_bytes").read_text())

    def leave(self) -> None:
        self.path.rmdir()


@contextmanager
def memory_limit(num_bytes: int) -> Iterator[Limit]:
    """A control group below our own if one may be made there, else a resource limit."""
    limit = make_cgroup(own_cgroup(), num_bytes) or make_older_cgroup(own_older_cgroup(), num_bytes) or Limit(num_bytes)
    try:
        yield limit
    finally:
        limit.leave()


def make_cgroup(parent: Path | None, num_bytes: int) -> Cgroup | None:
    """None where there is no cgroup v2, it does not count memory, or this process may not make one."""
    if parent is None:
        return None
    try:
        if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
            return None
        path = Path(tempfile.mkdtemp(prefix="foresee-", dir=parent))
    except OSError:
        return None
    try:
        return Cgroup(num_bytes, path)
    except OSError:
        path.rmdir()
        return None


def own_cgroup() -> Path | None:
    """The folder of this process's cgroup v2."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    roots = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    ours = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    return roots[0] / ours[0].lstrip("/") if roots and ours else None


def make_older_cgroup(parent: Path | None, num_bytes: int) -> OlderCgroup | None:
    """None where there is no cgroup v1 for memory, or this process may not make one."""
    if parent is None or not (parent / "memory.limit_in_bytes").exists():
        return None
    try:
        path = Path(tempfile.mkdtemp(prefix="foresee-", dir=parent))
    except OSError:
        return None
    try:
        return OlderCgroup(num_bytes, path)
    except OSError:
        path.rmdir()
        return None


def own_older_cgroup() -> Path | None:
    """The folder of this process's memory cgroup v1."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    roots = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup" and "memory" in fields[3].split(",")]
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    ours = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
    return roots[0] / ours[0].lstrip("/") if roots and ours else None


class Warden:
    """Watches what memory this process costs, its table files in the page cache included, and keeps it below a limit.

    The sum counts table pages that are mapped twice, once in the resident memory and once in the page cache: what it
    says is never too little.
    """

    def __init__(self, files: list[Path], store: Any, limit_bytes: int | None) -> None:
        self.peak_bytes, self.forgotten = 0, 0
        self._store, self._limit_bytes = store, limit_bytes
        self._descriptors = [os.open(file, os.O_RDONLY) for file in files]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="warden")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._store.close()

    def look(self) -> None:
        now = resident_bytes() + sum(cached_bytes(descriptor) for descriptor in self._descriptors)
        self.peak_bytes = max(self.peak_bytes, now)
        if self._limit_bytes is not None and now > FORGET_AT * self._limit_bytes:
            self._store.forget_pages()
            self.forgotten += 1

    def _watch(self) -> None:
        while not self._done.wait(LOOK_SECONDS if self._limit_bytes is None else WATCH_SECONDS):
            self.look()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def cached_bytes(descriptor: int) -> int:
    """Bytes of a file in the page cache; where the system cannot say, all that the file takes on the disk."""
    whole, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    if ctypes.CDLL(None).syscall(CACHESTAT, descriptor, whole, found, 0) == 0:
        return int(found[0]) * resource.getpagesize()
    return os.fstat(descriptor).st_blocks * 512
