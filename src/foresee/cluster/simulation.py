"""Rounds of a cluster, carried out on paper: jobs and an order in, who ran when out.

Each round: arrived jobs join, the order says who matters most, gangs are filled in whole or skipped, everybody chosen
runs for one round and pays for a restart if it did not run in the round before. A round ends when its last job does,
so it can be short at the end.
Never: wall-clock time, randomness or files; the same input gives the same run, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from foresee.cluster.estimators import ASSUMED_ERROR, ErrorRecord, Estimator, Progress, reactive
from foresee.cluster.execution import Execution, start_execution
from foresee.cluster.job import Cluster, Job, check_jobs
from foresee.cluster.placement import Placement, place, speed_of
from foresee.errors import ConsistencyError


@dataclass(kw_only=True, slots=True)  # not frozen: one is made per job and round, and that takes three times as long
class Live:
    """What a policy may know of a job that has arrived and not finished; it reads and never writes."""

    job: Job
    remaining_seconds: float
    """Estimated run time left; never the truth unless the estimator is the oracle."""
    served_seconds: float
    units_done: float
    seconds_per_unit: float
    running: bool
    """It ran in the round before, so going on costs no restart."""
    waited_seconds: float
    """Time since arrival in which it did not run."""
    steps_per_second: float = 1.0
    """Speed as the job itself counts it; only policies that add up throughputs look at it."""
    first_estimate_seconds: float = 0.0
    """Run time left as it was estimated on arrival."""
    estimate_error: float = 0.0
    """Spread of log(true / estimated run time) over the jobs finished so far: the same for all live jobs."""

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def gpus(self) -> int:
        return self.job.gpus


Order = Callable[[float, Sequence[Live]], list[str]]
"""`order(now, live)`: ids, most urgent first. A job left out is held back even if it would fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    start_seconds: float
    end_seconds: float
    ids: tuple[str, ...]
    num_live: int
    placement: Placement = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One job's fate."""

    job: Job
    start_seconds: float
    finish_seconds: float
    num_starts: int
    served_seconds: float
    first_round: int
    """Index of the first round that found the job in the queue."""
    end_round: int
    """One past the last round of its life."""
    first_estimate_seconds: float
    """Run time in all, as estimated on arrival."""

    @property
    def jct_seconds(self) -> float:
        """Job completion time: from arrival to finish."""
        return self.finish_seconds - self.job.arrival_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A finished simulation."""

    cluster: Cluster
    rounds: tuple[Round, ...]
    outcomes: tuple[Outcome, ...]
    """In order of arrival."""
    busy_gpu_seconds: float
    """GPU time spent on work, restarts not counted."""

    @property
    def start_seconds(self) -> float:
        return self.rounds[0].start_seconds if self.rounds else 0.0

    @property
    def makespan_seconds(self) -> float:
        return max((outcome.finish_seconds for outcome in self.outcomes), default=0.0)


def fill(order: Iterable[str], gpus_of: Mapping[str, int], gpus: int) -> tuple[str, ...]:
    """Take jobs in order while they fit whole; a gang that does not fit is skipped, the next may still fit."""
    chosen: list[str] = []
    for id in order:
        if gpus_of[id] <= gpus:
            chosen.append(id)
            gpus -= gpus_of[id]
            if gpus == 0:
                break
    return tuple(chosen)


def simulate(
    jobs: Iterable[Job],
    cluster: Cluster,
    order: Order,
    *,
    estimator: Estimator = reactive,
    start_seconds: float = 0.0,
    assumed_error: float = ASSUMED_ERROR,
    on_round: Callable[[float, int], None] | None = None,
) -> Run:
    """Run all jobs to their end; nothing runs before `start_seconds`, though jobs may have arrived by then.

    Jobs that are running as the plan begins (`started_seconds`) keep their GPUs to their end, whatever the order says.
    `assumed_error` is the spread of log errors policies are told of until jobs have shown theirs;
    `on_round(now, finished)` is called once a round, for progress bars.
    """
    simulator = Simulator(check_jobs(jobs, cluster), cluster, estimator, start_seconds, assumed_error)
    while simulator.advance_to_work():
        live = simulator.live()
        ids = order(simulator.now, live)
        gpus_of = {entry.id: entry.gpus for entry in live}
        if unknown := [id for id in ids if id not in gpus_of]:
            raise ConsistencyError(f"the order at {simulator.now:g} s names job {unknown[0]!r}, which is not live")
        keeping = [entry.id for entry in live if entry.job.started_seconds is not None]
        simulator.run_round(fill(dict.fromkeys([*keeping, *ids]), gpus_of, cluster.gpus))
        if on_round is not None:
            on_round(simulator.now, len(simulator.outcomes))
    return simulator.result()


@dataclass(slots=True)
class _Entry:
    job: Job
    execution: Execution
    first_round: int
    first_estimate_seconds: float
    start_seconds: float | None = None
    num_starts: int = 0
    elapsed_seconds: float = 0.0


class Simulator:
    """The state of a run between rounds. `simulate` drives it with a policy, `replay.py` with a stored schedule."""

    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: Cluster,
        estimator: Estimator,
        start_seconds: float = 0.0,
        assumed_error: float = ASSUMED_ERROR,
    ) -> None:
        self.now = max(start_seconds, jobs[0].arrival_seconds if jobs else 0.0)
        self.outcomes: list[Outcome] = []
        self._cluster = cluster
        self._estimator = estimator
        self._queued = list(reversed(jobs))
        self._entries: dict[str, _Entry] = {}
        self._rounds: list[Round] = []
        # Whoever has made progress before the first round is running as it begins; where, nobody said.
        self._previous: Placement = {job.id: () for job in jobs if job.done_seconds or job.started_seconds is not None}
        self._busy_gpu_seconds = 0.0
        self._errors = ErrorRecord(assumed_error)

    def advance_to_work(self) -> bool:
        """Let arrived jobs join, jumping over idle time; False when all is done."""
        if not self._entries and self._queued and self._queued[-1].arrival_seconds > self.now:
            self.now = self._queued[-1].arrival_seconds
            self._previous = {}
        while self._queued and self._queued[-1].arrival_seconds <= self.now:
            self._admit(self._queued.pop())
        return bool(self._entries)

    def _admit(self, job: Job) -> None:
        execution = start_execution(job)
        estimate = self._estimator(job, _progress(execution))
        self._entries[job.id] = _Entry(
            job=job,
            execution=execution,
            first_round=len(self._rounds),
            first_estimate_seconds=estimate,
            start_seconds=job.started_seconds,
        )

    def live(self) -> list[Live]:
        error = self._errors.spread
        return [self._view(entry, error) for entry in self._entries.values()]

    def _view(self, entry: _Entry, estimate_error: float) -> Live:
        progress = _progress(entry.execution)
        return Live(
            job=entry.job,
            remaining_seconds=self._estimator(entry.job, progress),
            served_seconds=entry.execution.served_seconds,
            units_done=progress.units_done,
            seconds_per_unit=progress.seconds_per_unit,
            running=entry.job.id in self._previous,
            waited_seconds=self.now - entry.job.arrival_seconds - entry.elapsed_seconds,
            steps_per_second=entry.execution.steps_per_second,
            first_estimate_seconds=entry.first_estimate_seconds,
            estimate_error=estimate_error,
        )

    def run_round(self, ids: Sequence[str]) -> None:
        placement = place({id: self._entries[id].job.gpus for id in ids}, self._previous, self._cluster)
        cost = {id: self._restart_seconds(id) for id in ids}
        speed = {id: speed_of(placement[id], self._cluster) for id in ids}
        round_seconds = self._cluster.round_seconds
        finish = {id: self.now + self._entries[id].execution.offer(round_seconds, cost[id], speed[id]) for id in ids}
        # With nobody chosen the order holds all jobs back: the round passes idle.
        end = max(finish.values()) if finish else self.now + round_seconds
        self._rounds.append(
            Round(
                start_seconds=self.now,
                end_seconds=end,
                ids=tuple(ids),
                num_live=len(self._entries),
                placement=placement,
            )
        )
        for id in ids:
            self._serve(self._entries[id], finish[id], cost[id], speed[id])
        for entry in self._entries.values():
            entry.execution.end_round()
        self.now, self._previous = end, placement

    def _restart_seconds(self, id: str) -> float:
        # Nobody pays in the very first round: the published simulator has it so, and its schedules must replay.
        return 0.0 if id in self._previous or not self._rounds else self._cluster.restart_seconds

    def _serve(self, entry: _Entry, finish: float, restart_seconds: float, speed: float) -> None:
        if entry.start_seconds is None:
            entry.start_seconds = self.now
        entry.num_starts += entry.job.id not in self._previous
        entry.elapsed_seconds += finish - self.now
        useful = entry.execution.serve(finish - self.now, restart_seconds, speed)
        self._busy_gpu_seconds += useful * entry.job.gpus
        if entry.execution.finished:
            self._finish(entry, finish)

    def _finish(self, entry: _Entry, finish: float) -> None:
        del self._entries[entry.job.id]
        assert entry.start_seconds is not None
        self._errors.add(entry.first_estimate_seconds, entry.execution.served_seconds)
        self.outcomes.append(
            Outcome(
                job=entry.job,
                start_seconds=entry.start_seconds,
                finish_seconds=finish,
                num_starts=entry.num_starts,
                served_seconds=entry.execution.served_seconds,
                first_round=entry.first_round,
                end_round=len(self._rounds),
                first_estimate_seconds=entry.first_estimate_seconds,
            )
        )

    def result(self) -> Run:
        by_arrival = sorted(self.outcomes, key=lambda outcome: (outcome.first_round, outcome.job.arrival_seconds))
        return Run(
            cluster=self._cluster,
            rounds=tuple(self._rounds),
            outcomes=tuple(by_arrival),
            busy_gpu_seconds=self._busy_gpu_seconds,
        )


def _progress(execution: Execution) -> Progress:
    return Progress(units_done=execution.units_done, seconds_per_unit=execution.seconds_per_unit)
