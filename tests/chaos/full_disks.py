"""The disk is full at some point of a run of one process: one sentence, exit code 2, and after that the same bytes.

In: a log and how many disks to fill. A disk is a small file system in memory with a file that leaves it a random amount
of room; the run must end in a sentence, the file is removed, and the resumed run is compared byte for byte. Where this
user may mount nothing there are no trials, and the count says so.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from killed_runs import Commands, Setting, leavings

from foresee.data import ClickLog

DISK = Setting(name="disk", epochs=2, commit_every_steps=3)
DISK_BYTES = 6 << 20
KILOBYTE = 1 << 10


def fill_disks(
    commands: Commands, folder: Path, log: ClickLog, rng: random.Random, *, trials: int, progress: Callable[[str], None]
) -> Counter[str]:
    """`full_disks`: runs that ended in a sentence; `different_bytes` after they were resumed."""
    counts: Counter[str] = Counter(full_disks=0)
    place = folder / "disk"
    place.mkdir()
    with small_disk(place / "small") as small:
        if small is None:
            progress("full disks: this user may mount nothing")
            return counts
        code, text = commands.run("train", DISK.write(place, log))
        assert code == 0, text
        expected = leavings(place / DISK.name, DISK.num_steps)
        for trial in range(trials):
            counts.update(_one_disk(commands, small / str(trial), log, rng, expected))
        progress(f"full disks: {dict(counts)}")
    return counts


def _one_disk(
    commands: Commands, place: Path, log: ClickLog, rng: random.Random, expected: dict[str, bytes]
) -> Counter[str]:
    counts: Counter[str] = Counter()
    place.mkdir()
    run_file, ballast = DISK.write(place, log), place / "ballast"
    room = rng.randint(1, 100) * KILOBYTE
    for attempt in range(20):
        _leave(ballast, room)
        resume = ["--resume"] if (place / DISK.name / "config.yaml").exists() else []
        code, text = commands.run("train", run_file, *resume)
        if code == 0:
            break
        assert code == 2, text
        assert "Traceback" not in text, text
        assert text.strip().splitlines()[-1].startswith("foresee: "), text
        counts["full_disks"] += 1
        room += rng.randint(16, 160) * KILOBYTE
        if attempt == 18:
            room = DISK_BYTES
    ballast.unlink(missing_ok=True)  # the last commit may not be folded yet
    found = leavings(place / DISK.name, DISK.num_steps)
    counts["different_bytes"] = sum(found[name] != expected[name] for name in expected)
    shutil.rmtree(place)
    return counts


def _leave(ballast: Path, num_bytes: int) -> None:
    """A file that takes all space but this."""
    ballast.unlink(missing_ok=True)
    status = os.statvfs(ballast.parent)
    size = status.f_bavail * status.f_frsize - num_bytes
    if size > 0:
        with open(ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)


@contextmanager
def small_disk(path: Path) -> Iterator[Path | None]:
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)
