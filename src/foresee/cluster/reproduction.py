"""A stored schedule, carried out again round by round.

In: jobs, the cluster, and for each round the ids that ran. Out: the run, as the simulator would have recorded it.
This is how published results are checked: the same schedule must give the same completion times.
Never: choose anything; a schedule that cannot be carried out as written is an error that names the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foresee.cluster.estimators import reactive
from foresee.cluster.job import Cluster, Job, check_jobs
from foresee.cluster.placement import fill, place
from foresee.cluster.simulation import Run, Simulator
from foresee.errors import PlanError
from foresee.io.units import counted


def replay(jobs: Iterable[Job], cluster: Cluster, schedule: Iterable[Sequence[str]]) -> Run:
    simulator = Simulator(check_jobs(jobs, cluster), cluster, reactive)
    for index, ids in enumerate(schedule):
        simulator.advance_to_work()
        live = simulator.gangs()
        if strangers := [id for id in ids if id not in live]:
            raise PlanError(f"round {index} of the schedule runs job {strangers[0]!r}, not live then: not its jobs?")
        if fill(ids, live, cluster.gpus) != tuple(ids):
            raise PlanError(f"round {index} of the schedule needs more than {cluster.gpus} GPUs: not its cluster?")
        simulator.run_round(place({id: live[id] for id in ids}, simulator.previous, cluster))
    if simulator.advance_to_work():
        left = list(simulator.gangs())
        raise PlanError(
            f"the schedule ends with {counted(len(left), 'job')} unfinished, the first {left[0]!r}: not its jobs?"
        )
    return simulator.result()
