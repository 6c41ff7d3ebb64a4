"""Cluster planning against published results and on unseen traces: `python benchmarks/cluster.py [--full]`.

Replays the stored schedules, runs our Shockwave and the other policies beside the reference, the default policy against
Shockwave on the published traces (32 and 64 GPUs, all four with --full), then on traces nobody looked at while it was
designed (`cluster_traces.py` says which): each with one of five kinds of estimates in turn, with all five with --full.
In the middle of each of these runs whose estimates are wrong intervals are asked for, and how many hold is counted. It
ends with how long one planning round takes. No parameter of the default policy is set anywhere in these files;
Shockwave gets the parameters its authors chose for each published trace. The last line is one JSON object with all
figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from cluster_traces import published, traces
from cluster_unseen import ERRORS, Compared, compare, coverage
from cluster_unseen import figures as summed_up
from foresee.cluster.estimators import Estimator, reactive, regimes
from foresee.cluster.formats.shockwave import StoredResult, Trace, read_results, read_trace
from foresee.cluster.metrics import Metrics, measure
from foresee.cluster.policies import DEFAULT_POLICY, POLICIES, PUBLISHED
from foresee.cluster.policies.shockwave import Shockwave
from foresee.cluster.published_profiles import PublishedProfiles
from foresee.cluster.reproduction import replay
from foresee.cluster.simulation import Order, Run, Simulator, simulate

# (k, lambda) of each published configuration.
AUTHORS_PARAMETERS = {32: (1e-3, 12.0), 64: (10.0, 5.0), 128: (1e-3, 15.0), 256: (1e5, 5.0)}
RATIOS = ("makespan_ratio", "jct_ratio", "worst_rho_ratio", "unfair_difference")
STORED_NAMES = {
    "max_min": "max_min_fairness", "gandiva_fair": "gandiva_fair", "finish_time_fairness": "finish_time_fairness",
    "ossp": "min_total_duration", "mst": "max_sum_throughput_perf", "allox": "allox",
}  # fmt: skip


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
    known = published(data, (32, 64, 128, 256) if full else (32, 64))
    figures: dict[str, object] = {}
    results = read_results(data / "shockwave_reference_32gpu.json.gz")
    stored = {name: result for name, result in results.items() if name.startswith("tacc_32gpus/")}
    replayed = {name: replay(known[32].jobs, known[32].cluster, stored[name].schedule) for name in stored}
    figures["replay"] = replay_stored(stored, replayed)
    figures["reference"] = against_reference(known[32], replayed)
    figures["artifact_differences"] = against_artifact(known[32], replayed)
    figures |= against_shockwave(known, full)
    figures |= on_unseen(data, full)
    figures["planning_round"] = one_planning_round(data)
    print(json.dumps(figures))
    return 0


def replay_stored(stored: dict[str, StoredResult], replayed: dict[str, Run]) -> dict[str, float]:
    heading("Replay of the nine stored schedules, 32 GPUs")
    worst = {"jct_seconds": 0.0, "makespan_seconds": 0.0, "utilisation": 0.0}
    for name, run in replayed.items():
        off = {
            "jct_seconds": max(
                abs(o.jct_seconds - jct) for o, jct in zip(run.outcomes, stored[name].jct_seconds, strict=True)
            ),
            "makespan_seconds": abs(run.makespan_seconds - stored[name].makespan_seconds),
            "utilisation": abs(measure(run).utilisation - stored[name].utilisation),
        }
        worst = {key: max(worst[key], off[key]) for key in worst}
    print(
        f"{len(replayed)} schedules; largest differences: "
        + ", ".join(f"{key} {off:.1e}" for key, off in worst.items())
        + ", ".join(f"{key} {off:.1e}" for key, off in worst.items())
    )
    return {"num_schedules": len(replayed)} | {f"{key}_difference_max": off for key, off in worst.items()}


def against_reference(trace: Trace, replayed: dict[str, Run]) -> dict[str, float]:
    heading("Our shockwave against the reference, 32 GPUs")
    reference = measure(replayed["tacc_32gpus/shockwave/simulation"])
    show("reference (stored)", reference)
    start = time.perf_counter()
    ours = measure(run(trace, shockwave(trace, published=True)))
    seconds = time.perf_counter() - start
    show("ours, as published", ours, seconds)
    show("srtf", measure(run(trace, POLICIES["srtf"](trace.cluster))))
    return {
        "makespan_seconds": ours.makespan_seconds,
        "jct_seconds": ours.jct_mean_seconds,
        "makespan_difference": ours.makespan_seconds / reference.makespan_seconds - 1,
        "jct_difference": ours.jct_mean_seconds / reference.jct_mean_seconds - 1,
        "worst_rho": ours.worst_rho,
        "unfair_share": ours.unfair_share,
        "wall_seconds": seconds,
    }


def against_artifact(trace: Trace, replayed: dict[str, Run]) -> dict[str, dict[str, float]]:
    heading("The other policies as the artifact ran them, against its stored runs, 32 GPUs")
    found = {}
    for name, theirs in STORED_NAMES.items():
        reference = measure(replayed[f"tacc_32gpus/{theirs}/simulation"])
        ours = measure(run(trace, PUBLISHED[name](trace.cluster), reactive))
        show(name, ours)
        found[name] = {
            "makespan": ours.makespan_seconds / reference.makespan_seconds - 1,
            "jct": ours.jct_mean_seconds / reference.jct_mean_seconds - 1,
        }
        print(f"{'':36}" + ", ".join(f"{key} {value:+.1%}" for key, value in found[name].items()))
    return found


def against_shockwave(traces: dict[int, Trace], full: bool) -> dict[str, object]:
    heading(f"Default policy ({DEFAULT_POLICY}) against shockwave on the published traces")
    rows: dict[str, dict[str, float]] = {}
    as_published: list[dict[str, float]] = []
    for gpus, trace in traces.items():
        default = measure(run(trace, POLICIES[DEFAULT_POLICY](trace.cluster)))
        rival = measure(run(trace, shockwave(trace)))
        show(f"{gpus} GPUs, {DEFAULT_POLICY}", default)
        show(f"{gpus} GPUs, shockwave", rival)
        rows[str(gpus)] = ratios(default, rival)
        print(f"{'':36}" + ", ".join(f"{key} {value:.3f}" for key, value in rows[str(gpus)].items()))
        if full:
            as_published.append(ratios(default, measure(run(trace, shockwave(trace, published=True)))))
    found: dict[str, object] = {**worst(rows.values()), "per_trace": rows}
    return found | ({"against_published": worst(as_published)} if as_published else {})


def on_unseen(data: Path, full: bool) -> dict[str, float]:
    """Every unseen trace with every kind of estimates; without --full with one kind each, in turn."""
    heading(f"{DEFAULT_POLICY} on unseen traces: makespan, JCT, worst ρ over shockwave's, unfair difference")
    kinds = list(ERRORS)
    tasks = [
        (named, error, 1000 + seed)
        for seed, named in enumerate(traces(data, seen=False))
        for error in (kinds if full else [kinds[seed % len(kinds)]])
    ]
    runs: list[Compared] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:  # nothing here is timed, and every run stands alone
        for compared in pool.map(compare, *zip(*tasks, strict=True)):
            mark = "" if compared.not_worse() else "  worse"
            print(f"{compared.name:44} " + " ".join(f"{value:6.3f}" for value in compared.ratios()) + mark, flush=True)
            runs.append(compared)
    found = summed_up("unseen", runs) | coverage(runs)
    print(", ".join(f"{key} {value:.3f}" for key, value in found.items()))
    for kind in kinds:
        of_kind = [run for run in runs if run.name.endswith(f", {kind}")]
        print(f"  {kind:10} " + ", ".join(f"{key} {value:.3f}" for key, value in summed_up("unseen", of_kind).items()))
    return found


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
