"""The parts of a run over a graph, made from its configuration: graph, order, stream, header, tables, model.

In: a `GraphConfig`. Out: each part by itself, so that planning opens no tables and verifying can make two of each. What
a configuration can get wrong about a part is a sentence that names the key. Nothing here trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from foresee.base.arrays import Int32
from foresee.engine.header import make_header
from foresee.engine.optimizers import Optimizer
from foresee.engine.planned_step import planned_records
from foresee.engine.tables import Tables
from foresee.errors import ConfigError, DataError
from foresee.graph.batches import GraphStream, LinkOptions
from foresee.graph.config import GraphConfig, NodeTablesConfig
from foresee.graph.decoders import COMPLEX, DECODERS
from foresee.graph.draws import generator
from foresee.graph.folder import GraphFolder
from foresee.graph.losses import LOSSES
from foresee.graph.model import LinkModel, Objective
from foresee.graph.orders import DEFAULT, ORDERS, Order, Setting, Traversal
from foresee.graph.tuner import Need, tune
from foresee.plan import is_trainable, trainable
from foresee.plan.record import Header
from foresee.run.build import row_optimizer, tables_of
from foresee.run.by_name import find_model, look_in
from foresee.store.contract import Layout, Table

READ_STEPS = 256
"""Of an epoch's first steps: enough to tell whether rows or partitions read less."""
ROW_COST = 1.5
"""A row that is read alone costs as much as so many of a run."""
ORDER_KEY = 0x6F72
"""Draws of orders have a key of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """An order with its numbers, as a run uses it."""

    order: Order
    setting: Setting | None
    """None: everything is in one state."""
    words: str
    """What to expect, for a person."""

    @property
    def identity(self) -> list[Any]:
        """Tells this order from others."""
        setting = self.setting
        if setting is None:
            return [self.order.name]
        return [self.order.name, setting.capacity, setting.logical_partitions, setting.turns, setting.pinned]


def open_graph(config: GraphConfig) -> GraphFolder:
    """The graph in the partitions that the configuration asks for."""
    graph = GraphFolder.open(config.graph)
    partitions = config.order.partitions
    if config.order.memory_bytes is not None:
        partitions = tune(_need(config, graph)).num_partitions
    return graph if partitions is None else graph.partitioned(partitions)


def choose_order(config: GraphConfig, graph: Any) -> Chosen:
    """The order of the configuration, or the tuner's."""
    given, p = config.order, graph.num_partitions
    name, capacity, words = given.name, given.buffer, ""
    if given.memory_bytes is not None:
        advice = tune(_need(config, graph))
        name, capacity, words = name or advice.order, None if advice.in_memory else advice.capacity, str(advice)
    order = ORDERS.find(name or ("random" if capacity is None else DEFAULT.name), "order.name")
    if order.trains != "edges" and config.model.task == "links":
        raise ConfigError(f"order.name: {order.name} is for nodes; choose one for edges, such as ring or comet")
    if capacity is None and (p < 2 or order.name == "random"):
        return Chosen(order=ORDERS["random"], setting=None, words=words or "one state: edges in random order")
    setting = Setting(
        num_partitions=p, capacity=min(p, capacity or p), logical_partitions=given.logical_partitions,
        turns=given.turns,
    )  # fmt: skip
    return Chosen(order=order, setting=setting, words=words)


def _need(config: GraphConfig, graph: Any) -> Need:
    assert config.order.memory_bytes is not None
    layout = table_layout(config, graph)
    copies = 2 if config.model.encoder is not None else 1
    return Need(
        num_nodes=graph.num_nodes, num_edges=graph.num_edges["train"], row_bytes=layout.row_bytes,
        memory_bytes=config.order.memory_bytes, edge_copies=copies,
    )  # fmt: skip


def traversals(chosen: Chosen, graph: Any, seed: int) -> Callable[[int], Traversal]:
    """The traversal of each epoch, which begins with the buffer that the one before left."""
    made: list[Traversal] = []
    setting = chosen.setting or Setting(num_partitions=max(2, graph.num_partitions), capacity=2)

    def traverse(epoch: int) -> Traversal:
        while len(made) <= epoch:
            if chosen.setting is None:
                made.append(_everything(graph.num_partitions))
                continue
            carried = _carried(made[-1], setting) if made and chosen.order.carries else None
            rng = generator(seed, len(made), ORDER_KEY)
            made.append(chosen.order.traverse(replace(setting, carried=carried), rng))
        return made[epoch]

    return traverse


def _carried(before: Traversal, setting: Setting) -> Int32 | None:
    last = before.states[-1]
    return last if len(last) == setting.capacity else None


def _everything(num_partitions: int) -> Traversal:
    every = np.arange(num_partitions, dtype=np.int32)
    return Traversal(num_partitions, (every,), (np.stack(np.meshgrid(every, every, indexing="ij"), -1).reshape(-1, 2),))


def train_stream(config: GraphConfig, graph: Any, chosen: Chosen) -> GraphStream:
    """The batches of all steps."""
    train = config.train
    if not graph.num_edges.get("train"):
        raise DataError(f"{config.graph} has no edges for train; prepare the graph with some")
    options = LinkOptions(
        batch_edges=train.batch_size, epochs=train.epochs, seed=train.seed,
        negatives=config.negatives.options(train.seed, one_state=chosen.setting is None),
    )  # fmt: skip
    return GraphStream(graph, traversals(chosen, graph, train.seed), options, order=chosen.identity)


def cache_rows(config: GraphConfig, graph: Any, chosen: Chosen) -> int:
    """Slots of the cache: as given, those of the buffer, or all."""
    num_nodes = int(graph.num_nodes)
    if config.cache.rows is not None:
        return min(config.cache.rows, num_nodes)
    if config.cache.share is not None:
        return math.ceil(config.cache.share * num_nodes)
    if chosen.setting is None:
        return num_nodes
    return min(num_nodes, chosen.setting.capacity * int(graph.partition_rows))


def plan_header(config: GraphConfig, graph: Any, stream: GraphStream, chosen: Chosen, *, first_step: int = 0) -> Header:
    """What is to be planned, from a step on."""
    cache = config.cache
    if not is_trainable(cache.planner):
        choice = ", ".join(trainable())
        raise ConfigError(f"cache.planner: there is no planner {cache.planner!r}; choose one of {choice}")
    header = make_header(
        stream, planner=cache.planner, cache_rows=cache_rows(config, graph, chosen), first_step=first_step,
        window_steps=cache.window_steps, window_bytes=cache.window_bytes,
    )  # fmt: skip
    partitions = replace(header, options=replace(header.options, partition_rows=int(graph.partition_rows)))
    if config.cache.unit is not None:
        return header if config.cache.unit == "rows" else partitions
    return partitions if _partitions_read_less(stream, header, partitions) else header


def _partitions_read_less(stream: GraphStream, rows: Header, partitions: Header) -> bool:
    """Whether whole partitions cost less on the first steps; where all are in one state they never do."""
    if len(stream.traversal(0).states) == 1 or rows.capacity_rows >= rows.num_rows:
        return False
    num_steps = min(READ_STEPS, rows.num_steps)
    by_rows, by_partitions = (
        sum(len(it.fetch) for it in islice(planned_records(stream, replace(header, num_steps=num_steps)), num_steps))
        for header in (rows, partitions)
    )
    return by_partitions < ROW_COST * by_rows


def table_layout(config: GraphConfig, graph: Any) -> Layout:
    """How the rows of nodes look."""
    tables: NodeTablesConfig = config.tables
    optimizer, dim = row_optimizer(tables.optimizer), config.model.dim
    scale = math.sqrt(6 / (graph.num_nodes + dim)) if tables.init_scale is None else tables.init_scale
    return Layout(
        tables=(Table("nodes", int(graph.num_nodes)),), width=dim, state_width=optimizer.state_width(dim),
        optimizer=optimizer.name, seed=tables.seed, init_scale=scale,
    )  # fmt: skip


def node_tables(config: GraphConfig, graph: Any) -> Tables:
    """The rows of nodes at the last complete commit of the run: opened if they are there, else made."""
    return tables_of(config, table_layout(config, graph))


def optimizer_of(config: GraphConfig) -> Optimizer:
    """How rows learn."""
    return row_optimizer(config.tables.optimizer)


def build_model(config: GraphConfig, graph: Any) -> LinkModel:
    """The model with the weights that the seed gives. Seeds torch's global generator."""
    model = config.model
    torch.manual_seed(config.train.seed)
    if model.folder is not None:
        look_in(model.folder)
    decoder = _decoder(config, graph, model.dim)
    return LinkModel(decoder, objective_of(config))


def objective_of(config: GraphConfig) -> Objective:
    """What an edge costs."""
    model = config.model
    return Objective(
        loss=LOSSES.find(model.loss, "model.loss"), options=model.loss_options, both_sides=model.both_sides,
        n3=model.n3, l2=model.l2, complex_parts=model.decoder in COMPLEX,
    )  # fmt: skip


def _decoder(config: GraphConfig, graph: Any, dim: int) -> nn.Module:
    model = config.model
    kind: Any = find_model(model.decoder) if ":" in model.decoder else DECODERS.find(model.decoder, "model.decoder")
    try:
        decoder: nn.Module = kind(dim, int(graph.num_relations), inverse=model.inverse, **model.decoder_options)
    except TypeError as error:
        raise ConfigError(f"model.decoder_options: {model.decoder} cannot be made with these ({error})") from error
    missing = [name for name in ("query", "compare") if not hasattr(decoder, name)]
    if not isinstance(decoder, nn.Module) or missing:
        lacks = ", ".join(missing) or "being a torch.nn.Module"
        raise ConfigError(f"model.decoder: {model.decoder} lacks {lacks}; docs/graphs.md says what a decoder has")
    return decoder
