"""The same training by Foresee, by plain PyTorch and by TorchRec, all in memory: samples a second, memory, AUC.

Three cases, all of them DLRMs:
    synthetic   the model of `foresee demo` (dim 16, bottom 64, top 128-64), on a synthetic log of Criteo's shape (26
                tables, 13 numbers), batches of 2048
    large_mlp   the same log with dim 64, bottom 512-256, top 512-256: here most of a step is matrix products, which
                are the same for all, so ratios are nearer to 1
    avazu       the first model on Avazu's real log (21 tables), batches of 512; from $FORESEE_DATA or ../shared/data
Every side is a process of its own, starts from the same values, sees the same batches in the same order, decoded before
the clock starts, and updates rows by Adagrad and the dense part by Adam (fused), on the same number of threads. Sides
train in turns and are stopped in between; figures are medians of the ratios of each turn, the first left out. At the
end each side scores the valid split.

    ours       tables in memory, planner lookahead, planned while training, a cache of --cache-share of the rows
    pytorch    one nn.EmbeddingBag(sparse=True) over all tables, global ids: one lookup, one gradient and one
               torch.optim.Adagrad step a batch, instead of one for each table
    torchrec   FusedEmbeddingBagCollection on one process (FBGEMM updates rows inside backward), its
               KeyedJaggedTensors made before the clock starts; left out if .venv-bench is missing

DeepCTR-Torch and FuxiCTR are left out: the first has no DLRM and needs TensorFlow, the second needs a data pipeline of
its own. Printed last: ours_over_pytorch, ours_over_torchrec (samples a second), auc_difference (largest over all cases,
between ours and pytorch), and peak resident memory and AUC of every side.
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
from dataclasses import dataclass, replace
from itertools import islice
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
    log: str
    batch_size: int = 2048
    dim: int = 16
    bottom: tuple[int, ...] = (64,)
    top: tuple[int, ...] = (128, 64)
    turns: int = 5
    """Besides the first, which is not counted."""
    steps: int
    """Of a turn."""
    epochs: int = 1
    sides: tuple[str, ...] = ("ours", "pytorch", "torchrec")

    @property
    def num_steps(self) -> int:
        return self.steps * (self.turns + 1)


CASES = {
    case.name: case
    for case in (
        Case(name="synthetic", log="synthetic", steps=20),
        Case(name="large_mlp", log="synthetic", dim=64, bottom=(512, 256), top=(512, 256), steps=8, turns=4),
        Case(name="avazu", log="avazu", batch_size=512, steps=16, epochs=2, sides=("ours", "pytorch")),
    )
}
FULL_TURNS = 4
"""Times as many turns with --full."""
MAIN = "synthetic"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="four times as many turns")
    parser.add_argument("--cache-share", type=float, default=0.3, help="of all rows")
    parser.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--case", choices=sorted(CASES), help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        run_side(arguments)
        return
    with tempfile.TemporaryDirectory(dir=os.environ.get("FORESEE_BENCH_DIR", ".")) as folder:
        cases = [case_of(arguments, name) for name in CASES]
        made = {"synthetic": make_synthetic(Path(folder) / "synthetic", cases)}
        logs = {**made, "avazu": make_avazu(Path(folder) / "avazu")}
        results = {case.name: compare(case, log, arguments) for case in cases if (log := logs[case.log]) is not None}
    print(json.dumps(figures(results)))


def case_of(arguments: argparse.Namespace, name: str) -> Case:
    case, times = CASES[name], FULL_TURNS if arguments.full else 1
    return replace(case, turns=case.turns * times, epochs=case.epochs * times if case.epochs > 1 else 1)


def make_synthetic(path: Path, cases: list[Case]) -> Path:
    """As many samples as the longest case trains on, and a tenth of all to score."""
    num_samples = max(case.num_steps * case.batch_size for case in cases if case.log == "synthetic")
    synthetic(path, num_samples=round(num_samples / 0.89), table_scale=0.03)
    return path


def make_avazu(path: Path) -> Path | None:
    if not AVAZU.exists():
        print(f"{AVAZU.name} is not in the data folder: no real log; FORESEE_DATA names another folder")
        return None
    prepare(Avazu(files=(AVAZU,)), path)
    return path


Turns = dict[str, list[dict[str, Any]]]
"""What each side answered, turn by turn; its last answer is that of the end."""


def compare(case: Case, log: Path, arguments: argparse.Namespace) -> Turns:
    """All sides on one log, in turns."""
    with contextlib.ExitStack() as running:
        options = ["--cache-share", str(arguments.cache_share), "--log", str(log), "--case", case.name]
        options += ["--full"] if arguments.full else []
        processes = {
            name: running.enter_context(Process([python, __file__, *options, "--side", name]))
            for name, python in interpreters(case).items()
        }
        questions = [*["train"] * (case.turns + 1), "end"]
        answers: Turns = {name: [] for name in processes}
        for question in questions:
            for name, process in processes.items():
                answers[name].append(process.ask(question))
    print(f"{case.name}: batches of {case.batch_size}, dim {case.dim}, bottom {case.bottom}, top {case.top}")
    for name, (_, *turns, end) in answers.items():
        speed = statistics.median(turn["samples_per_second"] for turn in turns)
        print(f"  {name:<9} {speed:9,.0f} samples/s   AUC {end['auc']:.5f}   peak {end['peak_mb']:6.0f} MB")
    return answers


def interpreters(case: Case) -> dict[str, str]:
    """Of every side of a case that can run on this machine."""
    if BENCH_PYTHON.exists():
        return {name: str(BENCH_PYTHON) if name == "torchrec" else sys.executable for name in case.sides}
    print("TorchRec is left out: it needs .venv-bench, which `make bench-env` makes")
    return {name: sys.executable for name in case.sides if name != "torchrec"}


def figures(results: dict[str, Turns]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case, answers in results.items():
        suffix = "" if case == MAIN else f"_{case}"
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
    log, case = ClickLog.open(arguments.log), case_of(arguments, arguments.case)
    trainer = Trainer(case, log)
    side = SIDES[arguments.side](case, log, trainer, arguments)
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

    serve({"train": train, "end": end})


class Trainer:
    """The dense side, the same for all, and the batches."""

    def __init__(self, case: Case, log: ClickLog) -> None:
        torch.manual_seed(0)
        self.model = DLRM(log, case.dim, bottom=case.bottom, top=case.top)
        self.adam = torch.optim.Adam(self.model.parameters(), fused=True)
        self.loss = nn.BCEWithLogitsLoss()
        stream = log.batches(batch_size=case.batch_size, epochs=case.epochs)
        self.batches = list(islice(stream.batches(), case.num_steps))

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
