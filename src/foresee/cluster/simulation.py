"""Rounds of a cluster, carried out on paper: jobs and an order in, who ran when out.

Each round: arrived jobs join, the order says who matters most, gangs are filled in whole or skipped, everybody chosen
runs for one round and pays for a restart if it did not run in the round before. A round ends when its last job does,
so it can be short at the end.
Never: wall-clock time, randomness or files; the same input gives the same run, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from foresee.cluster.estimators import ASSUMED_ERROR, ErrorRecord, Estimator, Progress, reactive
from foresee.cluster.execution import Execution, start_execution
from foresee.cluster.job import Cluster, Job, check_jobs
from foresee.cluster.placement import Placement, Seats, choose, speed_of
from foresee.errors import ConsistencyError


@dataclass(kw_only=True, slots=True)  # not frozen: making it then takes three times as long
class Live:
    """What a policy may know of a job that has arrived and not finished; it reads, never writes, and does not keep it:
    a job that waits is shown by the same object in the next round."""

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
    seats: Seats = ()
    """Where it ran in the round before."""
    first_estimate_seconds: float = 0.0
    """Run time left as it was estimated on arrival."""
    estimate_error: float = 0.0
    """Spread of log(true / estimated run time) over the jobs of its kind finished so far."""

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
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why each of them runs, where the policy says so."""


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


def simulate(
    jobs: Iterable[Job],
    cluster: Cluster,
    order: Order,
    *,
    estimator: Estimator = reactive,
    start_seconds: float = 0.0,
    assumed_error: float = ASSUMED_ERROR,
    errors: Mapping[str, float] | None = None,
    until: frozenset[str] | None = None,
    on_round: Callable[[float, int], None] | None = None,
) -> Run:
    """Run all jobs to their end; nothing runs before `start_seconds`, though jobs may have arrived by then.

    Jobs that are running as the plan begins (`started_seconds`) keep their GPUs to their end, whatever the order says.
    `assumed_error` is the spread of log errors policies are told of until jobs have shown theirs, `errors` that of jobs
    of which it is known;
    `on_round(now, finished)` is called once a round, for progress bars. With `until` it ends when those jobs have.
    """
    simulator = Simulator(check_jobs(jobs, cluster), cluster, estimator, start_seconds, assumed_error, errors or {})
    while simulator.advance_to_work() and not simulator.has_finished(until):
        live = simulator.live()
        ids = order(simulator.now, live)
        simulator.run_round(_placement(ids, live, simulator, cluster), reason=getattr(order, "reason", None))
        if on_round is not None:
            on_round(simulator.now, len(simulator.outcomes))
    return simulator.result()


def _placement(order: Iterable[str], live: Sequence[Live], simulator: Simulator, cluster: Cluster) -> Placement:
    by_id = {entry.id: entry for entry in live}
    keeping = [entry.id for entry in live if entry.job.started_seconds is not None]
    ids = dict.fromkeys([*keeping, *order])
    if unknown := [id for id in ids if id not in by_id]:
        raise ConsistencyError(f"the order at {simulator.now:g} s names job {unknown[0]!r}, which is not live")
    slower = 1 / (1 - cluster.locality_penalty) - 1
    return choose(
        ids,
        {id: by_id[id].gpus for id in ids},
        simulator.previous,
        cluster,
        spread_cost_seconds=lambda id: by_id[id].remaining_seconds * slower,
        waited_seconds=lambda id: by_id[id].waited_seconds,
    )


@dataclass(slots=True)
class _Entry:
    job: Job
    execution: Execution
    first_round: int
    first_estimate_seconds: float
    start_seconds: float | None = None
    num_starts: int = 0
    elapsed_seconds: float = 0.0
    changes_speed: bool = field(init=False)
    shown: Live | None = None
    """As policies saw it last, until it is served: most live jobs wait, and of those only the clock moves on."""

    def __post_init__(self) -> None:
        self.changes_speed = self.job.changes_speed


class Simulator:
    """The state of a run between rounds. `simulate` drives it with a policy, `replay.py` with a stored schedule."""

    def __init__(
        self,
        jobs: Sequence[Job],
        cluster: Cluster,
        estimator: Estimator,
        start_seconds: float = 0.0,
        assumed_error: float = ASSUMED_ERROR,
        errors: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.now = max(start_seconds, jobs[0].arrival_seconds if jobs else 0.0)
        self.outcomes: list[Outcome] = []
        self._cluster = cluster
        self._estimator = estimator
        self._queued = list(reversed(jobs))
        self._entries: dict[str, _Entry] = {}
        self._rounds: list[Round] = []
        # Where those run that are running as the first round begins, nobody said.
        self.previous: Placement = {job.id: () for job in jobs if job.runs_at_begin}
        self._busy_gpu_seconds = 0.0
        self._errors_of = errors
        # Jobs that change their speed and jobs that do not are estimated differently well.
        self._errors = {changes: ErrorRecord(assumed_error) for changes in (False, True)}

    def advance_to_work(self) -> bool:
        """Let arrived jobs join, jumping over idle time; False when all is done."""
        if not self._entries and self._queued and self._queued[-1].arrival_seconds > self.now:
            self.now = self._queued[-1].arrival_seconds
            self.previous = {}
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

    def gangs(self) -> dict[str, int]:
        """GPUs of each live job."""
        return {id: entry.job.gpus for id, entry in self._entries.items()}

    def live(self) -> list[Live]:
        spreads = {changes: errors.spread for changes, errors in self._errors.items()}
        return [self._shown(entry, spreads[entry.changes_speed]) for entry in self._entries.values()]

    def _shown(self, entry: _Entry, estimate_error: float) -> Live:
        shown = entry.shown
        if shown is None:
            shown = entry.shown = self._observed(entry)
        seats = self.previous.get(entry.job.id)
        shown.running = seats is not None
        shown.seats = seats or ()
        shown.waited_seconds = self.now - entry.job.arrival_seconds - entry.elapsed_seconds
        shown.estimate_error = self._errors_of.get(entry.job.id, estimate_error)
        return shown

    def _observed(self, entry: _Entry) -> Live:
        progress = _progress(entry.execution)
        return Live(
            job=entry.job,
            remaining_seconds=self._estimator(entry.job, progress),
            served_seconds=entry.execution.served_seconds,
            units_done=progress.units_done,
            seconds_per_unit=progress.seconds_per_unit,
            running=False,
            waited_seconds=0.0,
            steps_per_second=entry.execution.steps_per_second,
            first_estimate_seconds=entry.first_estimate_seconds,
        )

    def run_round(self, placement: Placement, reason: Callable[[str], str] | None = None) -> None:
        ids = tuple(placement)
        round_seconds = self._cluster.round_seconds
        goes_on = {id: self._goes_on(id, seats) for id, seats in placement.items()}
        # Nobody pays in the very first round: the published simulator has it so, and its schedules must replay.
        restart_seconds = self._cluster.restart_seconds if self._rounds else 0.0
        cost = {id: 0.0 if goes_on[id] else restart_seconds for id in ids}
        speed = {id: speed_of(seats, self._cluster) if seats else 1.0 for id, seats in placement.items()}
        finish = {id: self.now + self._entries[id].execution.offer(round_seconds, cost[id], speed[id]) for id in ids}
        # With nobody chosen the order holds all jobs back: the round passes idle.
        end = max(finish.values()) if finish else self.now + round_seconds
        self._rounds.append(
            Round(
                start_seconds=self.now,
                end_seconds=end,
                ids=ids,
                num_live=len(self._entries),
                placement=placement,
                reasons={id: reason(id) for id in ids} if reason else {},
            )
        )
        for id in ids:
            self._entries[id].num_starts += not goes_on[id]
            self._serve(self._entries[id], finish[id], cost[id], speed[id])
        for entry in self._entries.values():
            entry.execution.end_round()
        self.now, self.previous = end, placement

    def _goes_on(self, id: str, seats: Seats) -> bool:
        """It ran in the round before, in the same place; of jobs that run as a plan begins nobody knows the place."""
        return self.previous.get(id) in (seats, ())

    def _serve(self, entry: _Entry, finish: float, restart_seconds: float, speed: float) -> None:
        if entry.start_seconds is None:
            entry.start_seconds = self.now
        entry.elapsed_seconds += finish - self.now
        entry.shown = None
        useful = entry.execution.serve(finish - self.now, restart_seconds, speed)
        self._busy_gpu_seconds += useful * entry.job.gpus
        if entry.execution.finished:
            self._finish(entry, finish)

    def _finish(self, entry: _Entry, finish: float) -> None:
        del self._entries[entry.job.id]
        assert entry.start_seconds is not None
        self._errors[entry.changes_speed].add(entry.first_estimate_seconds, entry.execution.served_seconds)
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

    def has_finished(self, ids: frozenset[str] | None) -> bool:
        if ids is None or not ids.isdisjoint(self._entries):
            return False
        return not any(job.id in ids for job in self._queued)

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
