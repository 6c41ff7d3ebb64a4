"""What lookahead means for sampled neighbourhoods: rows fetched by each policy, and how fast neighbours are sampled.

A power-law graph, its features on disk, two-hop GraphSage batches drawn from per-step seeds: the distinct nodes of each
batch are the trace. On this one trace, with a cache for 10 % of the nodes, every policy is counted: LRU, a static cache
of the nodes with the largest degrees, Ginex (Belady inside superbatches, whose cache here even survives from one to the
next), our lookahead planner, and Belady. Superbatch and lookahead are equally long. The rows that a policy fetches in
some steps are also read, from a feature file that was dropped from memory before each step.

    fetched_over_lru, fetched_over_ginex, fetched_over_belady   rows fetched by lookahead over those of the other
    sampler_over_peer   nodes sampled a second, three hops 15-10-5, over the faster of DGL's and PyG's CPU samplers,
                        one thread, batches in turn; median of ratios (peers need `make bench-env`)

Run: `.venv/bin/python benchmarks/neighbourhoods.py` (`--full`: larger graph, three hops, several caches and windows).
The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.data.order import permutation
from foresee.graph.folder import GraphFolder
from foresee.graph.options import GraphOptions
from foresee.graph.sampling import Sampler
from foresee.graph.synthetic import Synthetic, synthetic_graph
from foresee.io.hashing import key_of
from foresee.plan import Lookahead, make_planner, plan
from foresee.plan.baselines.ranked_eviction import RankedEviction
from foresee.plan.record import Accesses, Header, Planner
from sides.process import Answer, Process, serve

ROOT = Path(__file__).resolve().parent.parent
BATCHES_OF_A_TURN = 6
PEER_PYTHON = Path(os.environ.get("FORESEE_PEER_PYTHON", ROOT / ".venv-bench" / "bin" / "python"))
PEERS = ("dgl", "pyg")
SEED = 1
NEVER = np.iinfo(np.int64).max
READ_STEPS = 3
"""So many steps from the middle on are read from a cold file."""
FANOUTS = (15, 10, 5)
"""Of the comparison of samplers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One trace and the caches that are tried on it."""

    num_nodes: int
    mean_degree: int
    fanouts: tuple[int, ...]
    batch_size: int
    num_steps: int
    shares: tuple[float, ...]
    windows: tuple[int, ...]
    """Steps of a superbatch, and steps that the planner looks ahead; the first one is judged."""


CASE = Case(
    num_nodes=200_000, mean_degree=10, fanouts=(10, 5), batch_size=192, num_steps=280, shares=(0.1,), windows=(64,)
)
FULL = Case(
    num_nodes=1_000_000, mean_degree=12, fanouts=(10, 5), batch_size=512, num_steps=640,
    shares=(0.1, 0.05, 0.2), windows=(64, 8, 16, 32, 128, 256),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="a larger graph, several caches and windows")
    parser.add_argument("--side", choices=(*PEERS, "ours"), help=argparse.SUPPRESS)
    parser.add_argument("--graph", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        sampling_side(arguments.side, Path(arguments.graph))
        return
    case = FULL if arguments.full else CASE
    with tempfile.TemporaryDirectory(dir=os.environ.get("FORESEE_BENCH_DIR", ".")) as folder:
        source = Synthetic(num_nodes=case.num_nodes, num_edges=case.num_nodes * case.mean_degree, num_features=64)
        options = GraphOptions(split="nodes", valid_share=0.0, test_share=0.0)
        graph = synthetic_graph(source, Path(folder) / "graph", options).graph
        figures = compare_policies(graph, case) | compare_samplers(graph, rounds=24 if arguments.full else 12)
    print(json.dumps(figures))


# Rows


def compare_policies(graph: GraphFolder, case: Case) -> dict[str, float]:
    began = time.perf_counter()
    trace = trace_of(graph, case)
    sampled = time.perf_counter() - began
    rows = [len(step) for step in trace]
    print(
        f"{case.num_steps} steps of {case.batch_size} targets, fanouts {case.fanouts}: {np.mean(rows):,.0f} rows a "
        f"step, largest {max(rows):,}; sampled in {1e3 * sampled / case.num_steps:.1f} ms a step"
    )
    print(
        f"{'cache':>6}{'steps ahead':>12}  {'policy':10}{'fetched':>11}{'over Belady':>12}{'read':>9}"
        f"{'plan, ms a step':>17}"
    )
    judged: dict[str, float] = {}
    for share in case.shares:
        capacity = int(share * graph.num_nodes)
        if capacity < max(rows):
            print(f"{share:6.0%}  a batch has more rows than this cache")
            continue
        always = {name: counted(name, trace, graph, capacity, 0) for name in ("belady", "lru", "degree")}
        for window in case.windows:
            found = always | {name: counted(name, trace, graph, capacity, window) for name in ("ginex", "lookahead")}
            for name, result in found.items() if window == case.windows[0] else list(found.items())[3:]:
                ahead = "all" if name == "belady" else str(window) if name in ("ginex", "lookahead") else "0"
                over = result.fetched / found["belady"].fetched
                times = f"{1e3 * result.read_seconds:9.1f}{1e3 * result.plan_seconds / case.num_steps:17.2f}"
                print(f"{share:6.0%}{ahead:>12}  {name:10}{result.fetched:11,}{over:12.3f}{times}", flush=True)
            if not judged:
                ours = found["lookahead"].fetched
                judged = {
                    f"fetched_over_{name}": round(ours / found[name].fetched, 4) for name in ("lru", "ginex", "belady")
                }
                judged["fetched_over_degree"] = round(ours / found["degree"].fetched, 4)
    return judged


def trace_of(graph: GraphFolder, case: Case) -> list[Int64]:
    """The distinct nodes of each step."""
    sampler = Sampler(graph.neighbours(), case.fanouts, direction="incoming", seed=SEED)
    nodes, epoch = graph.nodes("train"), 0
    trace: list[Int64] = []
    while len(trace) < case.num_steps:
        order = nodes[permutation(len(nodes), key_of(SEED, epoch))]
        for step in range(min(case.num_steps - len(trace), len(order) // case.batch_size)):
            targets = order[step * case.batch_size : (step + 1) * case.batch_size]
            trace.append(sampler.sample(targets, epoch, step).nodes)
        epoch += 1
    return trace


@dataclass(frozen=True, slots=True)
class Result:
    """What a policy did with the trace."""

    fetched: int
    plan_seconds: float
    read_seconds: float


def counted(policy: str, trace: list[Int64], graph: GraphFolder, capacity: int, window: int) -> Result:
    began = time.perf_counter()
    if policy == "ginex":
        fetches = ginex_fetches(trace, graph.num_nodes, capacity, window)
    else:
        header = Header(
            planner="lookahead" if policy == "degree" else policy, num_workers=1, capacity_rows=capacity,
            num_rows=graph.num_nodes, first_step=0, num_steps=len(trace), fetch_ahead_steps=8, stream_digest="sampled",
        )  # fmt: skip
        accesses = [Accesses(rows, np.array([0, len(rows)], np.int32)) for rows in trace]
        planner: Planner
        if policy == "degree":
            planner = by_degree(header, graph)
        elif policy == "lookahead":
            planner = Lookahead(header, window_steps=window, window_bytes=None)
        else:
            planner = make_planner(header, lambda num_steps: accesses[:num_steps])
        fetches = [record.fetch.row for record in plan(planner, accesses)]
    planned = time.perf_counter() - began
    return Result(sum(map(len, fetches)), planned, read(graph, fetches))


def by_degree(header: Header, graph: GraphFolder) -> Planner:
    degrees = graph.neighbours().outgoing.degrees()  # how often a node is somebody's neighbour

    def rank(step: int, slots: Int32, accessed: Int64) -> Int64:
        return np.asarray(degrees[accessed])

    return RankedEviction(header, rank)


def ginex_fetches(trace: list[Int64], num_nodes: int, capacity: int, superbatch: int) -> list[Int64]:
    """Belady with the rest of the superbatch as all it knows; the rows of a step are in the cache together."""
    cached, upcoming = np.zeros(num_nodes, bool), np.full(num_nodes, NEVER, np.int64)
    fetches: list[Int64] = []
    for first in range(0, len(trace), superbatch):
        steps = trace[first : first + superbatch]
        nexts = next_uses(steps, upcoming)  # leaves in `upcoming` each row's first use in this superbatch
        for rows, later in zip(steps, nexts, strict=True):
            missing = rows[~cached[rows]]
            kept = np.flatnonzero(cached)
            kept = kept[~np.isin(kept, rows, assume_unique=True)]
            surplus = len(kept) + len(rows) - capacity
            if surplus > 0:
                cached[kept[np.argpartition(-upcoming[kept], surplus - 1)[:surplus]]] = False
            cached[rows] = True
            upcoming[rows] = later
            fetches.append(missing)
        upcoming[:] = NEVER
    return fetches


def next_uses(steps: list[Int64], upcoming: Int64) -> list[Int64]:
    """For each step and row, the next step in the list that uses the row."""
    found: list[Int64] = []
    for number in range(len(steps) - 1, -1, -1):
        found.append(upcoming[steps[number]])
        upcoming[steps[number]] = number
    return found[::-1]


def read(graph: GraphFolder, fetches: list[Int64]) -> float:
    """Seconds a step to read what is fetched from a file none of which is in memory, as if it were far larger."""
    path, seconds = graph.path / "features.npy", []
    middle = len(fetches) // 2
    for rows in fetches[middle : middle + READ_STEPS]:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        features = np.load(path, mmap_mode="r")
        features._mmap.madvise(mmap.MADV_RANDOM)
        began = time.perf_counter()
        np.take(features, np.sort(rows), axis=0)
        seconds.append(time.perf_counter() - began)
        del features
    return sum(seconds) / len(seconds)


# Samplers


def compare_samplers(graph: GraphFolder, rounds: int) -> dict[str, float]:
    """Nodes a second, some batches of each side in turn: the first finds caches as another side left them."""
    edges = np.ascontiguousarray(np.array(graph.edges("train"))[:, ::2].T, np.int64)
    np.save(graph.path / "ends.npy", edges)
    graph.neighbours()
    sides = {"ours": sys.executable} | {name: str(PEER_PYTHON) for name in PEERS if PEER_PYTHON.exists()}
    if len(sides) == 1:
        print("there is no sampler to compare with: run `make bench-env` first")
        return {}
    speeds: dict[str, list[float]] = {}
    running = {name: _start(name, python, graph.path) for name, python in sides.items()}
    try:
        for name, process in list(running.items()):
            if not process.ask("prepare")["there"]:
                print(f"{name} has no CPU sampler in {PEER_PYTHON.parent.parent.name}")
                running.pop(name).__exit__(None)
        for turn in range(rounds + 2):
            for name, process in running.items():
                answer = process.ask("sample")
                if turn >= 2:
                    speeds.setdefault(name, []).append(answer["nodes"] / answer["seconds"])
    finally:
        for process in running.values():
            process.__exit__(None)
    for name, found in speeds.items():
        print(f"{name:6}{median(found):14,.0f} nodes a second, fanouts {FANOUTS}, one thread")
    ratios = {name: median(a / b for a, b in zip(speeds["ours"], speeds[name], strict=True)) for name in speeds}
    peers = [ratio for name, ratio in ratios.items() if name != "ours"]
    return {"sampler_over_peer": round(min(peers), 3)} if peers else {}


def _start(name: str, python: str, graph: Path) -> Process:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "benchmarks")])
    environment = {"PYTHONPATH": paths, "DGLBACKEND": "pytorch", "OMP_NUM_THREADS": "1"}
    return Process([python, __file__, "--side", name, "--graph", str(graph)], environment=environment)


def sampling_side(name: str, path: Path) -> None:
    """Runs in the environment that has the sampler."""
    makers = {"ours": our_sampler, "dgl": dgl_sampler, "pyg": pyg_sampler}
    draws: list[Callable[[Int64], int]] = []
    num_nodes = GraphFolder.open(path).num_nodes
    turn = iter(range(1 << 30))

    def prepare() -> Answer:
        try:
            draws.append(makers[name](path))
            draws[0](np.arange(10))
        except (ImportError, OSError):
            return {"there": False}
        return {"there": True}

    def sample() -> Answer:
        batches = [permutation(num_nodes, key_of(SEED, next(turn)))[:1000] for _ in range(BATCHES_OF_A_TURN)]
        began = time.perf_counter()
        num = sum(draws[0](targets) for targets in batches)
        return {"nodes": num, "seconds": time.perf_counter() - began}

    serve({"prepare": prepare, "sample": sample})


def our_sampler(path: Path) -> Callable[[Int64], int]:
    sampler, turn = Sampler(GraphFolder.open(path).neighbours(), FANOUTS), iter(range(1 << 30))
    return lambda targets: len(sampler.sample(targets, next(turn)).nodes)


def dgl_sampler(path: Path) -> Callable[[Int64], int]:
    import dgl
    import torch

    torch.set_num_threads(1)
    heads, tails = torch.from_numpy(np.load(path / "ends.npy"))
    graph = dgl.graph((heads, tails), num_nodes=GraphFolder.open(path).num_nodes).formats("csc")
    sampler = dgl.dataloading.NeighborSampler(list(FANOUTS[::-1]))  # the hop next to the targets is last there
    return lambda targets: len(sampler.sample(graph, torch.from_numpy(targets))[0])


def pyg_sampler(path: Path) -> Callable[[Int64], int]:
    import torch
    from torch_geometric.data import Data
    from torch_geometric.sampler import NeighborSampler, NodeSamplerInput

    torch.set_num_threads(1)
    data = Data(edge_index=torch.from_numpy(np.load(path / "ends.npy")), num_nodes=GraphFolder.open(path).num_nodes)
    sampler = NeighborSampler(data, num_neighbors=list(FANOUTS))

    def draw(targets: Int64) -> int:
        return len(sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=torch.from_numpy(targets))).node)

    return draw


if __name__ == "__main__":
    main()
