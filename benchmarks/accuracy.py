"""What staleness costs in accuracy: exact training against HET's bounds and FAE's order, on the same samples and seeds.

Eight workers are emulated in one process (`emulated`): the planners' own records are carried out row by row, with a
replica for each worker that may be stale, on a real model. With staleness 0 the emulation ends with the bytes of
training without workers; a test shows it. Rows learn by plain SGD, because HET adds updates up; the learning rates were
chosen for exact training, and for no stale protocol. All protocols of a log train the same batches from the same first
weights, for each seed; FAE trains the same samples of each epoch in its own order. AUC and log loss are those of the
held-out split with every update counted in, also what a stale protocol has not pushed yet: what a commit would keep.

    exact      our plan: ownership, samples placed where that saves transfers; every read sees every update
    het S      HET with staleness S; het 0 is exact too, and shows what rounding alone does
    fae        FAE: samples that touch only its hot set come last in each epoch

Logs: MovieLens-100k (NCF), Frappe (DeepFM), Avazu (DLRM) from $FORESEE_DATA or ../shared/data, and a synthetic log
(DLRM). The default has one seed and the first steps of each; `--full` has 3 seeds, and takes several minutes. The last
line is one JSON object: for each log the AUC and log loss of every protocol (mean over seeds), their differences to
exact training with the standard error over seeds, the share of lookups that were stale, and the curves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from emulated.protocols import Course, Trained, train
from foresee.data import Avazu, Categorical, ClickLog, Columns, Csv, Libfm, PrepareOptions, prepare, synthetic
from foresee.run.by_name import build, row_width

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("FORESEE_DATA", ROOT.parent / "shared" / "data"))
NUM_WORKERS = 8
DIM = 8
INIT_SCALE = 0.05
STALENESS = (10, 100, 1000)
NUM_POINTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A log, the model that is trained on it, and how."""

    prepare: Callable[[Path], ClickLog]
    held_out: str
    model: str
    options: dict[str, tuple[int, ...]]
    batch_size: int
    epochs: int
    row_lr: float
    dense_lr: float = 0.003


def _movielens(folder: Path) -> ClickLog:
    """User and film alone, as NCF has it; a rating of 4 or 5 is positive."""
    source = Csv(
        files=(DATA / "movielens" / "ml-100k.inter",),
        columns=Columns(
            label="rating", label_threshold=4.0, categorical=(Categorical(name="user_id"), Categorical(name="item_id"))
        ),
        separator="\t",
        column_names=("user_id", "item_id", "rating", "timestamp"),
    )
    return prepare(source, folder, PrepareOptions(split="random")).log


def _frappe(folder: Path) -> ClickLog:
    files = (DATA / "frappe" / "frappe.validation.libfm", DATA / "frappe" / "frappe.test.libfm")
    return prepare(Libfm(files=files), folder, PrepareOptions(split="files", test_files=files[1:])).log


SUBJECTS = {
    "movielens": Subject(
        prepare=_movielens, held_out="valid", model="ncf", options={"deep": (16, 8)}, batch_size=256, epochs=2,
        row_lr=100.0,
    ),
    "frappe": Subject(
        prepare=_frappe, held_out="test", model="deepfm", options={"deep": (32,)}, batch_size=256, epochs=2, row_lr=1.0
    ),
    "avazu": Subject(
        prepare=lambda folder: prepare(
            Avazu(files=(DATA / "avazu" / "avazu_union_sorted.csv",)), folder, PrepareOptions()
        ).log,
        held_out="valid", model="dlrm", options={"bottom": (16,), "top": (32,)}, batch_size=256, epochs=2, row_lr=16.0,
    ),
    "synthetic": Subject(
        prepare=lambda folder: synthetic(folder, num_samples=100_000, seed=3, table_scale=0.001),
        held_out="valid", model="dlrm", options={"bottom": (16,), "top": (32,)}, batch_size=512, epochs=1, row_lr=16.0,
    ),
}  # fmt: skip


def course_of(subject: Subject, log: ClickLog, seed: int, *, steps_max: int | None) -> Course:
    """Everything a run of this seed begins with."""
    stream = log.batches(batch_size=subject.batch_size, seed=seed, epochs=subject.epochs)
    held_out = log.batches(batch_size=4096, split=subject.held_out, shuffle=False, drop_last=False)
    rng = np.random.default_rng(seed)
    first = rng.uniform(-INIT_SCALE, INIT_SCALE, (log.num_rows, row_width(subject.model, DIM))).astype(np.float32)

    def model() -> torch.nn.Module:
        torch.manual_seed(seed)
        return build(subject.model, log, DIM, **subject.options)

    return Course(
        batches=list(islice(stream.batches(), steps_max)),
        steps_per_epoch=stream.steps_per_epoch,
        valid=list(held_out.batches()),
        num_rows=log.num_rows,
        num_workers=NUM_WORKERS,
        rows=torch.from_numpy(first),
        model=model,
        row_lr=subject.row_lr,
        dense_lr=subject.dense_lr,
    )


def figures_of(by_protocol: dict[str, list[Trained]]) -> dict[str, Any]:
    """Means over seeds, and differences to exact training seed by seed."""
    figures: dict[str, Any] = {}
    for protocol, runs in by_protocol.items():
        name = protocol.replace(" ", "_")
        for what in ("auc", "log_loss"):
            last = [getattr(run.curve[-1], what) for run in runs]
            exact = [getattr(run.curve[-1], what) for run in by_protocol["exact"]]
            apart = [mine - other for mine, other in zip(last, exact, strict=True)]
            figures[f"{what}_{name}"] = round(statistics.mean(last), 5)
            if protocol != "exact":
                figures[f"{what}_{name}_minus_exact"] = round(statistics.mean(apart), 5)
                figures[f"{what}_{name}_minus_exact_error"] = _standard_error(apart)
        stale = sum(run.staleness.num_stale_lookups for run in runs)
        reads = sum(run.staleness.num_stale_reads for run in runs)
        figures[f"stale_per_lookup_{name}"] = round(stale / sum(run.staleness.num_lookups for run in runs), 4)
        missing = sum(run.staleness.num_missing_updates for run in runs)
        figures[f"missing_updates_per_stale_read_{name}"] = round(missing / reads, 2) if reads else 0.0
    if "fae" in by_protocol:
        figures["fae_hot_samples"] = round(statistics.mean(run.hot_share for run in by_protocol["fae"]), 4)
    return figures | {"num_seeds": len(by_protocol["exact"]), "curves": _curves(by_protocol)}


def _standard_error(values: Sequence[float]) -> float | None:
    return round(statistics.stdev(values) / len(values) ** 0.5, 5) if len(values) > 1 else None


def _curves(by_protocol: dict[str, list[Trained]]) -> dict[str, list[dict[str, float]]]:
    return {
        protocol: [
            {
                "num_samples": points[0].num_samples,
                "auc": round(statistics.mean(point.auc for point in points), 5),
                "log_loss": round(statistics.mean(point.log_loss for point in points), 5),
            }
            for points in zip(*(run.curve for run in runs), strict=True)
        ]
        for protocol, runs in by_protocol.items()
    }


def subjects(names: Sequence[str], folder: Path) -> Iterator[tuple[str, Subject, ClickLog]]:
    for name in names:
        if name != "synthetic" and not DATA.is_dir():
            print(f"{DATA} is missing: set FORESEE_DATA to train on {name} too; left out", file=sys.stderr)
            continue
        yield name, SUBJECTS[name], SUBJECTS[name].prepare(folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="all of each log, every protocol, three seeds")
    parser.add_argument("--logs", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), help="only these logs")
    parser.add_argument("--seeds", type=int, help="so many seeds")
    parser.add_argument("--protocols", nargs="+", help="only these, such as exact 'het 100' fae")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many logs at once; nothing is timed")
    options = parser.parse_args()
    num_seeds = options.seeds or (3 if options.full else 1)
    bounds = [f"het {bound}" for bound in ((0, *STALENESS) if options.full else STALENESS)]
    protocols = options.protocols or ["exact", *bounds, "fae"]
    if options.jobs > 1 and len(options.logs) > 1:
        print(json.dumps(in_parallel(options)))
        return
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, subject, log in subjects(options.logs, Path(folder)):
            runs: dict[str, list[Trained]] = {protocol: [] for protocol in protocols}
            for seed in range(num_seeds):
                course = course_of(subject, log, seed, steps_max=None if options.full else 150)
                for protocol in protocols:
                    begun = time.perf_counter()
                    runs[protocol].append(train(course, protocol, num_points=NUM_POINTS))
                    show(name, protocol, seed, len(course.batches), runs[protocol][-1], time.perf_counter() - begun)
            found[name] = figures_of(runs)
    print(json.dumps(found))


def in_parallel(options: argparse.Namespace) -> dict[str, Any]:
    """Every log in a process of its own, some at once. The figures are the same: they depend on seeds alone."""
    chosen = [*(["--full"] if options.full else []), *(["--seeds", str(options.seeds)] if options.seeds else [])]
    chosen += ["--protocols", *options.protocols] if options.protocols else []

    def run(log: str) -> dict[str, Any]:
        command = [sys.executable, __file__, *chosen, "--logs", log]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        print("\n".join(printed[:-1]), flush=True)
        figures: dict[str, Any] = json.loads(printed[-1])
        return figures

    with ThreadPoolExecutor(options.jobs) as pool:
        return {name: figures for found in pool.map(run, options.logs) for name, figures in found.items()}


def show(log: str, protocol: str, seed: int, num_steps: int, run: Trained, seconds: float) -> None:
    last, stale = run.curve[-1], run.staleness.num_stale_lookups / run.staleness.num_lookups
    print(
        f"{log:10} {protocol:9} seed {seed}: AUC {last.auc:.4f}  log loss {last.log_loss:.4f}  stale lookups "
        f"{stale:6.1%}  hot samples {run.hot_share:4.0%}  ({num_steps} steps, {seconds:.1f} s)",
        flush=True,
    )


if __name__ == "__main__":
    main()
