"""Edges a second of link prediction in memory: Foresee, DGL, BigGraph, PyKEEN, PyTorch Geometric, and plain PyTorch.

DistMult, d = 50, on FB15k-237: batches of 1,000 edges, 500 negatives for each edge and side, softmax, Adagrad, one
thread. Each side is a process of its own, stopped while another is timed (`graph_rivals/` has one file for each and
says how it is used); they train in turns, the first of which is not counted. Ours draws its batches and plans them
inside the clock, on a thread of its own that a second core carries; with --cores 1 every side has one core for all of
its threads. BigGraph, Foresee and what DGL is given share negatives among the 100 edges of a chunk, PyKEEN and PyG
cannot. Rows of DGL and BigGraph have sparse gradients, those of PyKEEN and PyG the dense ones that
they have unless told otherwise.

    ours_over_best_peer      our edges a second over those of the fastest library, median of turns: higher is better
    ours_over_manual         the same over a loop of plain PyTorch with gradients by hand (`manual_side.py`)
    edges_per_second         of each side
    loss                     of an edge and side over the last turn, so that one sees that all of them learn

By default a turn is a part of an epoch, so that slow sides end in time; with --full it is the whole epoch. The others
run in .venv-bench, which `make bench-env` makes; a side that cannot run is left out with a sentence. The data is looked
for in `../shared/data/graph`, or in the folder of FORESEE_GRAPH_DATA. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graph_rivals.work import Edges, Work
from sides.process import Process, say

ROOT = Path(__file__).resolve().parent.parent
BENCH_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
STEPS = {"foresee": 120, "dgl": 80, "biggraph": 60, "manual": 100, "pykeen": 1, "pyg": 1}
"""Of a turn, by side: about as long for each."""
SLOW = ("pykeen", "pyg")
"""A step of theirs takes seconds: they take part in the first turn, which is not counted, and in one more."""
OURS, MANUAL = "foresee", "manual"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="whole epochs")
    parser.add_argument("--turns", type=int, default=4, help="besides the first, which is not counted")
    parser.add_argument("--cores", type=int, help="bind every side to so many cores, with all of its threads")
    parser.add_argument("--only", nargs="+", choices=[name for name in STEPS if name != OURS], help="these others")
    parser.add_argument("--side", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--graph", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        serve_side(given.side, given.graph)
    from graph_quality import prepared

    names = [OURS, *(given.only or [name for name in STEPS if name != OURS])]
    with tempfile.TemporaryDirectory(prefix="graph-peers-") as place, contextlib.ExitStack() as running:
        graph = prepared("FB15k-237", Path(place))
        edges = train_edges(graph)
        torch.save(edges, Path(place) / "edges.pt")
        sides = started(names, graph, running, given.cores)
        answers = in_turns(sides, len(edges.array) // Work().batch_size if given.full else None, given.turns)
    print(json.dumps(figures(answers)))


def train_edges(graph: Path) -> Edges:
    from foresee.graph.folder import GraphFolder

    folder = GraphFolder.open(graph)
    array = torch.from_numpy(np.asarray(folder.edges("train")).astype(np.int64))
    return Edges(array, int(folder.num_nodes), int(folder.num_relations))


def started(names: list[str], graph: Path, running: contextlib.ExitStack, cores: int | None) -> dict[str, Process]:
    """All sides that can run here, with their libraries imported and their models made, all at the same time."""
    threads = {
        "OMP_NUM_THREADS": str(Work().threads),
        "NUMBA_NUM_THREADS": str(Work().threads),
        "DGLBACKEND": "pytorch",
    }
    found = {}
    for name in names:
        python = Path(sys.executable) if name in (OURS, MANUAL) else BENCH_PYTHON
        if not python.exists():
            print(f"{name} is left out: it needs .venv-bench, which `make bench-env` makes")
            continue
        command = [str(python), __file__, "--graph", str(graph), "--side", name]
        found[name] = running.enter_context(
            Process(command, environment=threads, before=lambda: os.sched_setaffinity(0, some_cores(cores)))
        )
    answers = {name: process.ask("begin") for name, process in found.items()}
    for name, answer in answers.items():
        if "cannot" in answer:
            print(f"{name} is left out: it cannot run here ({answer['cannot']}); `make bench-env` may help")
            del found[name]
    return found


def some_cores(num: int | None) -> list[int]:
    return sorted(os.sched_getaffinity(0))[-num if num else 0 :]


def in_turns(sides: dict[str, Process], num_steps: int | None, turns: int) -> dict[str, list[dict[str, float]]]:
    """What each side answered, but for the first turn."""
    answers: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name, process in sides.items():
            if turn <= 1 or name not in SLOW:
                answers[name].append(process.ask(f"train {num_steps or STEPS[name]}"))
    for name, its in answers.items():
        print(f"{name:<9} {speed(its[1:]):9,.0f} edges/s   loss {its[-1]['loss']:.3f}")
    return {name: its[1:] for name, its in answers.items()}


def speed(turns: list[dict[str, float]]) -> float:
    return statistics.median(turn["edges_per_second"] for turn in turns)


def figures(answers: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    over = {
        name: statistics.median(
            ours["edges_per_second"] / its["edges_per_second"]
            for ours, its in zip(answers[OURS], turns, strict=False)
        )
        for name, turns in answers.items() if name != OURS
    }  # fmt: skip
    libraries = [ratio for name, ratio in over.items() if name != MANUAL]
    return {
        "ours_over_best_peer": round(min(libraries), 3) if libraries else None,
        "ours_over_manual": round(over[MANUAL], 3) if MANUAL in over else None,
        "ours_over": {name: round(ratio, 2) for name, ratio in over.items()},
        "edges_per_second": {name: round(speed(turns)) for name, turns in answers.items()},
        "loss": {name: round(turns[-1]["loss"], 3) for name, turns in answers.items()},
    }


def serve_side(name: str, graph: Path) -> None:
    """One side's process."""
    work = Work()
    torch.set_num_threads(work.threads)
    torch.manual_seed(0)
    answers, sys.stdout = sys.stdout, sys.stderr  # a library that prints must not answer
    try:
        module = importlib.import_module(f"graph_rivals.{name}_side")
        edges: Edges = torch.load(graph.parent / "edges.pt", weights_only=False)
        side = module.Side(graph, edges, work)
        answer: dict[str, Any] = {}
    except Exception as error:
        if name == OURS:
            raise
        answer = {"cannot": f"{type(error).__name__}: {error}"}
    sys.stdin.readline()
    with contextlib.redirect_stdout(answers):
        say(answer)
    for line in sys.stdin:
        num_steps = int(line.split()[1])
        begun = time.perf_counter()
        loss = side.train(num_steps)
        seconds = time.perf_counter() - begun
        with contextlib.redirect_stdout(answers):
            say({"edges_per_second": num_steps * work.batch_size / seconds, "loss": loss})
    os._exit(0)  # nothing is left to be saved, and taking down torch and its friends takes a second for each side


if __name__ == "__main__":
    main()
