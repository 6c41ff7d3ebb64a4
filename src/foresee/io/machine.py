"""This process on its machine: the memory it may still take, its temporary folders, and that it ends with its launcher.

In: what the kernel says of the machine, of the process's control groups and of its own limits. Out: bytes; the smallest
bound counts, and where there is none nothing is refused.

`let_threads_sleep` is for the way torch's threads wait; it must be called before torch is imported.
`end_with_launcher` makes a part of a run end when the process that launched it does, even by a kill: on Linux the
kernel sends the signal, on other systems a thread looks once a second whether the launcher is still the parent.
`scratch_folder` is a temporary folder that a later start removes if this process was killed.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

from foresee.io.units import in_megabytes

PROC = Path("/proc")

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h

CONTROL_GROUPS = Path("/sys/fs/cgroup")

FEW_CORES = 8

_WAITING_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def available_bytes(proc: Path = PROC, control_groups: Path = CONTROL_GROUPS) -> int | None:
    """What can still be taken before something is refused or killed; None if nobody knows."""
    bounds = [*_machine(proc), *_control_groups(proc, control_groups), *_own_limit(proc)]
    return max(0, min(bounds)) if bounds else None


def used_bytes(proc: Path = PROC) -> int:
    """Memory of this process that is in use now; 0 where the system does not say."""
    try:
        return int((proc / "self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def share_arenas() -> None:
    """Lets all threads of this process share two pools of freed memory, where the C library would keep one for each of
    many threads. Only before threads are started, and only where the library is glibc; elsewhere nothing happens."""
    try:
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 2)
    except (OSError, AttributeError, TypeError):
        return


def let_threads_sleep(environment: MutableMapping[str, str] = os.environ) -> None:
    """Threads of torch sleep while they wait for work, where there are few cores and nobody has said otherwise.

    OpenMP lets them spin, which is for a machine that does nothing else. Planner, reader and writer then wait for
    a core that computes nothing. OpenMP looks at this once, when torch is imported: call it before.
    """
    if _num_cores() <= FEW_CORES and not any(name in environment for name in _WAITING_VARIABLES):
        environment[_WAITING_VARIABLES[0]] = "PASSIVE"


def _num_cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        return os.cpu_count() or 1


def raise_file_limit(num_files: int) -> None:
    """Allows so many open files, as far as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < num_files and soft != resource.RLIM_INFINITY:
        wanted = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _machine(proc: Path) -> Iterator[int]:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield 1024 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        return


def _control_groups(proc: Path, root: Path) -> Iterator[int]:
    """The group this process is in and all above it, in either version of their interface."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names = (root, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        inside = names[0] / path.lstrip("/")
        for folder in (inside, *inside.parents):
            limit, used = _number(folder / names[1]), _number(folder / names[2])
            if limit is not None and used is not None and limit < 1 << 62:
                # Pages of files that could be given up count as used; they are given up before anything fails.
                yield limit - used + _reclaimable(folder)
            if folder == names[0]:
                break


def _reclaimable(folder: Path) -> int:
    try:
        fields = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(fields.get("inactive_file", fields.get("total_inactive_file", 0)))
    except (OSError, ValueError):
        return 0


def _own_limit(proc: Path) -> Iterator[int]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return
    try:
        yield limit - int((proc / "self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        yield limit


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


LAUNCHER_VARIABLE = "FORESEE_LAUNCHER"

PR_SET_PDEATHSIG = 1

LOOK_SECONDS = 1.0


def end_with_launcher(environment: Mapping[str, str] = os.environ) -> None:
    """Does nothing in a process that no launcher started."""
    if LAUNCHER_VARIABLE not in environment:
        return
    launcher = int(environment[LAUNCHER_VARIABLE])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_look, args=(launcher,), name="foresee-parent-death", daemon=True).start()
    # It may have ended before the line above.
    if os.getppid() != launcher:
        os._exit(1)


def _look(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(LOOK_SECONDS)
    os._exit(1)


SCRATCH_PREFIX = "foresee-"

_OWNER_FILE = "owner"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary folder for the time of the block, and remove those of processes that were killed.

    Its file `owner` is locked while the process lives. The lock ends with the process, however that ends, and is seen
    from other containers, where process ids mean something else. The file takes its name once it is locked, so no other
    start finds it unlocked.
    """
    remove_abandoned_folders()
    with tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with open(folder / f"{_OWNER_FILE}.draft", "wb") as owner:
            with suppress(OSError):  # a file system without locks: then nobody else removes the folder either
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.replace(owner.name, folder / _OWNER_FILE)
            yield folder


def remove_abandoned_folders() -> None:
    """Remove the scratch folders of this user whose process is gone."""
    for path in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*/{_OWNER_FILE}"):
        with suppress(OSError):
            if path.parent.lstat().st_uid != os.getuid() or path.parent.is_symlink():
                continue
            with open(path, "rb") as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)


class MemoryNeed(dict[str, int]):
    """Bytes by purpose, in the order in which they are shown."""

    @property
    def total(self) -> int:
        """Return the bytes of all purposes."""
        return sum(self.values())

    def of(self, *purposes: str) -> int:
        """Return the bytes of some purposes; what is not there needs none."""
        return sum(self.get(purpose, 0) for purpose in purposes)

    def lacks(self, available: int | None) -> bool:
        """Return whether it is more than what is available; None: that is not known."""
        return available is not None and self.total > available

    def largest(self) -> str:
        """Return the purpose that needs most; the first of equals."""
        return max(self, key=self.__getitem__)

    def summary(self, always: tuple[str, ...] = ()) -> str:
        """Return the total and the purposes in one line; those of 0 bytes only if they are in `always`."""
        parts = ", ".join(f"{name} {in_megabytes(size)}" for name, size in self.items() if size or name in always)
        return f"memory needed, at most: {in_megabytes(self.total)} ({parts})"
