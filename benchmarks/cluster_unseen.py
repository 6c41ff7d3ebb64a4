"""The default policy on traces nobody looked at while it was designed, and how often its intervals hold.

In: named traces and kinds of estimates. Out: the figures of `benchmarks/cluster.py` that begin with `unseen_` (or
`seen_`) and `interval_coverage`. All policies of a run get the same jobs and the same wrong estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from cluster_traces import Named
from foresee.cluster.estimators import ErrorRecord, Estimator, oracle, regimes, with_error
from foresee.cluster.job import Job, work_of_seconds
from foresee.cluster.metrics import Metrics, measure
from foresee.cluster.plan import predict
from foresee.cluster.policies import DEFAULT_POLICY, POLICIES
from foresee.cluster.policies.guarded import PACE_NOISE, Belief, believe
from foresee.cluster.simulation import Live, Order, Outcome, Run, simulate

ERRORS: dict[str, Callable[[int], Estimator]] = {
    "exact": lambda seed: oracle,
    "σ 0.2": lambda seed: with_error(oracle, sigma=0.2, seed=seed),
    "σ 0.5": lambda seed: with_error(oracle, sigma=0.5, seed=seed),
    "σ 1.0": lambda seed: with_error(oracle, sigma=1.0, seed=seed),
    "estimator": lambda seed: regimes,
}
TOLERANCE = 0.02
COMPARED = (DEFAULT_POLICY, "shockwave", "srtf", "themis")
# Intervals are asked for when this share of the time of arrivals is over: as much is to come as has been seen.
ASKED_AT = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    name: str
    metrics: dict[str, Metrics]
    held: list[bool]
    """For every start and end that was foretold in the middle of the run: did it lie within its interval?"""

    def ratios(self) -> tuple[float, float, float, float]:
        """Makespan, mean JCT and worst ρ over shockwave's, and the difference of the unfair shares."""
        ours, theirs = self.metrics[DEFAULT_POLICY], self.metrics["shockwave"]
        return (
            ours.makespan_seconds / theirs.makespan_seconds,
            ours.jct_mean_seconds / theirs.jct_mean_seconds,
            ours.worst_rho / theirs.worst_rho,
            ours.unfair_share - theirs.unfair_share,
        )

    def not_worse(self) -> bool:
        *ratios, unfair = self.ratios()
        return max(ratios) <= 1 + TOLERANCE and unfair <= TOLERANCE

    def not_worse_by_themis(self) -> bool:
        """The same with the contention each job met itself."""
        ours, theirs = self.metrics[DEFAULT_POLICY], self.metrics["shockwave"]
        makespan, jct, _, _ = self.ratios()
        rho = ours.worst_rho_themis / theirs.worst_rho_themis
        unfair = ours.unfair_share_themis - theirs.unfair_share_themis
        return max(makespan, jct, rho) <= 1 + TOLERANCE and unfair <= TOLERANCE

    def over(self, rival: str, figure: Callable[[Metrics], float]) -> float:
        return figure(self.metrics[DEFAULT_POLICY]) / figure(self.metrics[rival])


def compare(named: Named, error: str, seed: int) -> Compared:
    trace, estimator = named.trace, ERRORS[error](seed)
    known = Knowledge(ASKED_AT * max(job.arrival_seconds for job in trace.jobs))
    runs = {}
    for name in COMPARED:
        order = POLICIES[name](trace.cluster)
        watched = known.watch(order) if name == DEFAULT_POLICY else order
        runs[name] = simulate(trace.jobs, trace.cluster, watched, estimator=estimator)
    return Compared(
        name=f"{named.name}, {error}",
        metrics={name: measure(run) for name, run in runs.items()},
        held=[] if error == "exact" else held_intervals(runs[DEFAULT_POLICY], known, seed),
    )


def figures(prefix: str, runs: Sequence[Compared]) -> dict[str, float]:
    return {
        f"{prefix}_runs": len(runs),
        f"{prefix}_all_four": mean(run.not_worse() for run in runs),
        f"{prefix}_all_four_by_themis": mean(run.not_worse_by_themis() for run in runs),
        f"{prefix}_jct_over_srtf": median(run.over("srtf", lambda m: m.jct_mean_seconds) for run in runs),
        f"{prefix}_rho_over_themis": median(run.over("themis", lambda m: m.worst_rho) for run in runs),
    }


def coverage(runs: Sequence[Compared]) -> dict[str, float]:
    held = [held for run in runs for held in run.held]
    return {"interval_coverage": mean(held), "interval_predictions": len(held)}


class Knowledge:
    """What an operator knows of the live jobs when intervals are asked for.

    A job that has not run is as uncertain as the policy takes it to be. One that has run is as uncertain as the
    beliefs about earlier jobs turned out to be that were held when they were half done, as far as these have ended:
    so the intervals follow what predictions have been worth here, for jobs that change their speed and for others.
    """

    def __init__(self, asked_at: float) -> None:
        self.asked_at = asked_at
        self.now: float | None = None
        self.jobs: list[Job] = []
        self._live: dict[str, tuple[bool, float | None]] = {}
        """Whether a live job changes its speed, and its spread unless that is left to the record."""
        self._half_done: dict[str, tuple[float, float]] = {}
        """Run time when a job was half done, by its estimate, and the run time it then was believed to have left."""

    def watch(self, order: Order) -> Order:
        def watched(now: float, live: Sequence[Live]) -> list[str]:
            if self.now is None:
                self._look(now, live)
            return order(now, live)

        return watched

    def _look(self, now: float, live: Sequence[Live]) -> None:
        for entry in live:
            if entry.served_seconds >= entry.remaining_seconds and entry.id not in self._half_done:
                self._half_done[entry.id] = entry.served_seconds, believe(entry).seconds
        if now < self.asked_at:
            return
        self.now = now
        for entry in live:
            belief = believe(entry)
            self.jobs.append(_as_known(entry, belief))
            self._live[entry.id] = entry.job.changes_speed, None if entry.served_seconds else belief.spread

    def errors(self, over: Sequence[Outcome]) -> dict[str, float]:
        """The spread of each live job, with the jobs that were over when intervals were asked for."""
        records = {changes: ErrorRecord(PACE_NOISE) for changes in (False, True)}
        for outcome in over:
            if outcome.job.id in self._half_done:
                served, believed = self._half_done[outcome.job.id]
                records[outcome.job.changes_speed].add(believed, outcome.served_seconds - served)
        return {
            id: records[changes].spread if spread is None else spread for id, (changes, spread) in self._live.items()
        }


def held_intervals(run: Run, known: Knowledge, seed: int) -> list[bool]:
    """Ask for intervals with what was known in the middle of a run, and see whether what then happened lies within."""
    assert known.now is not None
    over = [outcome for outcome in run.outcomes if outcome.finish_seconds <= known.now]
    predicted = predict(
        known.jobs,
        run.cluster,
        POLICIES[DEFAULT_POLICY],
        estimator=oracle,
        errors=known.errors(over),
        start_seconds=known.now,
        history=[*(outcome.job for outcome in over), *known.jobs],
        # A slice of a trace ends; that it does is no part of what was to be foretold.
        closes_seconds=max(outcome.job.arrival_seconds for outcome in run.outcomes),
        seed=seed,
    )
    held = []
    for outcome in run.outcomes:
        interval = predicted.get(outcome.job.id)
        if interval is not None:
            held.append(interval.finish_least <= outcome.finish_seconds <= interval.finish_most)
            if outcome.start_seconds >= known.now:
                held.append(interval.start_least <= outcome.start_seconds <= interval.start_most)
    return held


def _as_known(entry: Live, belief: Belief) -> Job:
    return Job(
        id=entry.id,
        gpus=entry.gpus,
        regimes=work_of_seconds(entry.served_seconds + belief.seconds),
        done_seconds=entry.served_seconds,
        paused=not entry.running,
        arrival_seconds=entry.job.arrival_seconds,
    )
