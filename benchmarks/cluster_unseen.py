"""The default policy on traces nobody looked at while it was designed, and how often its intervals hold.

In: named traces and kinds of estimates. Out: the figures of `benchmarks/cluster.py` that begin with `unseen_` (or
`seen_`) and `interval_coverage`. All policies of a run get the same jobs and the same wrong estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from cluster_traces import Named
from foresee.cluster.estimators import Estimator, oracle, regimes, with_error
from foresee.cluster.formats.shockwave import Trace
from foresee.cluster.job import Job, work_of_seconds
from foresee.cluster.metrics import Metrics, measure
from foresee.cluster.plan import predict
from foresee.cluster.policies import DEFAULT_POLICY, POLICIES
from foresee.cluster.policies.guarded import Belief, believe
from foresee.cluster.simulation import Live, simulate

ERRORS: dict[str, Callable[[int], Estimator]] = {
    "exact": lambda seed: oracle,
    "σ 0.2": lambda seed: with_error(oracle, sigma=0.2, seed=seed),
    "σ 0.5": lambda seed: with_error(oracle, sigma=0.5, seed=seed),
    "σ 1.0": lambda seed: with_error(oracle, sigma=1.0, seed=seed),
    "estimator": lambda seed: regimes,
}
TOLERANCE = 0.02
COMPARED = (DEFAULT_POLICY, "shockwave", "srtf", "themis")
# Intervals are asked for when this share of the arrivals is over, so that jobs are still to come.
ASKED_AT = 0.6


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    name: str
    metrics: dict[str, Metrics]

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
    metrics = {
        name: measure(simulate(trace.jobs, trace.cluster, POLICIES[name](trace.cluster), estimator=estimator))
        for name in COMPARED
    }
    return Compared(name=f"{named.name}, {error}", metrics=metrics)


def figures(prefix: str, runs: Sequence[Compared]) -> dict[str, float]:
    return {
        f"{prefix}_runs": len(runs),
        f"{prefix}_all_four": mean(run.not_worse() for run in runs),
        f"{prefix}_all_four_by_themis": mean(run.not_worse_by_themis() for run in runs),
        f"{prefix}_jct_over_srtf": median(run.over("srtf", lambda m: m.jct_mean_seconds) for run in runs),
        f"{prefix}_rho_over_themis": median(run.over("themis", lambda m: m.worst_rho) for run in runs),
    }


def coverage(traces: Iterable[Named], errors: Sequence[str]) -> tuple[float, int]:
    """Share of starts and ends within their intervals, and how many there were."""
    within = [
        held
        for index, named in enumerate(traces)
        for error in errors
        for held in held_intervals(named.trace, ERRORS[error](index), index)
    ]
    return mean(within), len(within)


def held_intervals(trace: Trace, estimator: Estimator, seed: int) -> list[bool]:
    """Replay a trace, ask for intervals in the middle of it, and see whether what then happened lies within."""
    asked_at = ASKED_AT * max(job.arrival_seconds for job in trace.jobs)
    order = POLICIES[DEFAULT_POLICY](trace.cluster)
    asked: list[tuple[float, list[tuple[Job, float]]]] = []

    def watched(now: float, live: Sequence[Live]) -> list[str]:
        if now >= asked_at and not asked:
            asked.append((now, [_as_known(entry, believe(entry)) for entry in live]))
        return order(now, live)

    run = simulate(trace.jobs, trace.cluster, watched, estimator=estimator)
    (now, known) = asked[0]
    predicted = predict(
        [job for job, _ in known],
        trace.cluster,
        POLICIES[DEFAULT_POLICY],
        estimator=oracle,
        errors={job.id: spread for job, spread in known},
        start_seconds=now,
        history=[job for job in trace.jobs if job.arrival_seconds <= now],
        seed=seed,
    )
    held = []
    for outcome in run.outcomes:
        interval = predicted.get(outcome.job.id)
        if interval is not None:
            held.append(interval.finish_least <= outcome.finish_seconds <= interval.finish_most)
            if outcome.start_seconds >= now:
                held.append(interval.start_least <= outcome.start_seconds <= interval.start_most)
    return held


def _as_known(entry: Live, belief: Belief) -> tuple[Job, float]:
    """The job as it is believed to be, and how uncertain that is."""
    done = entry.served_seconds
    job = Job(
        id=entry.id,
        gpus=entry.gpus,
        regimes=work_of_seconds(done + belief.seconds),
        done_seconds=done,
        paused=not entry.running,
        arrival_seconds=entry.job.arrival_seconds,
    )
    return job, belief.spread
