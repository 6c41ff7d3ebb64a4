"""Foresee as `foresee graph train` runs, tables in memory: batches drawn, planned and trained inside the clock.

One run goes through all turns, as peers keep their tables. Its planner has a thread of its own, as in every run, which
a second core carries if there is one; `--cores 1` of the benchmark leaves it none.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from foresee.engine.planned_step import Pooling
from foresee.engine.run import Run
from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.graph.task import LINKS, forward
from foresee.run.config_file import make
from foresee.run.dense_state import DenseHalf
from graph_rivals.work import LEARNING_RATE, Edges, Work

EPOCHS = 40
"""More than all turns train."""


class Side:
    def __init__(self, graph: Path, edges: Edges, work: Work) -> None:
        content = {
            "graph": str(graph), "run": "nowhere", "model": {"decoder": "distmult", "dim": work.dim},
            "negatives": {"num_chunks": work.num_chunks, "num_nodes": work.num_negatives},
            "tables": {"store": "memory", "optimizer": {"name": "adagrad", "lr": LEARNING_RATE}},
            "train": {
                "epochs": EPOCHS, "batch_size": work.batch_size, "num_threads": work.threads,
                "optimizer": {"name": "Adagrad", "lr": LEARNING_RATE},
            },
        }  # fmt: skip
        config = make(GraphConfig, content, where="this benchmark")
        folder = build.open_graph(config)
        chosen = build.choose_order(config, folder)
        stream, self._model = build.train_stream(config, folder, chosen), build.build_model(config, folder)
        self._optimizer = DenseHalf.of(config, self._model, stream.num_steps).optimizer
        header = build.plan_header(config, folder, stream, chosen)
        self._opened = ExitStack()
        tables = self._opened.enter_context(build.new_tables(config, folder, Path("nowhere")))
        self._steps = iter(Run(stream, tables, header, Pooling.of([False]), num_threads=work.threads))
        self._work = work

    def train(self, num_steps: int) -> float:
        total = 0.0
        for _ in range(num_steps):
            step = next(self._steps)
            loss = LINKS.loss(forward(self._model, step), step)
            total += loss.item() / LINKS.num_samples(step) / 2
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            self._optimizer.zero_grad()
            step.update()
        return total / num_steps
