"""A randomized soak: runs with random settings, killed late, must end with the bytes of an undisturbed run.

`run(cells=, seed=, progress=)` draws settings from the seed (`soak_settings`), trains each once undisturbed, and then
`CELLS_OF_A_SETTING` times with kills: trainers, servers, planner and launcher of launched runs, trainers of a
user-written loop. Each kill happens in the second half of the run, after some commits, and is seen to have happened;
a cell in which nothing was killed does not count. Compared are all rows, their state and versions, the dense weights
and the dense optimizer.

    python tests/chaos/soak.py --cells 30 --seed 7
    python tests/chaos/soak.py --seed 7 --setting 12        # one setting alone
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from killed_runs import Commands
from soak_settings import DTYPES, ROW_OPTIMIZERS, draw

CELLS_OF_A_SETTING = 3
RUNS_AT_ONCE = 4

Progress = Callable[[str], None]


def run(*, cells: int, seed: int, progress: Progress) -> dict[str, int]:
    """Judge so many cells; returns how many differed in how many bytes."""
    with (
        tempfile.TemporaryDirectory(prefix="foresee-soak-") as name,
        Commands(Path(name), ROW_OPTIMIZERS, DTYPES) as commands,
    ):
        return run_with(commands, Path(name), cells=cells, seed=seed, progress=progress)


def run_with(commands: Commands, folder: Path, *, cells: int, seed: int, progress: Progress) -> dict[str, int]:
    """As `run`, with a warm process that is there."""
    counts: Counter[str] = Counter(cells=0, soak_kills=0, different_bytes=0)
    lock, numbers, errors = threading.Lock(), iter(range(10 * cells)), list[BaseException]()

    def work() -> None:
        try:
            while True:
                with lock:
                    if errors or counts["cells"] >= cells:
                        return
                    number = next(numbers)
                judge(commands, folder, seed, number, counts, lock, cells, progress)
        except BaseException as error:
            errors.append(error)

    with ThreadPoolExecutor(RUNS_AT_ONCE) as threads:
        for _ in range(RUNS_AT_ONCE):
            threads.submit(work)
    if errors:
        raise errors[0]
    return dict(counts)


def judge(
    commands: Commands, folder: Path, seed: int, number: int, counts: Counter[str], lock: threading.Lock, cells: int,
    progress: Progress,
) -> None:  # fmt: skip
    """Train one setting undisturbed, then under kills, and compare."""
    drawn = draw(random.Random(f"{seed} {number}"))
    place = folder / f"setting-{number}"
    undisturbed = _folder(place / "undisturbed")
    try:
        drawn.train(commands, undisturbed)
        expected = drawn.leavings(undisturbed)
        differing = 0
        for cell in range(CELLS_OF_A_SETTING):
            if counts["cells"] >= cells:
                break
            rng, disturbed = random.Random(f"{seed} {number} {cell}"), _folder(place / f"cell-{cell}")
            killed = drawn.train_under_kills(commands, disturbed, rng)
            if not killed:
                continue
            found = drawn.leavings(disturbed)
            assert found.keys() == expected.keys(), (drawn, found.keys())
            different = sum(_num_different(found[name], expected[name]) for name in expected)
            differing += different
            with lock:
                counts["cells"] += 1
                counts["soak_kills"] += len(killed)
                counts["different_bytes"] += different
                counts[drawn.kind] += 1
                progress(
                    f"{'VIOLATION: ' if different else ''}{counts['cells']} of {cells} cells; setting {number}, "
                    f"{drawn}: {', '.join(killed)}"
                    + (f"; {different} DIFFERENT BYTES in {disturbed}" if different else "")
                )
    except BaseException as error:
        raise AssertionError(f"seed {seed}, setting {number}: {drawn}") from error
    if not differing:
        shutil.rmtree(place)


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def _num_different(one: bytes, other: bytes) -> int:
    return sum(a != b for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--setting", type=int, help="judge this setting alone; its folders stay")
    given = parser.parse_args(arguments)
    begun = time.monotonic()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    if given.setting is None:
        found = run(cells=given.cells, seed=given.seed, progress=say)
    else:
        folder = Path(tempfile.mkdtemp(prefix="foresee-soak-"))
        counts: Counter[str] = Counter()
        with Commands(folder, ROW_OPTIMIZERS, DTYPES) as commands:
            judge(commands, folder, given.seed, given.setting, counts, threading.Lock(), CELLS_OF_A_SETTING, say)
        found = dict(counts)
    print(json.dumps({**found, "seconds": round(time.monotonic() - begun, 1)}))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
