"""Cluster planning against published results: `python benchmarks/cluster.py [--full]`.

Replays the stored schedules, runs our Shockwave beside the reference, then the default policy against Shockwave on
the published traces (32 and 64 GPUs, all four with --full), with wrong estimates and with Philly's arrivals (there
with wrong estimates only with --full; two seeds of errors instead of one), and times one planning round. No parameter
of the default policy is set anywhere in this file; Shockwave gets the parameters its authors chose for each trace.
The last line is one JSON object with all figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from statistics import mean

from foresee.cluster.estimators import Estimator, oracle, regimes, with_error
from foresee.cluster.formats import read_jobs
from foresee.cluster.formats.shockwave import Trace, read_results, read_trace
from foresee.cluster.job import Cluster, Job
from foresee.cluster.metrics import Metrics, measure
from foresee.cluster.policies import DEFAULT_POLICY, POLICIES
from foresee.cluster.policies.published_profiles import PublishedProfiles
from foresee.cluster.policies.shares import Shares, max_min
from foresee.cluster.policies.shockwave import Shockwave
from foresee.cluster.replay import replay
from foresee.cluster.simulation import Order, Run, Simulator, simulate

# (k, lambda) of each published configuration.
AUTHORS_PARAMETERS = {32: (1e-3, 12.0), 64: (10.0, 5.0), 128: (1e-3, 15.0), 256: (1e5, 5.0)}
RATIOS = ("makespan_ratio", "jct_ratio", "worst_rho_ratio", "unfair_difference")
ERRORS = (0.2, 0.5)
NUM_SEEDS = 2
# Philly: gangs up to a server, jobs no longer than a day, arriving in these days; the cluster is sized so that it would
# be busy 90 % of the time.
PHILLY_DAYS = (70.0, 72.0)
PHILLY_GPUS_MAX = 8
PHILLY_SECONDS_MAX = 86_400.0
PHILLY_LOAD = 0.9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all four traces everywhere")
    full = parser.parse_args().full
    data = Path(os.environ.get("FORESEE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data")) / "cluster"
    if not data.is_dir():
        print(
            f"the published traces are not in {data}: set FORESEE_DATA to the folder that holds cluster/",
            file=sys.stderr,
        )
        return 2
    sizes = (32, 64, 128, 256) if full else (32, 64)
    traces = {gpus: read_trace(data / f"shockwave_trace_{gpus}gpu.json.gz") for gpus in sizes}
    figures: dict[str, object] = {}
    figures["replay"] = replay_stored(traces[32], data)
    figures["reference"] = against_reference(traces[32], data)
    figures |= against_shockwave(traces)
    figures["estimate_errors"] = with_wrong_estimates(traces, NUM_SEEDS if full else 1)
    figures["philly"] = with_philly_arrivals(data, (0.0, *ERRORS) if full else (0.0,))
    figures["planning_round"] = one_planning_round(data)
    print(json.dumps(figures))
    return 0


def replay_stored(trace: Trace, data: Path) -> dict[str, float]:
    heading("Replay of the nine stored schedules, 32 GPUs")
    worst = {"jct_seconds": 0.0, "makespan_seconds": 0.0, "utilisation": 0.0}
    stored = read_results(data / "shockwave_reference_32gpu.json.gz")
    names = [name for name in stored if name.startswith("tacc_32gpus/")]
    for name in names:
        run = replay(trace.jobs, trace.cluster, stored[name].schedule)
        off = {
            "jct_seconds": max(
                abs(o.jct_seconds - jct) for o, jct in zip(run.outcomes, stored[name].jct_seconds, strict=True)
            ),
            "makespan_seconds": abs(run.makespan_seconds - stored[name].makespan_seconds),
            "utilisation": abs(measure(run).utilisation - stored[name].utilisation),
        }
        worst = {key: max(worst[key], off[key]) for key in worst}
    print(
        f"{len(names)} schedules; largest differences: " + ", ".join(f"{key} {off:.1e}" for key, off in worst.items())
    )
    return {"num_schedules": len(names)} | {f"{key}_difference_max": off for key, off in worst.items()}


def against_reference(trace: Trace, data: Path) -> dict[str, float]:
    heading("Our shockwave against the reference, 32 GPUs")
    stored = read_results(data / "shockwave_reference_32gpu.json.gz")["tacc_32gpus/shockwave/simulation"]
    reference = measure(replay(trace.jobs, trace.cluster, stored.schedule))
    show("reference (stored)", reference)
    start = time.perf_counter()
    ours = measure(run(trace, shockwave(trace, published=True)))
    seconds = time.perf_counter() - start
    show("ours, as published", ours, seconds)
    show("ours, true profiles", measure(run(trace, shockwave(trace))))
    held = measure(run(trace, Shares(trace.cluster, max_min, hold_seconds=1000.0)))
    prompt = measure(run(trace, POLICIES["max_min"](trace.cluster)))
    show("max_min with the 1,000 s hold", held)
    show("max_min without", prompt)
    show("srtf", measure(run(trace, POLICIES["srtf"](trace.cluster))))
    return {
        "makespan_seconds": ours.makespan_seconds,
        "jct_seconds": ours.jct_mean_seconds,
        "max_min_jct_held_seconds": held.jct_mean_seconds,
        "max_min_jct_seconds": prompt.jct_mean_seconds,
        "makespan_difference": ours.makespan_seconds / reference.makespan_seconds - 1,
        "jct_difference": ours.jct_mean_seconds / reference.jct_mean_seconds - 1,
        "worst_rho": ours.worst_rho,
        "unfair_share": ours.unfair_share,
        "wall_seconds": seconds,
    }


def against_shockwave(traces: dict[int, Trace]) -> dict[str, object]:
    heading(f"Default policy ({DEFAULT_POLICY}) against shockwave")
    rows: dict[str, dict[str, float]] = {}
    published: list[dict[str, float]] = []
    for gpus, trace in traces.items():
        default = measure(run(trace, POLICIES[DEFAULT_POLICY](trace.cluster)))
        rival = measure(run(trace, shockwave(trace)))
        as_published = measure(run(trace, shockwave(trace, published=True)))
        show(f"{gpus} GPUs, {DEFAULT_POLICY}", default)
        show(f"{gpus} GPUs, shockwave", rival)
        show(f"{gpus} GPUs, shockwave as published", as_published)
        rows[str(gpus)] = ratios(default, rival)
        published.append(ratios(default, as_published))
        print(f"{'':36}" + ", ".join(f"{key} {value:.3f}" for key, value in rows[str(gpus)].items()))
    return worst(rows.values()) | {"per_trace": rows, "against_published": worst(published)}


def with_wrong_estimates(traces: dict[int, Trace], num_seeds: int) -> dict[str, object]:
    heading(f"With persistent log-normal errors in every estimate (mean over {num_seeds} seeds)")
    result: dict[str, object] = {}
    for sigma in ERRORS:
        rows = []
        for gpus, trace in traces.items():
            makers = {
                DEFAULT_POLICY: partial(POLICIES[DEFAULT_POLICY], trace.cluster),
                "shockwave": partial(shockwave, trace),
            }
            rows.append(compared(f"σ {sigma}, {gpus} GPUs", trace, makers, sigma, num_seeds))
        result[str(sigma)] = worst(rows)
    return result


def compared(
    title: str, trace: Trace, makers: Mapping[str, Callable[[], Order]], sigma: float, num_seeds: int
) -> dict[str, float]:
    """Mean figures over seeds of two policies under the same errors, shown, and their ratios."""
    averaged = {}
    for name, make in makers.items():
        runs = [measure(run(trace, make(), with_error(regimes, sigma=sigma, seed=seed))) for seed in range(num_seeds)]
        averaged[name] = average(runs)
        show(f"{title}, {name}", averaged[name])
    default, rival = averaged.values()
    return ratios(default, rival)


def with_philly_arrivals(data: Path, sigmas: Sequence[float]) -> dict[str, object]:
    jobs = philly_jobs(data)
    span = max(job.arrival_seconds for job in jobs)
    gpus = round(sum(job.gpus * job.exclusive_seconds for job in jobs) / span / PHILLY_LOAD)
    trace = Trace(cluster=Cluster(gpus=gpus), jobs=jobs)
    heading(f"Continuous arrivals: {len(jobs)} Philly jobs over {span / 86400:.1f} days on {gpus} GPUs")
    result: dict[str, object] = {"num_jobs": len(jobs), "gpus": gpus}
    for sigma in sigmas:
        estimator = with_error(oracle, sigma=sigma, seed=0)
        default = measure(run(trace, POLICIES[DEFAULT_POLICY](trace.cluster), estimator))
        rival = measure(run(trace, Shockwave(trace.cluster), estimator))
        show(f"σ {sigma}, {DEFAULT_POLICY}", default)
        show(f"σ {sigma}, shockwave", rival)
        # With arrivals that go on for days the contention of the whole trace means nothing: Themis's counts.
        result[str(sigma)] = ratios(default, rival) | {
            "worst_rho_themis_ratio": default.worst_rho_themis / rival.worst_rho_themis,
            "unfair_themis_difference": default.unfair_share_themis - rival.unfair_share_themis,
        }
    return result


def philly_jobs(data: Path) -> tuple[Job, ...]:
    first, last = (day * 86_400.0 for day in PHILLY_DAYS)
    chosen = [
        job
        for job in read_jobs(data / "philly_jobs.csv.gz").jobs
        if first <= job.arrival_seconds < last
        and job.gpus <= PHILLY_GPUS_MAX
        and job.exclusive_seconds <= PHILLY_SECONDS_MAX
    ]
    return tuple(replace(job, arrival_seconds=job.arrival_seconds - chosen[0].arrival_seconds) for job in chosen)


def one_planning_round(data: Path) -> dict[str, float]:
    heading("One planning round with 900 live jobs on 256 GPUs, seconds")
    trace = read_trace(data / "shockwave_trace_256gpu.json.gz")
    waiting = [replace(job, arrival_seconds=0.0) for job in trace.jobs]
    simulator = Simulator(waiting, trace.cluster, regimes)
    simulator.advance_to_work()
    seconds = {}
    for name in (DEFAULT_POLICY, "shockwave"):
        order = POLICIES[name](trace.cluster)
        start = time.perf_counter()
        order(simulator.now, simulator.live())
        seconds[f"{name}_seconds"] = time.perf_counter() - start
    print(", ".join(f"{key} {value:.3f}" for key, value in seconds.items()))
    return seconds


def shockwave(trace: Trace, *, published: bool = False) -> Order:
    makespan_weight, lateness_power = AUTHORS_PARAMETERS[trace.cluster.gpus]
    restate = PublishedProfiles(trace.cluster.round_seconds) if published else list
    return Shockwave(trace.cluster, makespan_weight=makespan_weight, lateness_power=lateness_power, restate=restate)


def run(trace: Trace, order: Order, estimator: Estimator = regimes) -> Run:
    return simulate(trace.jobs, trace.cluster, order, estimator=estimator)


def ratios(ours: Metrics, theirs: Metrics) -> dict[str, float]:
    return {
        "makespan_ratio": ours.makespan_seconds / theirs.makespan_seconds,
        "jct_ratio": ours.jct_mean_seconds / theirs.jct_mean_seconds,
        "worst_rho_ratio": ours.worst_rho / theirs.worst_rho,
        "unfair_difference": ours.unfair_share - theirs.unfair_share,
    }


def worst(rows: Iterable[dict[str, float]]) -> dict[str, float]:
    rows = list(rows)
    return {key: max(row[key] for row in rows) for key in RATIOS}


def average(runs: Sequence[Metrics]) -> Metrics:
    names = [field.name for field in fields(Metrics) if field.name not in ("num_starts", "num_jobs")]
    means = {name: mean(getattr(metrics, name) for metrics in runs) for name in names}
    return replace(runs[0], num_starts=round(mean(metrics.num_starts for metrics in runs)), **means)


def heading(text: str) -> None:
    print(f"\n{text}", flush=True)


def show(name: str, metrics: Metrics, seconds: float | None = None) -> None:
    wall = "" if seconds is None else f"  in {seconds:.1f} s"
    print(
        f"{name:36} makespan {metrics.makespan_seconds:8,.0f}  JCT {metrics.jct_mean_seconds:7,.0f}  worst ρ "
        f"{metrics.worst_rho:5.2f}  unfair {metrics.unfair_share:6.2%}  Themis {metrics.worst_rho_themis:5.2f}/"
        f"{metrics.unfair_share_themis:4.0%}  used {metrics.utilisation:.3f}  starts {metrics.num_starts}{wall}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
