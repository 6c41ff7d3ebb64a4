"""The same training by Foresee, by plain PyTorch and by TorchRec, all in memory: samples a second, memory, AUC.

A DLRM (bottom 512-256-dim, top 512-256-1) on a synthetic log of Criteo's shape (26 tables, 13 numbers), and on Avazu's
real log (21 tables) from $FORESEE_DATA or ../shared/data. Every side is a process of its own, starts from the same
values, sees the same batches in the same order, decoded before the clock starts, and updates rows by Adagrad and the
dense part by Adam (fused), on the same number of threads. Sides train in turns and are stopped in between; figures are
medians of the ratios of each turn, the first left out. At the end each side scores the valid split.

    ours       tables in memory, planner lookahead, planned while training, a cache of --cache-share of the rows
    pytorch    one nn.EmbeddingBag(sparse=True) over all tables, global ids: one lookup, one gradient and one
               torch.optim.Adagrad step a batch, instead of one for each table
    torchrec   FusedEmbeddingBagCollection on one process (FBGEMM updates rows inside backward), its
               KeyedJaggedTensors made before the clock starts; left out if .venv-bench is missing

DeepCTR-Torch and FuxiCTR are left out: the first has no DLRM and needs TensorFlow, the second needs a data pipeline of
its own. Printed last: ours_over_pytorch, ours_over_torchrec (samples a second), auc_difference (largest over both logs,
between ours and pytorch) and the peak resident memory of every side.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foresee import SGD, Adagrad, ClickLog, Tables
from foresee.data import Avazu, Batch, prepare, synthetic
from foresee.engine.evaluation import evaluate
from foresee.engine.loop import Run, make_header
from foresee.engine.metrics import MetricsAccumulator
from foresee.engine.tables import layout_for
from foresee.engine.work import Pooling
from foresee.models import DLRM
from foresee.store.initial import initial_values
from foresee.testing.streams import MemoryStream
from sides.process import Process, serve

ROOT = Path(__file__).resolve().parent.parent
BENCH_PYTHON = ROOT / ".venv-bench" / "bin" / "python"
DATA = Path(os.environ.get("FORESEE_DATA", ROOT.parent / "shared" / "data"))
AVAZU = DATA / "avazu" / "avazu_union_sorted.csv"
LEARNING_RATE, EPS, THREADS = 0.05, 1e-8, 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """A log and how it is trained on."""

    name: str
    batch_size: int
    dim: int
    epochs: int
    turns: int
    """Besides the first, which is not counted."""

    def steps_per_turn(self, log: ClickLog) -> int:
        return log.split_sizes["train"] // self.batch_size * self.epochs // (self.turns + 1)


SYNTHETIC = Case(name="synthetic", batch_size=2048, dim=64, epochs=1, turns=5)
REAL = Case(name="avazu", batch_size=512, dim=16, epochs=2, turns=3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="ten times as many samples of the synthetic log")
    parser.add_argument("--samples", type=int, default=100_000, help="of the synthetic log")
    parser.add_argument("--cache-share", type=float, default=0.3, help="of all rows")
    parser.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        run_side(arguments)
        return
    num_samples = arguments.samples * (10 if arguments.full else 1)
    with tempfile.TemporaryDirectory(dir=os.environ.get("FORESEE_BENCH_DIR", ".")) as folder:
        synthetic(Path(folder) / SYNTHETIC.name, num_samples=num_samples, table_scale=0.03)
        results = {SYNTHETIC.name: compare(SYNTHETIC, Path(folder) / SYNTHETIC.name, arguments)}
        if AVAZU.exists():
            prepare(Avazu(files=(AVAZU,)), Path(folder) / REAL.name)
            results[REAL.name] = compare(REAL, Path(folder) / REAL.name, arguments)
        else:
            print(f"{AVAZU.name} is not in the data folder: no real log; FORESEE_DATA names another folder")
    print(json.dumps(figures(results)))


Turns = dict[str, list[dict[str, Any]]]
"""What each side answered, turn by turn; its last answer is that of the end."""


def compare(case: Case, log: Path, arguments: argparse.Namespace) -> Turns:
    """All sides on one log, in turns."""
    with contextlib.ExitStack() as running:
        options = ["--cache-share", str(arguments.cache_share), "--log", str(log)]
        processes = {
            name: running.enter_context(Process([python, __file__, *options, "--side", name]))
            for name, python in sides_here().items()
        }
        questions = [*["train"] * (case.turns + 1), "end"]
        answers: Turns = {name: [] for name in processes}
        for question in questions:
            for name, process in processes.items():
                answers[name].append(process.ask(question))
    print(f"{case.name}: batches of {case.batch_size}, dim {case.dim}")
    for name, (_, *turns, end) in answers.items():
        speed = statistics.median(turn["samples_per_second"] for turn in turns)
        print(f"  {name:<9} {speed:9,.0f} samples/s   AUC {end['auc']:.5f}   peak {end['peak_mb']:6.0f} MB")
    return answers


def sides_here() -> dict[str, str]:
    """Name and interpreter of every side that can run on this machine."""
    sides = {"ours": sys.executable, "pytorch": sys.executable}
    if BENCH_PYTHON.exists():
        return {**sides, "torchrec": str(BENCH_PYTHON)}
    print("TorchRec is left out: it needs .venv-bench, which `make bench-env` makes")
    return sides


def figures(results: dict[str, Turns]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for log, answers in results.items():
        suffix = "" if log == SYNTHETIC.name else f"_{log}"
        for peer in answers.keys() - {"ours"}:
            pairs = zip(answers["ours"][1:-1], answers[peer][1:-1], strict=True)
            ratios = [ours["samples_per_second"] / other["samples_per_second"] for ours, other in pairs]
            found[f"ours_over_{peer}{suffix}"] = round(statistics.median(ratios), 3)
        for name, turns in answers.items():
            found[f"{name}_peak_mb{suffix}"] = turns[-1]["peak_mb"]
            found[f"{name}_auc{suffix}"] = round(turns[-1]["auc"], 5)
    differences = [abs(turns["ours"][-1]["auc"] - turns["pytorch"][-1]["auc"]) for turns in results.values()]
    return {"auc_difference": round(max(differences), 6), **dict(sorted(found.items()))}


def run_side(arguments: argparse.Namespace) -> None:
    """One side's process."""
    torch.set_num_threads(THREADS)
    warnings.filterwarnings("ignore", message="Sparse invariant checks")  # of torch's own Adagrad
    log, case = ClickLog.open(arguments.log), next(it for it in (SYNTHETIC, REAL) if it.name == arguments.log.name)
    trainer = Trainer(case, log)
    side = SIDES[arguments.side](case, log, trainer, arguments)
    steps = side.steps()
    num_steps = case.steps_per_turn(log)

    def train() -> dict[str, float]:
        begun = time.perf_counter()
        for _ in range(num_steps):
            next(steps)
        return {"samples_per_second": num_steps * case.batch_size / (time.perf_counter() - begun)}

    def end() -> dict[str, float]:
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        steps.close()
        return {"auc": side.auc(), "peak_mb": round(peak_mb, 1)}

    serve({"train": train, "end": end})


class Trainer:
    """The dense side, the same for all, and the batches."""

    def __init__(self, case: Case, log: ClickLog) -> None:
        torch.manual_seed(0)
        self.model = DLRM(log, case.dim)
        self.adam = torch.optim.Adam(self.model.parameters(), fused=True)
        self.loss = nn.BCEWithLogitsLoss()
        self.batches = list(log.batches(batch_size=case.batch_size, epochs=case.epochs).batches())

    def step(self, dense: Tensor, embeddings: Tensor, labels: Tensor) -> None:
        """Forward and backward; the dense part is updated."""
        self.loss(self.model(dense, embeddings), labels).backward()
        self.adam.step()
        self.adam.zero_grad()


def valid_batches(log: ClickLog) -> Iterator[Batch]:
    return log.batches(batch_size=4096, split="valid", shuffle=False, drop_last=False).batches()


def first_rows(case: Case, log: ClickLog) -> Tensor:
    """What all sides start from."""
    layout = layout_for(log, case.dim, SGD(lr=0.0), 0, 0.05)
    return torch.from_numpy(initial_values(layout, np.arange(layout.num_rows)))


class Ours:
    """Foresee, with the loop of its README."""

    def __init__(self, case: Case, log: ClickLog, trainer: Trainer, arguments: argparse.Namespace) -> None:
        self.log, self.trainer = log, trainer
        self.tables = Tables.in_memory(log, dim=case.dim, optimizer=Adagrad(lr=LEARNING_RATE, eps=EPS))
        stream = MemoryStream(trainer.batches, num_rows=log.num_rows)
        header = make_header(stream, planner="lookahead", cache_rows=max(1, int(log.num_rows * arguments.cache_share)))
        self.run = Run(stream, self.tables, header, Pooling.of(log.mean_features), num_threads=THREADS)

    def steps(self) -> Iterator[None]:
        for step in self.run:
            self.trainer.step(step.dense, step.embeddings, step.labels)
            step.update()
            yield

    def auc(self) -> float:
        return known(evaluate(self.trainer.model, self.tables.store, self.log).auc)


class PyTorch:
    """All tables in one nn.EmbeddingBag with sparse gradients, and torch's Adagrad."""

    def __init__(self, case: Case, log: ClickLog, trainer: Trainer, arguments: argparse.Namespace) -> None:
        self.log, self.trainer, self.shape = log, trainer, (-1, log.num_features, case.dim)
        self.bag = nn.EmbeddingBag.from_pretrained(first_rows(case, log), freeze=False, mode="sum", sparse=True)
        self.adagrad = torch.optim.Adagrad(self.bag.parameters(), lr=LEARNING_RATE, eps=EPS)
        self.inputs = [tuple(map(torch.from_numpy, (it.dense, it.rows, it.labels))) for it in trainer.batches]

    def look_up(self, rows: Tensor) -> Tensor:
        pooled: Tensor = self.bag(rows.view(-1, 1)).view(self.shape)
        return pooled

    def steps(self) -> Iterator[None]:
        for dense, rows, labels in self.inputs:
            self.trainer.step(dense, self.look_up(rows), labels)
            self.adagrad.step()
            self.adagrad.zero_grad()
            yield

    def auc(self) -> float:
        batches = valid_batches(self.log)
        return scored(
            self.trainer.model, ((it.dense, self.look_up(torch.from_numpy(it.rows)), it.labels) for it in batches)
        )


class TorchRec:
    """A fused collection of tables in host memory."""

    def __init__(self, case: Case, log: ClickLog, trainer: Trainer, arguments: argparse.Namespace) -> None:
        from torchrec import EmbeddingBagConfig
        from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

        logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)  # a remark on TorchRec's own code
        self.log, self.trainer, self.shape = log, trainer, (-1, log.num_features, case.dim)
        self.names = [feature.name for feature in log.features]
        sizes = {table.name: table.num_rows for table in log.tables}
        self.offsets = np.array([log.table_offsets[feature.table] for feature in log.features])
        tables = [
            EmbeddingBagConfig(
                name=it.table, embedding_dim=case.dim, num_embeddings=it.num_rows, feature_names=[it.name]
            )
            for it in log.features
        ]
        self.bags: Any = FusedEmbeddingBagCollection(
            tables=tables, optimizer_type=torch.optim.Adagrad, optimizer_kwargs={"lr": LEARNING_RATE, "eps": EPS},
            device=torch.device("cpu"),
        )  # fmt: skip
        first = first_rows(case, log)
        with torch.no_grad():
            for name, offset in log.table_offsets.items():
                self.bags.embedding_bags[name].weight.copy_(first[offset : offset + sizes[name]])
        self.inputs = [
            (torch.from_numpy(it.dense), self.lookups(it), torch.from_numpy(it.labels)) for it in trainer.batches
        ]

    def lookups(self, batch: Batch) -> Any:
        """Feature by feature, as TorchRec wants them."""
        from torchrec import KeyedJaggedTensor

        local = batch.rows.reshape(batch.num_samples, -1) - self.offsets
        ids = torch.from_numpy(np.ascontiguousarray(local.T).reshape(-1))
        return KeyedJaggedTensor(keys=self.names, values=ids, lengths=torch.ones(len(ids), dtype=torch.int32))

    def steps(self) -> Iterator[None]:
        for dense, lookups, labels in self.inputs:
            self.trainer.step(dense, self.bags(lookups).values().view(self.shape), labels)
            yield

    def auc(self) -> float:
        inputs = (
            (batch.dense, self.bags(self.lookups(batch)).values().view(self.shape), batch.labels)
            for batch in valid_batches(self.log)
        )
        return scored(self.trainer.model, inputs)


def scored(model: nn.Module, inputs: Iterator[tuple[Any, Tensor, Any]]) -> float:
    """AUC of a split."""
    metrics = MetricsAccumulator()
    with torch.no_grad():
        for dense, embeddings, labels in inputs:
            metrics.add(model(torch.from_numpy(dense), embeddings).numpy(), labels)
    return known(metrics.result().auc)


def known(auc: float | None) -> float:
    assert auc is not None, "the valid split has clicks and others"
    return auc


SIDES: dict[str, Any] = {"ours": Ours, "pytorch": PyTorch, "torchrec": TorchRec}

if __name__ == "__main__":
    main()
