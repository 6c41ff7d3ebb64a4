"""What moves between eight workers and the store: our plan against the published protocols, counted by one counter.

Plans only, nothing runs. Logs: MovieLens-1M (user, film) and anime (user, item) with 256 samples a worker, TalkingData
(5 columns) with 256, Avazu (21) with 64, Criteo (26) with 32, from $FORESEE_DATA or ../shared/data, and a Criteo-shaped
correlated synthetic trace with 256. Each log is read twice: shuffled with a fixed seed, which is what training does and
what the published schedulers expect of their file; and in file order, where neighbouring samples share users or hours.

Every planner has the same cache: 10 % of the rows the trace touches, or what two batches need if that is more (the
replicated cache needs that). Updates left in caches at the end are written back and counted. A row summed over all
workers counts 2 (workers - 1) row-sends, everything else one; docs/traffic.md says what is critical.

    critical_over_replicated, critical_over_owner   rows on the critical path, ours over theirs, worst of all traces
    rows_over_herald                                all rows moved, ours over Herald's in its exact form, worst of all
    rows_over_het                                   all rows moved, ours over HET's with staleness 0, worst of MovieLens
                                                    and anime

Run: `.venv/bin/python benchmarks/traffic.py` (`--full` for longer traces and all staleness bounds, and the first
steps of every plan proved by the checker). Without the data folder only the synthetic trace is counted. The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray

from foresee.data import synthetic_rows
from foresee.plan import check_plan, find, plan
from foresee.plan.baselines.fae import group, hot_rows
from foresee.plan.count import RowsMoved, count, rows_moved
from foresee.plan.record import Accesses, Header, PlannerOptions, Record

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("FORESEE_DATA", ROOT.parent / "shared" / "data"))
NUM_WORKERS = 8
CACHE_SHARE = 0.1
SEED = 7
PROVED_STEPS = 15
STALENESS = (0, 1, 10, 100)
AVAZU_COLUMNS = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id",
    "device_ip", "device_model", "device_type", "device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19", "C20",
    "C21",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Global batches of row ids."""

    name: str
    steps: list[Accesses]
    num_rows: int
    num_unique: float
    """Distinct rows of a step, in the mean."""
    capacity_rows: int


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="longer traces, every bound of HET, every plan proved")
    options = parser.parse_args()
    if not DATA.is_dir():
        print(f"{DATA} is missing: set FORESEE_DATA to count real logs too; now synthetic only", file=sys.stderr)
    names = [*(f"het {bound}" for bound in (STALENESS if options.full else STALENESS[:1])), "fae"]
    names = ["none", "replicated", "owner", "herald", *names, "lookahead"]
    print(f"{NUM_WORKERS} workers; rows per step, on the critical path / all")
    print(f"{'trace':26}{'steps':>6}{'unique':>8}{'cache':>8}" + "".join(f"{name:>16}" for name in names))
    found: dict[str, dict[str, RowsMoved]] = {}
    for trace in traces(full=options.full):
        found[trace.name] = {name: moved(name, trace) for name in names}
        show(trace, found[trace.name])
        for name in names if options.full else ():
            prove(name, trace)
    print(json.dumps(figures(found)))


def figures(found: dict[str, dict[str, RowsMoved]]) -> dict[str, float]:
    """Ours over theirs, the worst of all traces."""

    def worst(of: str, other: str, only: tuple[str, ...] = ("",)) -> float:
        ratios = [
            getattr(by["lookahead"], of) / getattr(by[other], of) for name, by in found.items() if name.startswith(only)
        ]
        return round(max(ratios), 4) if ratios else float("nan")

    ours = {
        "critical_over_replicated": worst("critical", "replicated"),
        "critical_over_owner": worst("critical", "owner"),
        "rows_over_herald": worst("total", "herald"),
    }
    pairs = ("movielens", "anime")
    return ours | ({"rows_over_het": worst("total", "het 0", pairs)} if any(n.startswith(pairs) for n in found) else {})


def moved(name: str, trace: Trace) -> RowsMoved:
    """What one planner moves, per step."""
    _, steps, records = planned(name, trace, len(trace.steps))
    rows = rows_moved(count(records), NUM_WORKERS)
    return RowsMoved(rows.critical / len(steps), rows.total / len(steps))


def planned(name: str, trace: Trace, num_steps: int) -> tuple[Header, list[Accesses], list[Record]]:
    """The plan of the first steps; FAE gets the same samples in the order it needs."""
    planner, _, staleness = name.partition(" ")
    header = Header(
        planner=planner, options=PlannerOptions(staleness=int(staleness or 0)), num_workers=NUM_WORKERS,
        capacity_rows=trace.capacity_rows, num_rows=trace.num_rows, first_step=0, num_steps=num_steps,
        fetch_ahead_steps=8, stream_digest=trace.name,
    )  # fmt: skip
    profile, steps = trace.steps[: max(1, len(trace.steps) // 20)], trace.steps[:num_steps]
    if planner == "fae":
        steps = group(steps, hot_rows(profile, trace.capacity_rows))
    return header, steps, list(plan(find(planner).planner_to_compare(header, lambda num_steps: profile), steps))


def prove(name: str, trace: Trace) -> None:
    """Lets the checker play the first steps; of HET it says how stale they are."""
    header, steps, records = planned(name, trace, PROVED_STEPS)
    verdict = check_plan(header, steps, records, None)
    verdict.require()
    if verdict.stale_reads:
        print(
            f"  {name}: {verdict.stale_reads / verdict.counters.num_unique:.0%} of the reads of {len(steps)} steps are "
            f"stale, each without {verdict.missing_updates / verdict.stale_reads:.1f} updates in the mean"
        )


def show(trace: Trace, by: dict[str, RowsMoved]) -> None:
    print(
        f"{trace.name:26}{len(trace.steps):6}{trace.num_unique:8,.0f}{trace.capacity_rows:8,}"
        + "".join(f"{rows.critical:7,.0f} /{rows.total:7,.0f}" for rows in by.values()),
        flush=True,
    )


def traces(*, full: bool) -> Iterator[Trace]:
    num_steps = 60 if full else 26
    batches = list(synthetic_rows(batch_size=256 * NUM_WORKERS, num_batches=num_steps))
    ids = np.concatenate(batches)
    yield _trace("synthetic criteo", ids, 256, num_steps)
    if not DATA.is_dir():
        return
    for name, columns, samples_per_worker in logs():
        shuffled = np.random.default_rng(SEED).permutation(len(columns))
        yield _trace(f"{name}, shuffled", columns[shuffled], samples_per_worker, num_steps)
        yield _trace(f"{name}, file order", columns, samples_per_worker, num_steps)


def _trace(name: str, ids: NDArray[np.int64], samples_per_worker: int, num_steps: int) -> Trace:
    batch, width = samples_per_worker * NUM_WORKERS, ids.shape[1]
    offsets = np.arange(0, batch * width + 1, width, dtype=np.int32)
    steps = min(num_steps, len(ids) // batch)
    parts = [ids[step * batch : (step + 1) * batch].reshape(-1) for step in range(steps)]
    distinct = [np.unique(part) for part in parts]
    two = max(len(np.union1d(first, second)) for first, second in pairwise(distinct))
    touched = np.unique(np.concatenate(distinct))
    return Trace(
        name=name, steps=[Accesses(part, offsets) for part in parts], num_rows=int(touched[-1]) + 1,
        num_unique=float(np.mean([len(rows) for rows in distinct])),
        capacity_rows=max(two, int(CACHE_SHARE * len(touched))),
    )  # fmt: skip


def logs() -> Iterator[tuple[str, NDArray[np.int64], int]]:
    """(name, row ids [samples, columns], samples per worker) of each real log."""
    pairs = pa.parquet.read_table(DATA / "movielens" / "ml1m_pairs_fileorder.parquet")
    yield "movielens", row_ids(pairs.columns), 256
    ratings = pa.parquet.read_table(DATA / "anime" / "ratings_val.parquet", columns=["user_id", "anime_id"])
    yield "anime", row_ids(ratings.columns), 256
    clicks = pa.csv.read_csv(DATA / "talkingdata" / "talkingdata_100k.csv")
    yield "talkingdata", row_ids(clicks.columns[:5]), 256
    impressions = pa.csv.read_csv(DATA / "avazu" / "avazu_union_sorted.csv")
    yield "avazu", row_ids([impressions[name] for name in AVAZU_COLUMNS]), 64
    names = [f"c{number}" for number in range(40)]
    display = pa.csv.read_csv(
        DATA / "criteo" / "criteo_kaggle_union.tsv",
        read_options=pa.csv.ReadOptions(column_names=names),
        parse_options=pa.csv.ParseOptions(delimiter="\t"),
        convert_options=pa.csv.ConvertOptions(column_types={name: pa.string() for name in names}),
    )
    yield "criteo", row_ids(display.columns[14:]), 32


def row_ids(columns: list[pa.ChunkedArray]) -> NDArray[np.int64]:
    """Each column's values numbered, one column after the other; an empty cell is a value like any other."""
    ids, offset = [], 0
    for column in columns:
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        ids.append(np.asarray(encoded.indices, np.int64) + offset)
        offset += len(encoded.dictionary)
    return np.stack(ids, axis=1)


if __name__ == "__main__":
    main()
