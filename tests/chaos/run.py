"""`make chaos`: the long version of all fault tests, one after another, and one JSON object at the end.

    python tests/chaos/run.py [--seed N] [--only NAME ...] [--quick]

Parts: disk (the power goes at every operation), schedules (simulated runs), mutants (each rule broken on purpose),
hostile (messages and files of strangers), kills (real processes), soak (random settings, killed late). Each says how
far it is: always on a terminal, every half minute elsewhere. The last line of the output is JSON; the exit code is 1 if
anything was wrong. docs/testing.md says what each part proves, and how a finding is repeated.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
for _neighbour in (".", "store", "launch", "engine", "run", "data", "chaos"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / _neighbour))

from rich.console import Console  # noqa: E402
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: E402

PLAIN_SECONDS = 30.0
Say = Callable[[str], None]
Result = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kind of fault test."""

    long: int
    """How many trials in the long version."""
    quick: int
    counts: str
    """The figure that says how many were tried."""
    wrong: str
    """The figure that has to be 0."""
    keyword: str | None
    """How the module calls the number of trials."""
    module: str | None = None
    """Where it stands, if not in the file of its name."""


PARTS = {
    "disk": Part(
        long=8_000, quick=1_500, counts="disk_trials", wrong="disk_violations", keyword="trials", module="power_cuts"
    ),
    "mutants": Part(long=1, quick=1, counts="mutants", wrong="mutants_alive", keyword=None),
    "schedules": Part(long=100_000, quick=3_000, counts="schedules", wrong="schedule_violations", keyword="schedules"),
    "hostile": Part(long=100_000, quick=2_000, counts="hostile_tried", wrong="hostile_crashes", keyword="trials"),
    "kills": Part(long=500, quick=10, counts="kills", wrong="different_bytes", keyword="kills"),
    "soak": Part(long=200, quick=6, counts="cells", wrong="different_bytes", keyword="cells"),
}


def main() -> int:
    arguments = _arguments()
    console = Console(stderr=True)
    begun = time.monotonic()
    results: dict[str, int | float] = {}
    failed: list[str] = []
    for name in arguments.only or PARTS:
        try:
            for figure, value in _run(name, arguments.seed, arguments.quick, console).items():
                results[figure] = results.get(figure, 0) + value  # kills and soak both count different bytes
        except Exception:
            console.print(traceback.format_exc(), markup=False, highlight=False)
            failed.append(name)
    wrong = [PARTS[name].wrong for name in PARTS if results.get(PARTS[name].wrong)]
    results |= {"seed": arguments.seed, "seconds": round(time.monotonic() - begun, 1)}
    for name in failed:
        console.print(f"{name} failed; see above", style="red")
    print(json.dumps(results), flush=True)
    return 1 if wrong or failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of all random choices")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), help="these parts and no others")
    parser.add_argument("--quick", action="store_true", help="a few of each, in a few minutes")
    return parser.parse_args()


def _run(name: str, seed: int, quick: bool, console: Console) -> Result:
    """One part, with a line on a terminal that says how far it is; what it finds stays on the screen."""
    part = PARTS[name]
    module = importlib.import_module(part.module or name)
    number = part.quick if quick else part.long
    texts = TextColumn("{task.fields[name]}"), TextColumn("{task.description}")
    with Progress(SpinnerColumn(), texts[0], TimeElapsedColumn(), texts[1], console=console, transient=True) as bars:
        bar = bars.add_task("begins", name=name)

        said = time.monotonic()

        def say(text: str) -> None:
            nonlocal said
            bars.update(bar, description=text[: max(20, console.width - 30)])
            if not console.is_terminal and time.monotonic() - said > PLAIN_SECONDS:
                said = time.monotonic()
                console.print(f"{name}: {text}", markup=False, highlight=False)
            if text.startswith("VIOLATION") or "ALIVE" in text:
                bars.console.print(f"{name}: {text}", markup=False, highlight=False)

        begun = time.monotonic()
        if part.keyword is None:
            found: Result = module.run(progress=say)
        else:
            found = module.run(**{part.keyword: number}, seed=seed, progress=say)
    console.print(f"{name}: {found} in {time.monotonic() - begun:.0f} s", highlight=False)
    return found


if __name__ == "__main__":
    sys.exit(main())
