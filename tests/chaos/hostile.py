"""A hundred thousand hostile messages and files: each refused in a sentence, and no process crashes, hangs or swells.

`run(trials=, seed=, progress=)` returns how many were tried and how many ended in a crash, a hang, an error that is not
ours, or memory out of bounds. Case `number` of a `seed` is always the same; a failing one is printed with both, and

    python tests/chaos/hostile.py --seed SEED --only NUMBER

repeats it alone, with its traceback. Messages and files are tried in a child process, so that a crash is seen and
counted; one case in twenty-five goes to the socket of a real server, which must still serve its good client.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

for _neighbour in ("chaos", "store"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / _neighbour))

import numpy as np  # noqa: E402

SOCKET_EVERY = 25
FILE_SHARE = 0.25
HANG_SECONDS = 60.0
GROWTH_BYTES_MAX = 1 << 28
"""What one case may take; all files and messages here are below a megabyte."""
NOT_READY = -1
Progress = Callable[[str], None]


def run(*, trials: int, seed: int, progress: Progress) -> dict[str, int]:
    """Tries cases 0 to `trials` of a seed."""
    from hostile_sockets import try_sockets

    with tempfile.TemporaryDirectory(prefix="foresee-hostile-", dir=_memory_folder()) as scratch:
        crashes = _supervise(Path(scratch), seed, trials, progress)
        numbers = range(0, trials, SOCKET_EVERY)
        crashes += try_sockets(Path(scratch), seed, numbers, progress)
    return {"hostile_tried": trials, "hostile_crashes": crashes}


def _memory_folder() -> str | None:
    """Files are written by the ten thousand: in memory, where there is such a folder."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _supervise(scratch: Path, seed: int, trials: int, progress: Progress) -> int:
    """Runs the child, and another from the next case on whenever one dies or hangs."""
    begin, failures = 0, 0
    place = scratch / "place"
    while begin < trials:
        place.write_bytes(struct.pack("<q", NOT_READY))
        command = [sys.executable, __file__, "--seed", str(seed), "--begin", str(begin), "--end", str(trials)]
        command += ["--place", str(place), "--scratch", str(scratch)]
        with open(scratch / "child.err", "w+b") as errors:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1)
            assert child.stdout is not None
            os.set_blocking(child.stdout.fileno(), False)
            failures += _watch(child, place, seed, progress)
            errors.seek(0)
            said = errors.read().decode(errors="replace")
        if child.returncode == 0:
            return failures
        (reached,) = struct.unpack("<q", place.read_bytes())
        if reached == NOT_READY:
            raise RuntimeError(f"good files could not be made, so nothing was tried:\n{said[-3000:]}")
        failures += 1
        progress(f"hostile: seed {seed} number {reached}: the process ended with {child.returncode}\n{said[-3000:]}")
        begin = reached + 1
    return failures


def _watch(child: subprocess.Popen[str], place: Path, seed: int, progress: Progress) -> int:
    """Passes lines on until the child ends; kills one that does not get on. Returns the failures it reported."""
    failures, moved_at, before = 0, time.monotonic(), -1
    assert child.stdout is not None
    while True:
        ended = child.poll() is not None
        for line in iter(child.stdout.readline, ""):
            failures += line.startswith("hostile: seed")
            progress(line.rstrip())
        if ended:
            child.stdout.close()
            return failures
        (reached,) = struct.unpack("<q", place.read_bytes())
        if reached != before:
            before, moved_at = reached, time.monotonic()
        elif time.monotonic() - moved_at > HANG_SECONDS:
            child.send_signal(signal.SIGKILL)
        time.sleep(0.05)


class Cases:
    """What the child does."""

    def __init__(self, scratch: Path, seed: int) -> None:
        from hostile_files import file_targets
        from hostile_messages import message_targets

        own = Path(tempfile.mkdtemp(prefix="files-", dir=scratch))
        self._seed = seed
        self._messages, self._files = list(message_targets().items()), list(file_targets(own).items())

    def try_one(self, number: int) -> str | None:
        """None, or what went wrong, with the name of the target."""
        rng = np.random.default_rng([self._seed, number])
        targets = self._files if rng.random() < FILE_SHARE else self._messages
        name, target = targets[int(rng.integers(len(targets)))]
        return attempt(lambda: target(rng), name)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in [*self._messages, *self._files]]


def attempt(work: Callable[[], object], name: str) -> str | None:
    from foresee.errors import ForeseeError

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        work()
    except ForeseeError as error:
        problem = sentence_problem(str(error))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        problem = "".join(traceback.format_exception(error))[-2500:]
    else:
        problem = None
    growth = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    if growth > GROWTH_BYTES_MAX:
        problem = f"it took {growth:,} bytes; {problem or ''}"
    return None if problem is None else f"{name}: {problem}"


def sentence_problem(text: str) -> str | None:
    """What keeps an error from being one sentence for a person."""
    if len(text) > 3000:
        return f"an error of {len(text):,} characters: {text[:300]}"
    return None if text.strip() else "an error without a word"


def _child(options: argparse.Namespace) -> None:
    faulthandler.enable()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    cases = Cases(options.scratch, options.seed)
    with open(options.place, "r+b") as file, mmap.mmap(file.fileno(), 8) as place:
        begun = time.monotonic()
        for number in range(options.begin, options.end):
            if number % SOCKET_EVERY == 0:
                continue
            place[:8] = struct.pack("<q", number)
            problem = cases.try_one(number)
            if problem is not None:
                print(f"hostile: seed {options.seed} number {number}: {json.dumps(problem)}", flush=True)
            if number % 20_000 == 19_999:
                print(f"hostile messages and files: {number + 1:,}, {time.monotonic() - begun:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--only", type=int, help="repeat one case")
    for name in ("begin", "end"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    for name in ("place", "scratch"):
        parser.add_argument(f"--{name}", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.place is not None:
        _child(options)
    elif options.only is not None:
        with tempfile.TemporaryDirectory(prefix="foresee-hostile-", dir=_memory_folder()) as scratch:
            print(Cases(Path(scratch), options.seed).try_one(options.only) or "refused in a sentence, or whole")
    else:
        print(json.dumps(run(trials=options.trials, seed=options.seed, progress=lambda line: print(line, flush=True))))


if __name__ == "__main__":
    main()
