"""A deterministic simulation of planner, trainers and servers in one thread, from one seed.

In: a seed. Out: a `SimulatedRun`: the violations (none, one hopes) and which faults came about. The same seed gives the
same run, event by event; `trace` prints them. The planner's records, the guards of servers, the exchange protocol
and the decisions of commits are the real code; time, messages and disks are simulated (`world`, `server`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from foresee.testing.simulation.case import Case, make_case
from foresee.testing.simulation.cluster import SimulatedCluster
from foresee.testing.simulation.world import Hostility, Stuck, World

SCHEDULES_OF_A_CASE = 200
"""Consecutive seeds share a trace and its plans: planning takes longer than a schedule."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What became of one schedule."""

    seed: int
    violations: tuple[str, ...]
    happened: Counter[str]
    num_events: int


def simulate(seed: int, *, trace: Callable[[str], None] | None = None) -> SimulatedRun:
    """One schedule."""
    case, rng = _case(seed // SCHEDULES_OF_A_CASE), Random(seed * 2 + 1)
    world = World(rng, _hostility(rng), trace=trace)
    world.say(
        f"{case.num_steps} steps, {case.num_workers} workers, {case.num_servers} servers, planner {case.planner}, "
        f"{case.header.options}, {world.hostility}"
    )
    cluster = SimulatedCluster(world, case)
    try:
        world.run()
        if not cluster.violations:
            cluster.check_end()
    except Stuck as stuck:
        cluster.wrong(None, str(stuck))
    except Exception as error:  # a finding like any other: it must not end the search
        cluster.wrong(None, f"{type(error).__name__}: {error}")
        if trace is not None:
            raise
    return SimulatedRun(seed, tuple(cluster.violations), world.happened, world.num_events)


def _hostility(rng: Random) -> Hostility:
    """Some schedules have no faults but delays, most have several."""
    network = rng.choice((0.0, 0.02, 0.1))
    return Hostility(
        drop=network * rng.random(),
        duplicate=network * rng.random() * 2,
        slow=rng.choice((0.0, 0.05, 0.3)),
        events_between_faults=rng.choice((0.0, 40.0, 80.0, 160.0)),
        faults_max=rng.randint(1, 5),
    )


@lru_cache(maxsize=2)
def _case(number: int) -> Case:
    return make_case(number)


__all__ = ["SCHEDULES_OF_A_CASE", "Case", "Hostility", "SimulatedRun", "simulate"]
