"""A simulated trainer: four tasks, as the engine has threads, that carry out a plan with the engine's own decisions.

One asks for records, one fetches rows under their guards, one writes back, and one trains. The engine's own code
decides what workers exchange (`exchange.protocol`), which slots changed (`SlotTable`), what is fetched together and
whether rows have the right version (`pipeline`), who holds which row (`shards`), how a commit goes (`commits`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foresee.arrays import Int64
from foresee.engine.exchange.protocol import ExchangeProtocol, Phases, StartBackground, Swap
from foresee.engine.pipeline import WRITES_IN_FLIGHT, FetchBatching, may_be_fetched, merge_fetches, split_staging
from foresee.errors import ForeseeError, StoreError
from foresee.plan.record import Record
from foresee.store.commits import Commit, OpenAt, Prepare, Settle, step_to_open
from foresee.store.contract import Rows
from foresee.store.sharding import split
from foresee.testing.simulation import case as arithmetic
from foresee.testing.simulation.case import EXACT, ORDERED, WIDTH, SimulatedCache, SimulatedGradients
from foresee.testing.simulation.case import Task as Planned
from foresee.testing.simulation.server import JoinRequest, ReadRequest, Refused, WriteRequest
from foresee.testing.simulation.world import Call, Process, Task, World

if TYPE_CHECKING:
    from foresee.testing.simulation.cluster import Attempt, SimulatedCluster

BEGIN, SYNC, BARRIER = 10, 11, 12
"""Lanes beside those of the mesh: who begins where, what all agree on after a step, and meeting points."""
COMMIT_SHARE = 0.3
"""Share of steps after which worker 0 wants to commit."""

Answers = Generator[None, None, list[Any]]


class Trainer(Process):
    """One worker of one attempt."""

    def __init__(self, world: World, cluster: SimulatedCluster, attempt: Attempt, rank: int) -> None:
        super().__init__(world, f"{attempt.run} worker {rank}")
        self.cluster, self.attempt, self.rank = cluster, attempt, rank
        self._case, self._run = cluster.case, attempt.run
        self.is_done = False
        self._inbox: dict[Any, Any] = {}
        self._sequence: dict[int, int] = {}
        self._planned: deque[Planned] = deque()
        self._ready: deque[tuple[Planned, Rows]] = deque()
        self._writes: deque[tuple[int, Int64, Rows, int]] = deque()
        self._cache = SimulatedCache(self._case.layout, self._case.header.capacity_rows)
        self._protocol = ExchangeProtocol(self._case.layout, rank, self._case.num_workers)
        self._in_background = False
        self._tickets = self._tickets_done = 0
        self._incarnations: list[str] = []
        self._ahead = self._case.header.fetch_ahead_steps + 2
        self.start(self._main())

    def poll(self) -> None:
        try:
            super().poll()
        except ForeseeError as error:
            self.world.say(f"{self.name} ends: {error}")
            self.cluster.trainer_failed(self, error)

    def receive(self, key: Any, content: Any) -> bool:
        number, peer = key
        arrived = self._inbox.setdefault(number, {})
        arrived[peer] = content
        return len(arrived) == self._case.num_workers - 1

    # Training --------------------------------------------------------------------------------------------------------

    def _main(self) -> Task:
        first_step = yield from self._begin()
        self._steps_done, self._dense = first_step, self.cluster.dense_of(first_step)
        self._applied, self._last_commit = first_step - 1, first_step
        for task in (self._ask_records(first_step), self._fetch_rows(first_step), self._write_back()):
            self.start(task)
        while self._steps_done < self._case.num_steps:
            while not self._ready:
                yield
            planned, staging = self._ready.popleft()
            self.progress = True
            yield from self._step(planned, staging)
        self.is_done = True
        self.cluster.trainer_done()

    def _step(self, planned: Planned, staging: Rows) -> Task:
        """The phases of a step in the order of `engine.run`."""
        record = planned.record
        self._cache.fill(record.fetch, staging)
        self._protocol.receive_rows(record.step, self._cache)  # type: ignore[arg-type]
        sums, contribution = self._gradients(planned)
        yield from self.sleep(self.world.rng.random())
        wishes = yield from self._swap(SYNC, [(contribution, self._wants_commit())] * self._case.num_workers)
        self._dense += sum(wish[0] for wish in wishes) + record.step
        yield from self._update(planned, sums)
        self._steps_done = record.step + 1
        while len(self._writes) >= WRITES_IN_FLIGHT:
            yield
        self._writes.append((record.step, record.evict.row, self._cache.take(record.evict), 0))
        self.progress = True
        if self._case.num_workers > 1:
            yield from self._carry_out(
                self._protocol.send_rows(record, planned.schedule, self._cache)  # type: ignore[arg-type]
            )
        self.cluster.step_done(self)
        if any(wish[1] for wish in wishes) or self._steps_done == self._case.num_steps:
            yield from self._keep()

    def _gradients(self, planned: Planned) -> tuple[Any, int]:
        """Sums for each distinct row, from the values that are read; they must be those of synchronous training."""
        record, step = planned.record, planned.record.step
        read = self._cache.rows.values[record.unique, EXACT]
        if not np.array_equal(read, self._case.reference.values[step][planned.rows]):
            self.cluster.wrong(self, f"step {step}: rows {planned.rows.tolist()} were read as {read.tolist()}")
        each = arithmetic.gradients(read[record.inverse], planned.keys)
        sums = np.empty((len(planned.rows), WIDTH), np.float32)
        sums[:, EXACT] = np.bincount(record.inverse, weights=each, minlength=len(planned.rows))
        sums[:, ORDERED] = planned.ordered
        return torch.from_numpy(sums), int(each.sum())

    def _update(self, planned: Planned, sums: Any) -> Task:
        if self._case.num_workers == 1:
            self._cache.apply(planned.record.unique, sums, version=planned.record.step + 1)
            return
        record, schedule = planned.record, planned.schedule
        gradients = SimulatedGradients(record, sums, self._cache)
        yield from self._carry_out(
            self._protocol.update(record, schedule, gradients, self._cache)  # type: ignore[arg-type]
        )

    def _wants_commit(self) -> bool:
        return self.rank == 0 and self.world.rng.random() < COMMIT_SHARE

    # Peers -----------------------------------------------------------------------------------------------------------

    def _carry_out(self, phases: Phases) -> Task:
        answer: Any = None
        while True:
            try:
                request = phases.send(answer)
            except StopIteration:
                return
            answer = None
            if isinstance(request, Swap):
                answer = yield from self._swap(request.lane, request.contents, request.meanwhile)
            elif isinstance(request, StartBackground):
                self._in_background = True
                self.start(self._travel(request.phases))
            else:
                yield from self._finish_background()

    def _travel(self, phases: Phases) -> Task:
        yield from self._carry_out(phases)
        self._in_background = False

    def _finish_background(self) -> Task:
        while self._in_background:
            yield
        self.progress = True

    def _swap(self, lane: int, contents: list[Any], meanwhile: Callable[[], None] = lambda: None) -> Answers:
        """An all-to-all: what each worker sent, in worker order."""
        number = self._sequence[lane] = self._sequence.get(lane, -1) + 1
        for peer in self.attempt.trainers:
            if peer is not self:
                self.world.post(peer, ((lane, number), self.rank), contents[peer.rank])
        meanwhile()
        arrived = self._inbox.setdefault((lane, number), {})
        while len(arrived) < self._case.num_workers - 1:
            yield
        self.progress = True
        arrived[self.rank] = contents[self.rank]
        del self._inbox[lane, number]
        return [arrived[rank] for rank in range(self._case.num_workers)]

    # Rows ------------------------------------------------------------------------------------------------------------

    def _ask_records(self, step: int) -> Task:
        first_step = step
        while step < self._case.num_steps:
            while len(self._planned) >= self._ahead:
                yield
            call = self.world.call(self, "planner", "records", (first_step, self.rank, step))
            while call.answer is None:
                yield
            self._planned.extend(call.answer)
            step += len(call.answer)
            self.progress = True

    def _fetch_rows(self, step: int) -> Task:
        """As the reader of `engine.pipeline`: in step order, each fetch after this worker's write-backs it names."""
        batching = FetchBatching.from_header(self._case.header, at_once=True)
        while step < self._case.num_steps:
            while not self._planned or len(self._ready) > batching.in_hand_steps:
                yield
            together = [self._planned.popleft()]
            self.progress = True
            while self._applied < together[0].record.not_before:
                yield
            num_steps = batching.num_steps(len(self._ready))
            while len(together) < num_steps and self._planned:
                if not may_be_fetched(self._planned[0].record, self._applied):
                    break
                together.append(self._planned.popleft())
            for planned, staging in zip(together, (yield from self._read(together)), strict=True):
                self._check_read(planned.record, staging)
                self._ready.append((planned, staging))
            self.progress = True
            step += len(together)

    def _read(self, together: list[Planned]) -> Generator[None, None, list[Rows]]:
        records, run = [planned.record for planned in together], self._run
        fetch, not_before = merge_fetches(records)
        staging = Rows.empty(len(fetch), self._case.layout)
        parts = split(fetch.row, self._case.num_servers)
        calls = []
        for server, incarnation in enumerate(self._incarnations):
            at = parts.of(server)
            if len(at):
                request = ReadRequest(
                    run=run, incarnation=incarnation, rows=fetch.row[at], versions=fetch.version[at],
                    not_before=not_before,
                )  # fmt: skip
                calls.append((at, self.world.call(self, f"server {server}", "read", request)))
        answers = yield from self._answers([call for _, call in calls])
        for (at, _), found in zip(calls, answers, strict=True):
            staging.values[at], staging.state[at], staging.versions[at] = found.values, found.state, found.versions
        return split_staging(records, staging)

    def _check_read(self, record: Record, staging: Rows) -> None:
        """Independent of the version check above: what was read is the row as synchronous training has it."""
        true = self._case.reference.versions[record.step][record.fetch.row]
        if not np.array_equal(true, staging.versions):
            self.cluster.wrong(
                self, f"step {record.step}: rows {record.fetch.row.tolist()} were fetched in versions "
                f"{staging.versions.tolist()}, training needs {true.tolist()}"
            )  # fmt: skip

    def _write_back(self) -> Task:
        """As the writer of `engine.pipeline`: in order, one after the other."""
        while True:
            while not self._writes:
                yield
            step, rows, values, ticket = self._writes[0]
            yield from self._write(step, rows, values)
            self._writes.popleft()
            self._applied = max(self._applied, step)
            self._tickets_done = max(self._tickets_done, ticket)
            self.progress = True

    def _write(self, step: int, rows: Int64, values: Rows) -> Task:
        parts = split(rows, self._case.num_servers)
        calls = []
        for server, incarnation in enumerate(self._incarnations):
            at = parts.of(server)
            pieces = [at] if len(at) < 2 else [at[: len(at) // 2], at[len(at) // 2 :]]
            chunks = [
                (rows[piece], Rows(values.values[piece], values.state[piece], values.versions[piece]))
                for piece in pieces
                if len(piece)
            ]
            request = WriteRequest(run=self._run, incarnation=incarnation, worker=self.rank, step=step, chunks=chunks)
            calls.append(self.world.call(self, f"server {server}", "write", request))
        yield from self._answers(calls)

    def _answers(self, calls: list[Call]) -> Answers:
        while any(call.answer is None for call in calls):
            yield
        self.progress = True
        for call in calls:
            self._check_answer(call)
        return [call.answer for call in calls]

    @staticmethod
    def _check_answer(call: Call) -> None:
        if isinstance(call.answer, Refused):
            raise call.answer.error

    # Commits ---------------------------------------------------------------------------------------------------------

    def _begin(self) -> Generator[None, None, int]:
        """Worker 0 finds out where to go on and opens all servers there; then every worker joins."""
        opened: tuple[int, list[str]] | None = None
        if self.rank == 0:
            opened = yield from self._open()
        told = yield from self._swap(BEGIN, [opened] * self._case.num_workers)
        first_step: int = told[0][0]
        self._incarnations = told[0][1]
        joining = JoinRequest(
            run=self._run, worker=self.rank, num_workers=self._case.num_workers, first_step=first_step
        )
        yield from self._ask_all("join", [joining] * self._case.num_servers)
        return first_step

    def _open(self) -> Generator[None, None, tuple[int, list[str]]]:
        parts = yield from self._ask_all("describe", [None] * self._case.num_servers)
        step = step_to_open(self.cluster.manifests, [part.openable for part in parts])
        if step is None:
            self.cluster.nothing_to_open(self, parts)
            raise StoreError("there is no commit to go on from")
        messages = [
            OpenAt(
                run=self._run,
                incarnation=part.incarnation,
                epoch=part.epoch,
                step=step,
                started=self.attempt.number,
            )
            for part in parts
        ]
        yield from self._ask_all("open", [(message, self._case.num_workers) for message in messages])
        self.cluster.opened(self, step)
        return step, [part.incarnation for part in parts]

    def _keep(self) -> Task:
        """All workers come here after the same step; what their caches hold is at the servers before worker 0 acts."""
        yield from self._flush()
        yield from self._swap(BARRIER, [None] * self._case.num_workers)
        if self.rank == 0:
            yield from self._commit()
        yield from self._swap(BARRIER, [None] * self._case.num_workers)

    def _flush(self) -> Task:
        yield from self._finish_background()
        for rows, values in [*self._protocol.waiting(), *self._cache.changed()]:
            self._tickets += 1
            self._writes.append((self._steps_done - 1, rows, values, self._tickets))
        self.progress = True
        while self._tickets_done < self._tickets:
            yield

    def _commit(self) -> Task:
        commit = Commit(run=self._run, step=self._steps_done, on=self._last_commit, num_parts=self._case.num_servers)
        commit = yield from self._tell(commit, lambda commit: commit.may_decide)
        yield from self.sleep(self.world.rng.random())
        self.cluster.write_manifest(self, commit.step, self._dense)
        commit = commit.after_manifest()
        self._last_commit = commit.step
        if self.world.rng.random() < 0.5 or self._steps_done == self._case.num_steps:
            yield from self._settle(commit)
        else:
            self.start(self._settle(commit, after=20.0 * self.world.rng.random()))

    def _settle(self, commit: Commit, after: float = 0.0) -> Task:
        """Perhaps while training goes on: then the next commit may overtake it, and says the same."""
        if after:
            yield from self.sleep(after)
        try:
            yield from self._tell(commit, lambda commit: commit.done)
        except StoreError:
            if commit.step == self._last_commit:
                raise
            return
        if after:
            self.cluster.check_whole("after it was settled")
        self.cluster.forget_manifests(commit.on)

    def _tell(self, commit: Commit, reached: Callable[[Commit], bool]) -> Generator[None, None, Commit]:
        """Everybody is told what is outstanding, once (lost messages are repeated below), until so much is reached."""
        told: dict[tuple[int, type], tuple[Prepare | Settle, Call]] = {}
        counted: set[tuple[int, type]] = set()
        while not reached(commit):
            for part, to in commit.outstanding().items():
                if (part, type(to)) not in told:
                    told[part, type(to)] = to, self.world.call(self, f"server {part}", "commit", (to, 1))
            news = [key for key, (_, call) in told.items() if call.answer is not None and key not in counted]
            if not news:
                yield
                continue
            for key in news:
                to, call = told[key]
                self._check_answer(call)
                counted.add(key)
                commit = commit.consented(key[0], to)
        self.progress = True
        return commit

    def _ask_all(self, kind: str, requests: list[Any]) -> Answers:
        calls = [self.world.call(self, f"server {server}", kind, request) for server, request in enumerate(requests)]
        answers = yield from self._answers(calls)
        return answers
