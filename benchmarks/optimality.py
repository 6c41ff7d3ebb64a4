"""How close to optimal a plan is: rows fetched by the lookahead planner over those of libcachesim's Belady.

Traces: real logs (MovieLens-100k, Frappe, Avazu, Criteo, TalkingData; from $FORESEE_DATA or ../shared/data, prepared as
`foresee prepare` does, shuffled as training does) and synthetic ones, correlated and independent. Capacities go from
1.5 times the largest batch up to 30 % of the touched rows. LRU stands beside the planner; with --full also LFU, a
static hot set and our own step-level Belady.

The referee gets the requests of training: each step reads its distinct rows, in order, and then updates them, in order.
It knows every request's next use, and counts misses. `fetches_over_belady` is our worst over all traces and capacities.

A second referee gets the reads alone. It may then give up a row as soon as it is read, in the middle of the step that
still has to update it, which nothing that trains can do: it is below what any plan reaches, the more so the closer the
cache is to one batch (our optimal step-level Belady shows by how much). `fetches_over_reads_only` is the worst there.

Run: `.venv/bin/python benchmarks/optimality.py` (needs `make bench-env`; `--full` for larger tables and more
capacities). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
REFEREE_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
DATA = Path(os.environ.get("FORESEE_DATA", ROOT.parent / "shared" / "data"))
SHARES = (0.05, 0.1, 0.2, 0.3)
"""Capacities, as shares of the rows that the trace touches."""
SYNTHETIC_STEPS = 1200
"""More than the planner's window: on a trace it sees whole, the planner is Belady and nothing is tested."""
POLICIES = ("lookahead", "lru")
POLICIES_FULL = ("lookahead", "lru", "lfu", "static", "belady")
"""The others look at every slot in every step, which takes its time."""

# What libcachesim calls oracleGeneral: one request, with the number of the next request of the same object.
REQUEST = np.dtype([("time", "<u4"), ("id", "<u8"), ("size", "<u4"), ("next", "<i8")])
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Batches of row ids, and their distinct rows."""

    name: str
    batches: list[NDArray[np.int64]]
    distinct: list[NDArray[np.int64]]
    num_rows: int

    @property
    def largest_batch(self) -> int:
        return max(map(len, self.distinct))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="larger synthetic tables, more capacities")
    parser.add_argument("--referee", nargs=2, metavar=("REQUESTS", "CAPACITIES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.referee:
        print(json.dumps(belady_misses(options.referee[0], json.loads(options.referee[1]))))
        return
    if not REFEREE_PYTHON.exists():
        print("this benchmark needs libcachesim in .venv-bench: run `make bench-env` first", file=sys.stderr)
        sys.exit(2)
    print(f"{'trace':24}{'steps':>6}{'touched':>9}{'cache':>8}{'of it':>7}{'referee':>10}  fetches over the referee's")
    with tempfile.TemporaryDirectory() as folder:
        ratios = [
            ratio
            for trace in chain(real_traces(Path(folder)), synthetic_traces(full=options.full))
            for ratio in compare(trace, Path(folder), full=options.full)
        ]
    worst = {name: round(max(ratio[name] for ratio in ratios), 4) for name in ratios[0]}
    figures: dict[str, float] = {
        "fetches_over_belady": worst.pop("lookahead"),
        "fetches_over_reads_only": worst.pop("reads only"),
    }
    print(json.dumps(figures | {f"{name}_over_belady": worst[name] for name in worst} | {"cases": len(ratios)}))


def compare(trace: Trace, folder: Path, *, full: bool) -> Iterator[dict[str, float]]:
    """Fetches of every policy over the referee's, at several capacities."""
    num_touched = len(np.unique(np.concatenate(trace.distinct)))
    least = trace.largest_batch * 3 // 2
    shares = SHARES if full else SHARES[1::2]
    capacities = sorted({least, *(max(least, int(share * num_touched)) for share in shares)})
    fewest_misses = ask_referee([rows for step in trace.distinct for rows in (step, step)], capacities, folder)
    reads_only = ask_referee(trace.distinct, capacities, folder)
    for capacity, fewest, reads in zip(capacities, fewest_misses, reads_only, strict=True):
        ratio = {name: num_fetched(name, trace, capacity) / fewest for name in (POLICIES_FULL if full else POLICIES)}
        ratio["reads only"] = ratio["lookahead"] * fewest / reads
        print(
            f"{trace.name:24}{len(trace.batches):6}{num_touched:9,}{capacity:8,}{capacity / num_touched:7.0%}"
            f"{fewest:10,}  " + "  ".join(f"{name} {value:.4f}" for name, value in ratio.items()),
            flush=True,
        )
        yield ratio


def num_fetched(policy: str, trace: Trace, capacity_rows: int) -> int:
    from foresee.plan import make_planner, plan
    from foresee.plan.count import count
    from foresee.plan.record import Accesses, Header

    header = Header(
        planner=policy, num_workers=1, capacity_rows=capacity_rows, num_rows=trace.num_rows,
        first_step=0, num_steps=len(trace.batches), fetch_ahead_steps=8, stream_digest=trace.name,
    )  # fmt: skip
    accesses = [Accesses(rows, np.array([0, len(rows)], np.int32)) for rows in trace.batches]
    return count(plan(make_planner(header, lambda num_steps: accesses[:num_steps]), accesses)).num_fetched


def ask_referee(requests: Sequence[NDArray[np.int64]], capacities: Sequence[int], folder: Path) -> list[int]:
    """Misses of libcachesim's Belady, found by the interpreter that has it."""
    file = folder / "requests.bin"
    oracle_requests(np.concatenate(requests)).tofile(file)
    command = [str(REFEREE_PYTHON), __file__, "--referee", str(file), json.dumps(capacities)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode:
        sys.exit("libcachesim failed; its message is above, and `make bench-env` installs it again")
    misses: list[int] = json.loads(answer.stdout.splitlines()[-1])
    return misses


def oracle_requests(rows: NDArray[np.int64]) -> NDArray[Any]:
    """The requests with the number of each one's successor."""
    requests = np.zeros(len(rows), REQUEST)
    requests["time"], requests["size"] = 1, 1
    requests["id"] = rows + 1
    order = np.argsort(rows, kind="stable")
    again = rows[order][1:] == rows[order][:-1]
    requests["next"] = NEVER
    requests["next"][order[:-1][again]] = order[1:][again] + 1  # requests are numbered from 1
    return requests


def belady_misses(file: str, capacities: Sequence[int]) -> list[int]:
    """Runs in the environment that has libcachesim."""
    import libcachesim

    num_requests = os.path.getsize(file) // REQUEST.itemsize
    misses = []
    for capacity in capacities:
        reader = libcachesim.TraceReader(file, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        cache = libcachesim.Belady(cache_size=int(capacity), hashpower=20)
        miss_ratio, _ = cache.process_trace(reader)
        misses.append(round(miss_ratio * num_requests))
    return misses


def real_traces(folder: Path) -> Iterator[Trace]:
    """Logs that people know, prepared as a person would; those whose files are not there are named."""
    from foresee.data import Avazu, Categorical, Columns, Criteo, Csv, Libfm, MovieLens, PrepareOptions, Source, prepare

    clicks = Columns(label="is_attributed", categorical=tuple(Categorical(name=n) for n in TALKINGDATA[:5]))
    sources: dict[str, tuple[Source, int]] = {
        "movielens-100k": (MovieLens(files=(DATA / "movielens/ml-100k.inter",)), 256),
        "frappe": (Libfm(files=(DATA / "frappe/frappe.validation.libfm", DATA / "frappe/frappe.test.libfm")), 256),
        "avazu": (Avazu(files=(DATA / "avazu/avazu_union_sorted.csv",)), 64),
        "criteo": (Criteo(files=(DATA / "criteo/criteo_kaggle_union.tsv",)), 32),
        "talkingdata": (
            Csv(files=(DATA / "talkingdata/talkingdata_100k.csv",), columns=clicks, column_names=TALKINGDATA), 256
        ),
    }  # fmt: skip
    for name, (source, batch_size) in sources.items():
        if not all(Path(file).exists() for file in source.files):
            print(f"{name}: {source.files[0]} is not there; set FORESEE_DATA to the folder of the real logs")
            continue
        log = prepare(source, folder / name, PrepareOptions(split="random", valid_share=0.0)).log
        stream = log.batches(batch_size=batch_size, shuffle_samples=8192)
        yield make_trace(f"{name}, {batch_size}", [batch.rows for batch in stream.batches()], log.num_rows)


TALKINGDATA = ("ip", "app", "device", "os", "channel", "click_time", "attributed_time", "is_attributed")


def synthetic_traces(*, full: bool) -> Iterator[Trace]:
    """Criteo's tables, scaled; more steps than the planner's window holds."""
    from foresee.data import criteo_table_sizes, synthetic_rows

    for correlated in (True, False):
        for scale, batch_size in ((0.01, 256), (0.1, 1024)):
            if batch_size > 256 and not full:
                continue
            batches = synthetic_rows(
                batch_size=batch_size, num_batches=SYNTHETIC_STEPS, table_scale=scale, correlated=correlated
            )
            name = f"{'correlated' if correlated else 'independent'} x{scale}, {batch_size}"
            num_rows = sum(criteo_table_sizes(scale))
            yield make_trace(name, [rows.reshape(-1) for rows in batches], num_rows)


def make_trace(name: str, batches: list[NDArray[np.int64]], num_rows: int) -> Trace:
    from foresee.plan.baselines.belady import in_order_of_first_access

    return Trace(name=name, batches=batches, distinct=[in_order_of_first_access(b) for b in batches], num_rows=num_rows)


if __name__ == "__main__":
    main()
