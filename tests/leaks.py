"""What a process holds that a test must give back: threads, open files, child processes.

Out: what is there now (`held`), and the difference between two moments in sentences (`left_behind`). Reads /proc; where
there is none, only threads are seen.
"""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import NamedTuple

FAREWELL_SECONDS = 5.0
"""How long a thread that was told to end may take to do so."""


class Held(NamedTuple):
    """What the process holds at one moment."""

    threads: frozenset[threading.Thread]
    files: frozenset[tuple[str, str]]
    children: frozenset[int]


def held() -> Held:
    return Held(frozenset(threading.enumerate()), frozenset(open_files()), frozenset(child_processes()))


def left_behind(before: Held) -> list[str]:
    """One sentence for each kind of thing that is there now and was not before."""
    late = set(threading.enumerate()) - before.threads
    for thread in late:
        thread.join(FAREWELL_SECONDS)
    found = []
    if alive := sorted(thread.name for thread in late if thread.is_alive()):
        found.append(f"threads still run: {', '.join(alive)}")
    if open_files() - before.files:
        gc.collect()  # a file inside a reference cycle is closed now; only one that somebody holds is a leak
    if files := sorted(path for _, path in open_files() - before.files):
        found.append(f"files are still open: {', '.join(files)}")
    if children := sorted(child_processes() - before.children):
        found.append(f"child processes were not waited for: {', '.join(map(str, children))}")
    return found


def open_files() -> set[tuple[str, str]]:
    """(descriptor, path) of every ordinary file this process has open; empty where the system does not tell."""
    found = set()
    for descriptor in _entries(Path("/proc/self/fd")):
        try:
            path = os.readlink(descriptor)
        except OSError:  # closed since, such as the one that lists this folder
            continue
        if path.startswith("/") and not path.startswith(("/dev/", "/proc/", "/sys/")):
            found.add((descriptor.name, path))
    return found


def child_processes() -> set[int]:
    """Processes that this one started and nobody has waited for."""
    children: set[int] = set()
    for task in _entries(Path("/proc/self/task")):
        try:
            children.update(int(number) for number in (task / "children").read_text().split())
        except OSError:  # the thread has ended, or the kernel does not list children
            continue
    return children


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
