"""Every policy on every real log: `foresee compare` on each of them, its figures in one JSON object.

Logs from $FORESEE_DATA or ../shared/data, prepared as `foresee prepare` does: MovieLens-100k and anime (user, item),
TalkingData (5 columns), Frappe (10), Avazu (22), Criteo (26), and a synthetic log of Criteo's shape. Eight trainers,
with 256 samples a step each for the narrow logs and fewer for the wide ones, as in `benchmarks/traffic.py`; a cache of
10 % of the rows that the steps touch, or what two steps need if that is more.

For each log and policy: `hit_rate`, `rows_per_step`, `critical_rows_per_step` and the same in bytes, `stale_reads`
(share of reads that miss an update) and `step_ms`, predicted for 10 ms of compute and links of 1 Gbit/s. The last line
is one JSON object.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foresee.data import (
    Avazu,
    Categorical,
    Columns,
    Criteo,
    Csv,
    Libfm,
    Parquet,
    PrepareOptions,
    Source,
    prepare,
    synthetic,
)

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("FORESEE_DATA", ROOT.parent / "shared" / "data"))
NUM_TRAINERS = 8
NUMBERS = (
    "hit_rate", "rows_per_step", "critical_rows_per_step", "bytes_per_step", "critical_bytes_per_step", "stale_reads",
    "step_ms",
)  # fmt: skip


def _columns(label: str, *names: str, threshold: float | None = None) -> Columns:
    categorical = tuple(Categorical(name=name) for name in names)
    return Columns(label=label, categorical=categorical, label_threshold=threshold)


def _movielens() -> Source:
    return Csv(
        files=(DATA / "movielens" / "ml-100k.inter",), columns=_columns("rating", "user_id", "item_id", threshold=4.0),
        separator="\t", column_names=("user_id", "item_id", "rating", "timestamp"),
    )  # fmt: skip


def _anime() -> Source:
    columns = _columns("rating", "user_id", "anime_id", threshold=7.0)
    return Parquet(files=(DATA / "anime" / "ratings_val.parquet",), columns=columns)


def _talkingdata() -> Source:
    names = ("ip", "app", "device", "os", "channel", "click_time", "attributed_time", "is_attributed")
    file = DATA / "talkingdata" / "talkingdata_100k.csv"
    return Csv(files=(file,), columns=_columns("is_attributed", *names[:5]), column_names=names)


LOGS: dict[str, tuple[Callable[[], Source], int]] = {
    "movielens": (_movielens, 256),
    "anime": (_anime, 256),
    "talkingdata": (_talkingdata, 256),
    "frappe": (lambda: Libfm(files=tuple(sorted((DATA / "frappe").glob("*.libfm")))), 64),
    "avazu": (lambda: Avazu(files=(DATA / "avazu" / "avazu_union_sorted.csv",)), 64),
    "criteo": (lambda: Criteo(files=(DATA / "criteo" / "criteo_kaggle_union.tsv",)), 32),
}
"""How to read each log, and samples a step of each trainer."""


def compared(log: Path, batch_size: int, num_steps: int) -> dict[str, dict[str, Any]]:
    """What `foresee compare` says of a prepared log, by policy."""
    table = log.with_suffix(".csv")
    command = [sys.executable, "-m", "foresee", "compare", str(log), "--trainers", str(NUM_TRAINERS)]
    command += ["--batch-size", str(batch_size), "--steps", str(num_steps), "--csv", str(table)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(table, newline="", encoding="utf-8") as file:
        return {line["policy"]: _figures(line) for line in csv.DictReader(file)}


def _figures(line: dict[str, str]) -> dict[str, Any]:
    known = {name: round(float(line[name]), 4) for name in NUMBERS if line.get(name)}
    return known | {"cache_rows": int(line["cache_rows"]), "steps": int(line["steps"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all logs and more steps; default: three logs, few steps")
    full = parser.parse_args().full
    names = list(LOGS) if full else ["movielens", "avazu"]
    num_steps = 26 if full else 10
    if not DATA.is_dir():
        print(f"{DATA} is missing: set FORESEE_DATA to compare on real logs too; now synthetic only", file=sys.stderr)
        names = []
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            source, batch_size = LOGS[name]
            prepare(source(), Path(folder) / name, PrepareOptions(split="random"))
            found[name] = compared(Path(folder) / name, batch_size, num_steps)
            show(name, found[name])
        samples = 256 * NUM_TRAINERS * (num_steps + 2)
        synthetic(Path(folder) / "synthetic", num_samples=samples, table_scale=0.1, valid_share=0.0)
        found["synthetic"] = compared(Path(folder) / "synthetic", 256, num_steps)
        show("synthetic", found["synthetic"])
    print(json.dumps(found))


def show(name: str, by_policy: dict[str, dict[str, Any]]) -> None:
    figures = "  ".join(
        f"{policy} {found['critical_rows_per_step']:,.0f}/{found['rows_per_step']:,.0f}"
        for policy, found in by_policy.items()
        if "rows_per_step" in found
    )
    print(f"{name}: critical/all rows a step: {figures}", flush=True)


if __name__ == "__main__":
    main()
