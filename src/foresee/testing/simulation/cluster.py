"""Everything a simulated run consists of: planner, trainers, servers, the launcher, and the judge of what they leave.

The launcher restarts the planner alone; if a trainer or a server ends, it begins a new attempt: dead servers start from
their disks, and new trainers go on from the last commit. It may give up a trainer that only stalled: that one goes on
some day, and must not disturb the attempt that replaced it.

Judged: every read against synchronous training; after every death, that exactly one commit can be opened, that it is
whole at all servers and no older than the newest decided one; at the end, every value, state and version.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from foresee.errors import ForeseeError, StaleReadError, StoreError
from foresee.store.commits import Part, step_to_open
from foresee.store.server.shard import Share
from foresee.testing.simulation.case import EXACT, ORDERED, Case
from foresee.testing.simulation.server import Disk, Server, rows_of_commit
from foresee.testing.simulation.trainer import Trainer
from foresee.testing.simulation.world import Call, Process, World

VIOLATIONS_MAX = 5
STARTS_STALLED = 0.1
"""Share of new attempts whose first trainer stalls before it has done anything, and is replaced."""
ATTEMPTS_STALLED_MAX = 6


@dataclass
class Attempt:
    """One start of all trainers."""

    run: str
    number: int
    trainers: list[Trainer] = field(default_factory=list)
    excused: bool = False
    """Something was done to it, so it may fail."""


class SimulatedCluster:
    """One run under test."""

    def __init__(self, world: World, case: Case) -> None:
        self.world, self.case = world, case
        self.violations: list[str] = []
        self.manifests: dict[int, int] = {}
        """The shared folder: for each kept commit the dense half. That of step 0 follows from the seed."""
        self._late: set[int] = set()
        """Manifests that only replaced trainers wrote."""
        self.decided = 0
        """The newest step that the newest attempt decided to commit."""
        self._openings: list[int] = []
        self._attempts: list[Attempt] = []
        self._num_incarnations = 0
        self._restarting = False
        self._shares = [Share(shard, case.num_servers) for shard in range(case.num_servers)]
        self._disks = [Disk() for _ in self._shares]
        world.on_fault = self._on_fault
        for shard in range(case.num_servers):
            self._start_server(shard)
        self.planner = Planner(world, self)
        self._begin_attempt()

    @property
    def current(self) -> Attempt:
        return self._attempts[-1]

    def trainer_done(self) -> None:
        self.world.is_over = not self._restarting and all(trainer.is_done for trainer in self.current.trainers)

    # What trainers tell ----------------------------------------------------------------------------------------------

    def wrong(self, trainer: Trainer | None, what: str) -> None:
        """A trainer that was replaced may see anything: it cannot write."""
        if trainer is not None and trainer.attempt is not self.current:
            return
        self.world.say(f"VIOLATION: {what}")
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(what if trainer is None else f"{trainer.name}, {what}")
        self.world.is_over = True

    def opened(self, trainer: Trainer, step: int) -> None:
        self._openings.append(step)
        if trainer.attempt is self.current:
            if step < self.decided:
                self.wrong(None, f"{trainer.name} goes on from step {step}, but step {self.decided} was decided")
            self.decided = step
        if step and len(self._attempts) > 1:
            self.world.happened["resumed from a commit"] += 1

    def nothing_to_open(self, trainer: Trainer, parts: list[Part]) -> None:
        """A run stops and says so if its only manifests were written by replaced trainers before its first commit: it
        cannot tell them from those of rows that were lost. A person removes them."""
        if not self.decided and self._late.issuperset(self.manifests) and all(0 in part.openable for part in parts):
            self.world.happened["manifests of replaced trainers removed by hand"] += 1
            self.manifests.clear()
            trainer.attempt.excused = True
        else:
            self.wrong(trainer, f"there is no commit to go on from: {self.manifests}, {parts}")

    def dense_of(self, step: int) -> int:
        if step == 0:
            return 0
        if step not in self.manifests:
            raise StoreError(f"the checkpoint of step {step} is gone: other trainers have gone on")
        return self.manifests[step]

    def step_done(self, trainer: Trainer) -> None:
        if not self.planner.alive:
            self.world.happened["step trained without a planner"] += 1

    def write_manifest(self, trainer: Trainer, step: int, dense: int) -> None:
        self.world.say(f"{trainer.name} writes the manifest of step {step}")
        self.world.happened["commit decided"] += 1
        self.manifests[step] = dense
        if trainer.attempt is not self.current or self._restarting:
            self.world.happened["manifest written late by a replaced trainer"] += 1
            self._late.add(step)
            return
        self._late.discard(step)
        self.decided = step
        self.check_whole("after its manifest was written")

    def forget_manifests(self, before: int) -> None:
        """Only older ones: whoever does this may have been replaced meanwhile by a run that has come further."""
        for step in [step for step in self.manifests if step < before]:
            del self.manifests[step]

    def trainer_failed(self, trainer: Trainer, error: ForeseeError) -> None:
        self.world.kill(trainer)
        if trainer.attempt is not self.current:
            self.world.happened["replaced trainer refused"] += 1
            return
        if isinstance(error, StaleReadError) or not trainer.attempt.excused:
            self.wrong(None, f"{trainer.name} ended although nothing was done to it: {error}")
        self._restart_all()

    # Faults ----------------------------------------------------------------------------------------------------------

    def _on_fault(self) -> None:
        rng, trainers = self.world.rng, [trainer for trainer in self.current.trainers if trainer.alive]
        servers = [self.world.roles[f"server {shard}"] for shard in range(self.case.num_servers)]
        victims = [*trainers, *(server for server in servers if server.alive)]
        victims += [self.planner] if self.planner.alive else []
        if not victims:
            return
        victim = rng.choice(victims)
        role = "trainer" if isinstance(victim, Trainer) else victim.name.split()[0]
        draw = rng.random()
        if draw < 0.06:
            self.world.happened["everything killed"] += 1
            self.world.say("everything is killed")
            for process in victims:
                self.world.kill(process)
            self._after_death("everything")
        elif draw < 0.7:
            self.world.happened[f"{role} killed"] += 1
            self.world.say(f"{victim.name} is killed")
            self.world.kill(victim)
            self._after_death(role)
        else:
            self.world.happened[f"{role} stalled"] += 1
            self.world.stall(victim)
            self.world.say(f"{victim.name} stalls until {victim.awake_at:.2f}")
            if role == "trainer" and rng.random() < 0.5:
                self.world.happened["stalled trainer replaced"] += 1
                self._restart_all()

    def _after_death(self, role: str) -> None:
        self._note_commit_state()
        self.check_whole("after a death")
        if role in ("planner", "everything"):
            self.world.at(2.0 + 20.0 * self.world.rng.random(), self._start_planner)
        if role != "planner":
            self._restart_all()

    def _server_died(self) -> None:
        """By itself, in the middle of a decision."""
        self._after_death("server")

    def _server_opened(self, run: str | None) -> None:
        if run != self.current.run:
            self.world.happened["server taken back by a replaced trainer"] += 1
            self.current.excused = True

    def _note_commit_state(self) -> None:
        newest = max(self.manifests, default=0)
        prepared = [disk.part.prepared for disk in self._disks if disk.part.prepared is not None]
        if any(step == newest for step in prepared):
            self.world.happened["death between decision and settlement"] += 1
        if any(step > newest for step in prepared):
            self.world.happened["death between preparation and decision"] += 1

    def _restart_all(self) -> None:
        self.current.excused = True
        if not self._restarting:
            self._restarting = True
            self.world.at(1.0 + 10.0 * self.world.rng.random(), self._begin_attempt)

    def _begin_attempt(self) -> None:
        self._restarting = False
        for attempt in self._attempts:
            for trainer in attempt.trainers:
                stalled = trainer.awake_at > self.world.now
                if trainer.alive and not (stalled and self.world.rng.random() < 0.7):
                    self.world.kill(trainer)
                elif trainer.alive:
                    self.world.happened["replaced trainer still alive"] += 1
        for shard in range(self.case.num_servers):
            if not self.world.roles[f"server {shard}"].alive:
                self._start_server(shard)
        attempt = Attempt(f"run {len(self._attempts)}", len(self._attempts) + 1)
        self._attempts.append(attempt)
        self.world.say(f"{attempt.run} begins")
        if len(self._attempts) > 1:
            self.world.happened["new attempt"] += 1
        attempt.trainers = [Trainer(self.world, self, attempt, rank) for rank in range(self.case.num_workers)]
        for trainer in attempt.trainers:
            self.world.at(self.world.rng.random(), trainer.wake)
        if 1 < len(self._attempts) < ATTEMPTS_STALLED_MAX and self.world.rng.random() < STARTS_STALLED:
            self.world.happened["trainer stalled at its start"] += 1
            self.world.stall(attempt.trainers[0])
            self._restart_all()

    def _start_server(self, shard: int) -> None:
        self._num_incarnations += 1
        Server(
            self.world, self._disks[shard], self.case.layout, self._shares[shard], f"i{self._num_incarnations}",
            died=self._server_died, opened=self._server_opened,
        )  # fmt: skip

    def _start_planner(self) -> None:
        if not self.planner.alive:
            self.planner = Planner(self.world, self)

    # The judge -------------------------------------------------------------------------------------------------------

    def check_whole(self, when: str) -> None:
        """What would be found if everything ended now."""
        openable = [disk.part.openable for disk in self._disks]
        step = step_to_open(self.manifests, openable)
        if step is None and not self.decided and self._late.issuperset(self.manifests):
            return
        if step is None or step < self.decided:
            self.wrong(None, f"{when}: step {self.decided} was decided, but {step} would be opened ({openable})")
            return
        if step and self.manifests[step] != self.case.reference.dense[step]:
            self.wrong(None, f"{when}: the dense half of step {step} is wrong")
        for disk, share in zip(self._disks, self._shares, strict=True):
            self._check_rows(step, disk, share, when)

    def _check_rows(self, step: int, disk: Disk, share: Share, when: str) -> None:
        rows, found = rows_of_commit(disk, step, self.case.layout, share)
        reference = self.case.reference
        right = (
            np.array_equal(found.versions, reference.versions[step][rows])
            and np.array_equal(found.values[:, EXACT], reference.values[step][rows])
            and np.array_equal(found.state[:, 0], reference.state[step][rows])
        )
        if not right:
            self.wrong(
                None, f"{when}: commit {step} at server {share.shard} has versions {found.versions.tolist()}, values "
                f"{found.values[:, EXACT].tolist()}, not {reference.versions[step][rows].tolist()}, "
                f"{reference.values[step][rows].tolist()}"
            )  # fmt: skip
        elif not np.array_equal(found.values[:, ORDERED], self._ordered(rows, found.versions)):
            self.wrong(None, f"{when}: commit {step} at server {share.shard}: gradients were summed in another order")

    def _ordered(self, rows: np.ndarray, versions: np.ndarray) -> np.ndarray:
        """What the last sum of each row must be, by the plan of whoever trained that step in the end."""
        expected = np.zeros(len(rows), np.float32)
        for position, (row, version) in enumerate(zip(rows.tolist(), versions.tolist(), strict=True)):
            if version:
                first = next((first for first in reversed(self._openings) if first < version), 0)
                expected[position] = self.case.plan(first).ordered[version - 1 - first][row]
        return expected

    def check_end(self) -> None:
        self.check_whole("at the end")
        if self.decided != self.case.num_steps:
            self.wrong(None, f"the run ended with step {self.decided} of {self.case.num_steps} committed")
        for shard, disk in enumerate(self._disks):
            if (disk.part.committed, disk.part.prepared) != (self.case.num_steps, None):
                self.wrong(None, f"server {shard} ended with {disk.part}")


RECORDS_OF_ONE_ANSWER = 3


class Planner(Process):
    """Plans again from the run's first step whenever it is started, and gives each worker its own records."""

    def __init__(self, world: World, cluster: SimulatedCluster) -> None:
        super().__init__(world, "planner")
        self._cluster = cluster
        world.roles[self.name] = self

    def handle(self, call: Call) -> None:
        first_step, worker, step = call.request
        tasks = self._cluster.case.plan(first_step).tasks[step - first_step :][:RECORDS_OF_ONE_ANSWER]
        self.world.reply(call, [together[worker] for together in tasks])
