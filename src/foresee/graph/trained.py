"""A trained run over a graph, opened for reading: its graph, model, rows, and vectors of any nodes.

In: a run folder. Out: `Trained`, as of the run's last commit or its best evaluation. Nothing of the run is written, and
it may be training at this moment. With an encoder, vectors of nodes are made once, block by block, when they are first
asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch

from foresee.errors import ConfigError, DataError, StoreError
from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.graph.evaluation import EncodedVectors, StoredVectors, Vectors
from foresee.graph.examples import sampler_of
from foresee.graph.folder import GraphFolder
from foresee.graph.task import evaluate
from foresee.io.urls import Place, shown
from foresee.run import checkpoint
from foresee.run.backup_shards import brought_run
from foresee.run.config_file import load
from foresee.run.dense_state import open_best
from foresee.run.evaluation import judging
from foresee.run.folder import CONFIG_FILE, RunFolder
from foresee.store.contract import Store
from foresee.store.layout import Layout
from foresee.store.registry import DISK, store_kind


def run_config(run: Path) -> GraphConfig:
    """The configuration that a run folder was started with."""
    if not (run / CONFIG_FILE).is_file():
        raise ConfigError(f"{run} holds no run ({CONFIG_FILE} is missing); start one with `foresee graph train`")
    return load(GraphConfig, run / CONFIG_FILE)


def brought_graph_run(run: Place, *, tables: bool = True) -> Path:
    """The folder of a run; one at a URL is brought here. Without `tables`, rows and weights may be missing."""

    def described(folder: Path) -> tuple[GraphConfig, Layout]:
        config = run_config(folder)
        return config, build.table_layout(config, build.open_graph(config))

    return brought_run(run, tables=tables, described=described)


@dataclass
class Trained:
    """What a run has learned."""

    config: GraphConfig
    graph: GraphFolder
    model: Any
    store: Store
    step: int
    _names: dict[str, int] = field(default_factory=dict)

    @cached_property
    def vectors(self) -> Vectors:
        """Of nodes: the rows themselves, or what the encoder makes of them."""
        rows = StoredVectors(self.store)
        if self.model.encoder is None:
            return rows
        with judging(self.model):
            sampler = sampler_of(self.graph.neighbours(), build.sampling_to_judge(self.config))
            return EncodedVectors(self.model.encoder, rows, sampler)

    def evaluate(self, split: str, *, samples_max: int | None = None) -> Any:
        """The figures of a split."""
        return evaluate(self.config, self.graph, self.model, self.store, split, samples_max=samples_max)

    def node(self, name: str) -> int:
        """The number of a node, by its name."""
        return _position(self.graph.node_names(), name, "node", shown(self.config.graph))

    def relation(self, name: str) -> int:
        """The number of a relation, by its name."""
        if not self.graph.num_relations:
            raise DataError(f"{shown(self.config.graph)} has no relations; leave --relation out")
        return _position(self.graph.relation_names(), name, "relation", shown(self.config.graph))

    def names_of(self, nodes: Any) -> list[str]:
        """The names of some nodes."""
        return [str(name) for name in self.graph.node_names().take(nodes).to_pylist()]


def _position(names: Any, name: str, what: str, where: str) -> int:
    try:
        wanted = names.type.to_pandas_dtype()(name) if not _is_text(names) else name
        place = int(pc.index(names, wanted).as_py())
    except (ValueError, TypeError):
        place = -1
    if place < 0:
        first = ", ".join(str(it) for it in names.slice(0, 3).to_pylist())
        raise DataError(f"{where} has no {what} {name!r}; its first ones are {first}")
    return place


def _is_text(names: Any) -> bool:
    return "string" in str(names.type)


@contextmanager
def open_trained(run: Path, *, best: bool = False) -> Iterator[Trained]:
    """A run that has kept something, as of its last commit or its best evaluation."""
    config, folder = run_config(run), RunFolder(run)
    graph = build.open_graph(config)
    model: torch.nn.Module = build.build_model(config, graph)
    checkpoints = folder.best_checkpoints if best else folder.checkpoints
    store = _store(config, graph, folder, best=best)
    try:
        if store.committed_step:
            checkpoint.load_weights(checkpoints, store.committed_step, model)
        yield Trained(config, graph, model, store, store.committed_step)
    finally:
        store.close()


def _store(config: GraphConfig, graph: Any, folder: RunFolder, *, best: bool) -> Any:
    layout, features = build.table_layout(config, graph), config.model.inputs == "features"
    if best:
        kept = open_best(folder, layout)
        if not features:
            return kept
        with closing(kept):
            return build.feature_store(config, graph, kept.committed_step)
    if features:
        return build.feature_store(config, graph, max(checkpoint.whole_steps(folder.checkpoints), default=0))
    kind, tables = store_kind(config.tables.store), config.tables_folder
    if not kind.durable:
        kind, tables = DISK, folder.kept_tables
        if not kind.holds(tables):
            raise StoreError(
                f"{config.run} has no rows: a run with rows in memory writes them when it ends, and this one has not "
                "ended or was killed; train it to an end, or with tables.store: disk"
            )
    if not kind.holds(tables):
        where = tables if kind.in_folder else config.tables.store
        raise StoreError(f"{where} holds no tables yet; train first")
    store = (kind.open_reader or kind.open)(tables, layout)
    try:
        checkpoint.open_newest(store, folder.checkpoints)
    except BaseException:
        store.close()
        raise
    return store


def blocks(num_nodes: int, nodes_at_once: int) -> Iterator[Any]:
    """All nodes, some at a time."""
    for begin in range(0, num_nodes, nodes_at_once):
        yield np.arange(begin, min(begin + nodes_at_once, num_nodes))
