"""The same training by Foresee, plain PyTorch, TorchRec, DeepCTR-Torch and FuxiCTR, all in memory: speed, memory, AUC.

Four cases:
    synthetic   the DLRM of `foresee demo` (dim 16, bottom 64, top 128-64), on a synthetic log of Criteo's shape (26
                tables, 13 numbers), batches of 2048
    large_mlp   the same log with dim 64, bottom 512-256, top 512-256: here most of a step is matrix products, which
                are the same for all, so ratios are nearer to 1
    avazu       the first model on Avazu's real log (21 tables), batches of 512; from $FORESEE_DATA or ../shared/data
    deepfm      a DeepFM (dim 16, deep 128-64) on the synthetic log: the model that DeepCTR-Torch and FuxiCTR have in
                common with us. Pairs are of categorical features only and there is one bias, as DeepCTR-Torch has it
Every side of a case is a process of its own, starts from the same values, sees the same batches in the same order,
decoded before the clock starts, and updates rows by Adagrad and the dense part by Adam (fused), on the same number of
threads. Sides train in turns and are stopped in between; figures are medians of the ratios of each turn, the first left
out. At the end each side scores the valid split.

    ours       tables in memory, planner lookahead, planned while training, a cache of --cache-share of the rows
    pytorch    one nn.EmbeddingBag(sparse=True) over all tables, global ids: one lookup, one gradient and one
               torch.optim.Adagrad step a batch, instead of one for each table
    torchrec   FusedEmbeddingBagCollection on one process (FBGEMM updates rows inside backward), its
               KeyedJaggedTensors made before the clock starts
    deepctr    DeepCTR-Torch's DeepFM, without penalties, in a loop as that of its `fit`
    fuxictr    a DeepFM of FuxiCTR's layers (its package has none ready-made), stepped by its `train_step`, which also
               clips gradients
DeepCTR-Torch and FuxiCTR keep two tables for each feature (embeddings, first order) and offer dense gradients only:
their step passes over all rows, with torch's fused Adagrad, so their ratios grow with the tables.

The last three run in .venv-bench, which `make bench-env` makes; a side that cannot run is left out, with a sentence.
Printed last: ours_over_<side> (samples a second), auc_difference (largest over all cases, between ours and pytorch),
and samples a second, peak resident memory and AUC of every side.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foresee import ClickLog
from foresee.data import Avazu, prepare, synthetic
from rivals.case import CASES, MAIN, THREADS, Case, case_of
from rivals.training import Runs, Trainer, adam_of
from sides.process import Process, in_a_fork, say, serve

ROOT = Path(__file__).resolve().parent.parent
BENCH_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
DATA = Path(os.environ.get("FORESEE_DATA", ROOT.parent / "shared" / "data"))
AVAZU = DATA / "avazu" / "avazu_union_sorted.csv"
MODULES = {
    "ours": "rivals.foresee_side",
    "pytorch": "rivals.pytorch_side",
    "torchrec": "rivals.torchrec_side",
    "deepctr": "rivals.deepctr_side",
    "fuxictr": "rivals.fuxictr_side",
}
"""Where each side's class is; imported in its own process, as most need a library that this one does not have."""
IN_BENCH_ENV = ("torchrec", "deepctr", "fuxictr")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="four times as many turns")
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE", help="cases")
    parser.add_argument("--cache-share", type=float, default=0.3, help="of all rows")
    parser.add_argument("--side", choices=sorted(MODULES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        run_side(arguments)
        os._exit(0)  # nothing is left to be saved, and taking down torch and its friends takes a second for each side
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("FORESEE_BENCH_DIR", ".")) as folder,
        contextlib.ExitStack() as running,
    ):
        cases = [case_of(name, full=arguments.full) for name in arguments.only]
        logs = {log: MAKERS[log](Path(folder) / log, cases) for log in {case.log for case in cases}}
        cases = [case for case in cases if logs[case.log] is not None]
        sides = start(cases, arguments, running)
        results = {case.name: compare(case, logs[case.log], sides) for case in cases}
    print(json.dumps(figures(results)))


def make_synthetic(path: Path, cases: list[Case]) -> Path:
    """As many samples as the longest case trains on, and a tenth of all to score."""
    num_samples = max(case.num_steps * case.batch_size for case in cases if case.log == "synthetic")
    synthetic(path, num_samples=round(num_samples / 0.89), table_scale=0.03)
    return path


def make_avazu(path: Path, cases: list[Case]) -> Path | None:
    if not AVAZU.exists():
        print(f"{AVAZU.name} is not in the data folder: no real log; FORESEE_DATA names another folder")
        return None
    prepare(Avazu(files=(AVAZU,)), path)
    return path


MAKERS: dict[str, Callable[[Path, list[Case]], Path | None]] = {"synthetic": make_synthetic, "avazu": make_avazu}


Turns = dict[str, list[dict[str, Any]]]
"""What each side answered, turn by turn; its last answer is that of the end."""


def start(cases: list[Case], arguments: argparse.Namespace, running: contextlib.ExitStack) -> dict[str, Process]:
    """All sides that can run here, their libraries imported."""
    options = ["--cache-share", str(arguments.cache_share), *(["--full"] if arguments.full else [])]
    started = {
        name: running.enter_context(Process([python, __file__, *options, "--side", name]))
        for name, python in interpreters(name for name in MODULES if any(name in case.sides for case in cases)).items()
    }
    return {name: process for name, process in started.items() if can_run(name, process.ask("import"))}


def compare(case: Case, log: Path | None, sides: dict[str, Process]) -> Turns:
    """All sides on one log, in turns."""
    begun = {name: sides[name].ask(f"begin {case.name} {log}") for name in case.sides if name in sides}
    processes = {name: sides[name] for name, answer in begun.items() if can_run(name, answer)}
    answers: Turns = {name: [] for name in processes}
    for question in [*["train"] * (case.turns + 1), "end"]:
        for name, process in processes.items():
            answers[name].append(process.ask(question))
    widths = f"bottom {case.bottom}, top {case.top}" if case.model == "dlrm" else f"deep {case.top}"
    print(f"{case.name}: {case.model}, batches of {case.batch_size}, dim {case.dim}, {widths}")
    for name, turns in answers.items():
        auc, peak_mb = turns[-1]["auc"], turns[-1]["peak_mb"]
        print(f"  {name:<9} {speed(turns):9,.0f} samples/s   AUC {auc:.5f}   peak {peak_mb:6.0f} MB")
    return answers


def interpreters(names: Iterable[str]) -> dict[str, str]:
    """Of every side that this machine has one for."""
    found = {name: BENCH_PYTHON if name in IN_BENCH_ENV else Path(sys.executable) for name in names}
    for name in [name for name, python in found.items() if not python.exists()]:
        print(f"{name} is left out: it needs .venv-bench, which `make bench-env` makes")
        del found[name]
    return {name: str(python) for name, python in found.items()}


def can_run(name: str, answer: dict[str, Any]) -> bool:
    if "cannot" in answer:
        print(f"{name} is left out: it cannot run here ({answer['cannot']}); `make bench-env` may help")
    return "cannot" not in answer


def speed(turns: list[dict[str, Any]]) -> float:
    """Samples a second of a side: the median of the turns that count."""
    return float(statistics.median(turn["samples_per_second"] for turn in turns[1:-1]))


def figures(results: dict[str, Turns]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    differences = []
    for case, answers in results.items():
        suffix = "" if case == MAIN else f"_{case}"
        for peer in answers.keys() - {"ours"}:
            pairs = zip(answers["ours"][1:-1], answers[peer][1:-1], strict=True)
            ratios = [ours["samples_per_second"] / other["samples_per_second"] for ours, other in pairs]
            found[f"ours_over_{peer}{suffix}"] = round(statistics.median(ratios), 3)
        for name, turns in answers.items():
            found[f"{name}_samples_per_second{suffix}"] = round(speed(turns))
            found[f"{name}_peak_mb{suffix}"] = turns[-1]["peak_mb"]
            found[f"{name}_auc{suffix}"] = round(turns[-1]["auc"], 5)
        if "pytorch" in answers:
            differences.append(abs(answers["ours"][-1]["auc"] - answers["pytorch"][-1]["auc"]))
    # Where no case was trained by both there is no difference, not even one of zero.
    difference = {"auc_difference": round(max(differences), 6)} if differences else {}
    return {**difference, **dict(sorted(found.items()))}


def run_side(arguments: argparse.Namespace) -> None:
    """One side's process: imports its library, then trains each case in a fork."""
    name: str = arguments.side
    try:
        importlib.import_module(MODULES[name])
        adam_of([nn.Parameter(torch.zeros(1))])  # the first optimiser makes torch import half of itself
        answer = {}
    except Exception as error:
        answer = excuse(name, error)
    for line in sys.stdin:
        question, *which = line.rstrip("\n").split(" ", 2)
        if question == "import":
            say(answer)
        else:
            case, log = case_of(which[0], full=arguments.full), Path(which[1])
            in_a_fork(partial(serve_case, name, case, log, arguments.cache_share))


def serve_case(name: str, case: Case, log: Path, cache_share: float) -> None:
    """Trains, in a process that does nothing else."""
    torch.set_num_threads(THREADS)
    try:
        side = side_of(name, case, ClickLog.open(log), cache_share)
    except Exception as error:
        say(excuse(name, error))
        return
    say({})
    steps = side.steps()

    def train() -> dict[str, float]:
        begun = time.perf_counter()
        for _ in range(case.steps):
            next(steps)
        return {"samples_per_second": case.steps * case.batch_size / (time.perf_counter() - begun)}

    def end() -> dict[str, float]:
        steps.close()
        auc, peak_mb = side.auc(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {"auc": auc, "peak_mb": round(peak_mb, 1)}

    serve({"train": train, "end": end}, last="end")


def excuse(name: str, error: Exception) -> dict[str, str]:
    """Another library may be missing, or too old for its neighbours; ours and torch must run."""
    if name not in IN_BENCH_ENV:
        raise error
    return {"cannot": f"{type(error).__name__}: {error}"}


def side_of(name: str, case: Case, log: ClickLog, cache_share: float) -> Runs:
    side: Runs = importlib.import_module(MODULES[name]).Side(case, log, Trainer(case, log), cache_share)
    return side


if __name__ == "__main__":
    main()
