"""DIN on what people watched, by Foresee and by FuxiCTR, in memory: speed and quality.

The log is MovieLens-1M's sequences ($FORESEE_DATA or ../shared/data; made-up ones where it is not there). A sample is a
person, the up to --length films before some moment, and a candidate: the film that came next, or one drawn by chance.
Both sides have the same model (dim 32, attention 64-32, deep 128-64), start from the same values, see the same batches
in the same order, made before the clock starts, update films by Adagrad and the rest by Adam (fused), on the same
number of threads. Each is a process of its own, trains in turns with the other and is stopped in between; the figure
is the median of the ratios of each turn, the first left out. In the end everybody's last film and one drawn by chance
are scored: AUC.

    ours       the loop of docs/sequences.md: histories are bags that are not pooled, planned while training
    fuxictr    a DIN as its model zoo has it, of its own layers (FeatureEmbedding, DIN_Attention, MLP_Block), stepped by
               its `train_step`, which also clips gradients; histories padded to --length, as it wants them

FuxiCTR runs in .venv-bench, which `make bench-env` makes. Printed last: ours_over_peer (samples a second),
quality_difference (AUC), and what they are made of.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from rivals.case import THREADS
from rivals.watched import Case, Films, read_films
from sides.process import Process, serve

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = {"ours": Path(sys.executable), "fuxictr": ROOT / ".venv-bench" / "bin" / "python"}
MODULES = {"ours": "rivals.din_foresee", "fuxictr": "rivals.din_fuxictr"}
"""Each with a class `Side`; imported in its own process, as one needs a library that this one does not have."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="four times as many turns")
    parser.add_argument("--length", type=int, default=100, help="films of a history at most")
    parser.add_argument("--side", choices=sorted(MODULES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    case = Case(length=arguments.length, turns=24 if arguments.full else 6)
    if arguments.side:
        run_side(arguments.side, case)
        os._exit(0)  # nothing is left to be saved
    if not PYTHONS["fuxictr"].exists():
        sys.exit("there is no .venv-bench, which has FuxiCTR; `make bench-env` makes it")
    options = ["--length", str(case.length), *(["--full"] if arguments.full else [])]
    with contextlib.ExitStack() as running:
        sides = {
            name: running.enter_context(Process([str(python), __file__, *options, "--side", name]))
            for name, python in PYTHONS.items()
        }
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
        for question in ["begin", *["train"] * (case.turns + 1), "end"]:
            for name, process in sides.items():
                answers[name].append(process.ask(question))
    for name, turns in answers.items():
        print(f"{name:<8} {speed(turns):9,.0f} samples/s   AUC {turns[-1]['auc']:.5f}")
    print(json.dumps(figures(answers)))


def speed(turns: list[dict[str, Any]]) -> float:
    """Of the turns that count."""
    return float(statistics.median(turn["samples_per_second"] for turn in turns[2:-1]))


def figures(answers: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    ours, peer = answers["ours"], answers["fuxictr"]
    pairs = zip(ours[2:-1], peer[2:-1], strict=True)
    ratios = [one["samples_per_second"] / other["samples_per_second"] for one, other in pairs]
    return {
        "ours_over_peer": round(statistics.median(ratios), 3),
        "quality_difference": round(abs(ours[-1]["auc"] - peer[-1]["auc"]), 6),
        "ratios": [round(it, 2) for it in ratios],
        "ours_samples_per_second": round(speed(ours)),
        "peer_samples_per_second": round(speed(peer)),
        "ours_auc": round(ours[-1]["auc"], 5),
        "peer_auc": round(peer[-1]["auc"], 5),
        "films_of_a_history": ours[0]["films_of_a_history"],
    }


def run_side(name: str, case: Case) -> None:
    """One side's process."""
    torch.set_num_threads(THREADS)
    films: Films = read_films()
    side = importlib.import_module(MODULES[name]).Side(case, films)
    steps = side.steps()

    def begin() -> dict[str, Any]:
        return {"films_of_a_history": round(float(case.num_before(films).mean()), 1)}

    def train() -> dict[str, float]:
        begun = time.perf_counter()
        for _ in range(case.steps):
            next(steps)
        return {"samples_per_second": case.steps * case.batch_size / (time.perf_counter() - begun)}

    def end() -> dict[str, float]:
        steps.close()
        return {"auc": side.auc()}

    serve({"begin": begin, "train": train, "end": end}, last="end")


if __name__ == "__main__":
    main()
