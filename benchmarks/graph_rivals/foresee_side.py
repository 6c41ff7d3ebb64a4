"""Foresee as `foresee graph train` runs, tables in memory: batches drawn, planned and trained inside the clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from foresee.engine.loop import Run
from foresee.engine.planned_step import Pooling
from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.graph.training import LINKS, forward
from foresee.run.callbacks import StepResult
from foresee.run.dense_half import DenseHalf
from foresee.run.group import Alone
from foresee.run.loop import train_steps
from foresee.run.run_file import make
from graph_rivals.work import LEARNING_RATE, Edges, Work


class Side:
    def __init__(self, graph: Path, edges: Edges, work: Work) -> None:
        content = {
            "graph": str(graph), "run": "nowhere", "model": {"decoder": "distmult", "dim": work.dim},
            "negatives": {"num_chunks": work.num_chunks, "num_nodes": work.num_negatives},
            "tables": {"store": "memory", "optimizer": {"name": "adagrad", "lr": LEARNING_RATE}},
            "train": {
                "epochs": 1, "batch_size": work.batch_size, "num_threads": work.threads,
                "optimizer": {"name": "Adagrad", "lr": LEARNING_RATE},
            },
        }  # fmt: skip
        self._config = make(GraphConfig, content, where="this benchmark")
        self._folder, self._threads = build.open_graph(self._config), work.threads
        self._model = build.build_model(self._config, self._folder)

    def train(self, num_steps: int) -> float:
        config, folder = self._config, self._folder
        chosen = build.choose_order(config, folder)
        stream = build.train_stream(config, folder, chosen)
        half = DenseHalf.of(config, self._model, stream.num_steps)
        header = replace(build.plan_header(config, folder, stream, chosen), num_steps=num_steps)
        losses = _Losses()
        with build.new_tables(config, folder, Path("nowhere")) as tables:
            run = Run(stream, tables, header, Pooling.of([False]), num_threads=self._threads)
            train_steps(
                run, half.optimizer, Alone(self._model, forward), [losses], stop_after=num_steps, objective=LINKS
            )  # fmt: skip
        return sum(losses.of_steps) / len(losses.of_steps) / 2


class _Losses:
    def __init__(self) -> None:
        self.of_steps: list[float] = []

    def after(self, done: StepResult) -> None:
        self.of_steps.append(done.loss)
