"""A hundred thousand simulated runs with deaths, stalls, lost, doubled and late messages: each must end as if without.

`run(schedules=, seed=, progress=)` simulates (see foresee.testing.simulation) on all cores and counts in how many
schedules each kind of fault came about: one that never did is itself a violation. A failing schedule is printed with
its seed, and

    python tests/chaos/schedules.py --seed SEED --trace

repeats it alone and prints every event.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

os.environ.setdefault("OMP_NUM_THREADS", "1")

from foresee.testing.simulation import SCHEDULES_OF_A_CASE, simulate

SEEDS_OF_A_RUN = 100_000_000
PROCESSES_MAX = 4
FEW = 2_000
"""Below so many schedules a rare fault may be missing."""
SHOWN = 5
FAULTS = (
    "trainer killed", "server killed", "planner killed", "everything killed", "server died inside a decision",
    "trainer stalled", "server stalled", "planner stalled", "stalled trainer replaced", "replaced trainer still alive",
    "request lost", "answer lost", "request repeated", "overtaken", "read parked", "replaced trainer refused",
    "death between preparation and decision", "death between decision and settlement", "resumed from a commit",
    "manifest written late by a replaced trainer", "step trained without a planner",
)  # fmt: skip

Progress = Callable[[str], None]
Found = tuple[int, list[tuple[int, str]], Counter[str]]


def run(
    *, schedules: int, seed: int, progress: Progress, processes: int | None = None, of_a_case: int = SCHEDULES_OF_A_CASE
) -> dict[str, int]:
    """Simulates so many schedules; `of_a_case` of them share a trace and its plans."""
    done, violations, happened = 0, list[tuple[int, str]](), Counter[str]()
    for number, wrong, faults in _all(_blocks(schedules, seed, of_a_case), processes):
        done += number
        violations += wrong
        happened += faults
        progress(f"{done:,} schedules, {len(violations)} violations")
    for found, what in violations[:SHOWN]:
        progress(f"VIOLATION: seed {found}: {what}")
    missing = [fault for fault in FAULTS if not happened[fault]] if schedules >= FEW else []
    for fault in missing:
        progress(f"VIOLATION: in no schedule happened: {fault}")
    progress("in so many schedules: " + ", ".join(f"{fault} {happened[fault]:,}" for fault in FAULTS))
    return {"schedules": done, "schedule_violations": len(violations) + len(missing)}


def _blocks(schedules: int, seed: int, of_a_case: int) -> Iterator[range]:
    """Seeds by case, so that one process makes the plans of a case once."""
    first_case = seed * SEEDS_OF_A_RUN // SCHEDULES_OF_A_CASE
    for block in range(-(-schedules // of_a_case)):
        first = (first_case + block) * SCHEDULES_OF_A_CASE
        yield range(first, first + min(of_a_case, schedules - block * of_a_case))


def _all(blocks: Iterator[range], processes: int | None) -> Iterator[Found]:
    processes = processes or min(PROCESSES_MAX, len(os.sched_getaffinity(0)))
    if processes == 1:
        yield from map(simulate_block, blocks)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(simulate_block, blocks)


def simulate_block(seeds: range) -> Found:
    """All schedules of some seeds: how many, what went wrong, and in how many of them each fault came about."""
    wrong: list[tuple[int, str]] = []
    happened: Counter[str] = Counter()
    gc.disable()  # schedules are short, and full of cycles that a collection now and then can take
    for seed in seeds:
        outcome = simulate(seed)
        happened.update(set(outcome.happened))
        wrong += [(seed, violation) for violation in outcome.violations[:1]]
    gc.enable()
    gc.collect()
    return len(seeds), wrong, happened


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of one schedule with --trace, else of the whole run")
    parser.add_argument("--trace", action="store_true", help="simulate one schedule and print its events")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--processes", type=int)
    arguments = parser.parse_args()
    if arguments.trace:
        outcome = simulate(arguments.seed, trace=print)
        print(f"{outcome.num_events} events, {dict(outcome.happened)}")
        print("\n".join(f"VIOLATION: {violation}" for violation in outcome.violations) or "no violation")
        return 1 if outcome.violations else 0
    found = run(schedules=arguments.schedules, seed=arguments.seed, progress=print, processes=arguments.processes)
    print(found)
    return 1 if found["schedule_violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
