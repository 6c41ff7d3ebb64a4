"""The planner that simulated trainers ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foresee.testing.simulation.world import Call, Process, World

if TYPE_CHECKING:
    from foresee.testing.simulation.cluster import Cluster

RECORDS_OF_ONE_ANSWER = 3


class Planner(Process):
    """Plans again from the run's first step whenever it is started, and gives each worker its own records."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        super().__init__(world, "planner")
        self._cluster = cluster
        world.roles[self.name] = self

    def handle(self, call: Call) -> None:
        first_step, worker, step = call.request
        tasks = self._cluster.case.plan(first_step).tasks[step - first_step :][:RECORDS_OF_ONE_ANSWER]
        self.world.reply(call, [together[worker] for together in tasks])
