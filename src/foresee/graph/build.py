"""The parts of a run over a graph, made from its configuration: graph, order, stream, header, tables, model.

In: a `GraphConfig`. Out: each part by itself, so that planning opens no tables and verifying can make two of each. What
a configuration can get wrong about a part is a sentence that names the key. Nothing here trains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foresee.arrays import Int32
from foresee.engine.header import make_header
from foresee.engine.tables import Tables
from foresee.errors import ConfigError, DataError
from foresee.graph.batches import GraphStream, whole_graph
from foresee.graph.config import GraphConfig, NodeTablesConfig
from foresee.graph.decoders import COMPLEX, DECODERS
from foresee.graph.draws import generator
from foresee.graph.encoders import ENCODERS
from foresee.graph.examples import (
    LinkBatches,
    Neighbourhoods,
    NodeBatches,
    SamplingOptions,
    edges_to_train,
    nodes_to_train,
)
from foresee.graph.features import NO_OPTIMIZER, FeatureStore, feature_layout
from foresee.graph.folder import GraphFolder
from foresee.graph.model import LOSSES, LinkModel, NodeModel, Objective
from foresee.graph.orders import DEFAULT, ORDERS, Order, Setting, Traversal
from foresee.graph.transfer import measured, unit_of
from foresee.graph.tuner import Need, tune
from foresee.io.urls import shown
from foresee.plan import is_trainable, trainable
from foresee.plan.record import Header
from foresee.run import checkpoint
from foresee.run.backup import RunStorage
from foresee.run.build import row_optimizer, tables_of
from foresee.run.by_name import find_model, look_in
from foresee.run.folder import RunFolder
from foresee.store.halves import rounding_for
from foresee.store.layout import Layout, Table
from foresee.store.registry import store_kind
from foresee.store.remote.named import addresses_of, local_servers

SAMPLES_AHEAD_STEPS = 64
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
    default = DEFAULT.name if config.model.task == "links" else "dispersed"
    order = ORDERS.find(name or ("random" if capacity is None else default), "order.name")
    wanted = {"links": "edges", "nodes": "nodes"}[config.model.task]
    if order.trains != wanted and order.name != "random":
        fitting = ", ".join(sorted(it for it in ORDERS if ORDERS[it].trains == wanted))
        raise ConfigError(f"order.name: {order.name} is for {order.trains}; for {wanted} choose one of {fitting}")
    if capacity is None and (p < 2 or order.name == "random"):
        return Chosen(order=ORDERS["random"], setting=None, words=words or "one state: edges in random order")
    setting = Setting(
        num_partitions=p, capacity=min(p, capacity or p), logical_partitions=given.logical_partitions,
        turns=given.turns, pinned=_pinned(config, graph) if order.name == "sequential" else 0,
    )  # fmt: skip
    return Chosen(order=order, setting=setting, words=words)


def _pinned(config: GraphConfig, graph: Any) -> int:
    """Partitions that have the training nodes, if these come first."""
    if not graph.train_nodes_first:
        raise ConfigError(
            f"order.name: sequential needs the training nodes first, and {shown(config.graph)} has them anywhere; "
            "prepare it with --train-nodes-first, or choose dispersed"
        )
    return int(graph.nodes("train").max()) // int(graph.partition_rows) + 1


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
                made.append(whole_graph(graph.num_partitions))
                continue
            carried = _carried(made[-1], setting) if made and chosen.order.carries else None
            rng = generator(seed, len(made), ORDER_KEY)
            made.append(chosen.order.traverse(replace(setting, carried=carried), rng))
        return made[epoch]

    return traverse


def _carried(before: Traversal, setting: Setting) -> Int32 | None:
    last = before.states[-1]
    return last if len(last) == setting.capacity else None


def train_stream(config: GraphConfig, graph: Any, chosen: Chosen) -> GraphStream:
    """The batches of all steps."""
    train, nodes = config.train, config.model.task == "nodes"
    if not graph.num_edges.get("train"):
        raise DataError(f"{shown(config.graph)} has no edges for train; prepare the graph with some")
    examples = nodes_to_train(graph) if nodes else edges_to_train(graph)
    near = Neighbourhoods(graph, sampling_of(config)) if config.model.encoder is not None else None
    negatives = config.negatives.options(train.seed, one_state=chosen.setting is None)
    return GraphStream(
        graph, examples, traversals(chosen, graph, train.seed),
        NodeBatches(graph, near) if nodes and near is not None else LinkBatches(graph, negatives, near),
        batch_size=train.batch_size, epochs=train.epochs, seed=train.seed, order=chosen.identity,
    )  # fmt: skip


def sampling_of(config: GraphConfig) -> SamplingOptions:
    """Which neighbours an encoder sees."""
    model = config.model
    return SamplingOptions(
        fanouts=tuple(model.fanouts), direction=model.direction, inside_buffer=model.neighbours == "buffer",
        seed=config.train.seed,
    )  # fmt: skip


def sampling_to_judge(config: GraphConfig) -> SamplingOptions:
    """Which neighbours an encoder sees when nothing is learned."""
    sampling, fanouts = sampling_of(config), config.evaluation.fanouts
    return sampling if fanouts is None else replace(sampling, fanouts=tuple(fanouts))


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
    return header_and_unit(config, graph, stream, chosen, first_step=first_step)[0]


def header_and_unit(
    config: GraphConfig, graph: Any, stream: GraphStream, chosen: Chosen, *, first_step: int = 0
) -> tuple[Header, str]:
    """The same, and a sentence that says what moves, and why."""
    cache = config.cache
    if not is_trainable(cache.planner):
        choice = ", ".join(trainable())
        raise ConfigError(f"cache.planner: there is no planner {cache.planner!r}; choose one of {choice}")
    header = make_header(
        stream, planner=cache.planner, cache_rows=cache_rows(config, graph, chosen), first_step=first_step,
        window_steps=cache.window_steps, window_bytes=cache.window_bytes, read_only=config.model.inputs == "features",
    )  # fmt: skip
    if not header.options.read_only:
        header = replace(header, options=replace(header.options, staleness=config.train.staleness_bound - 1))
    if config.model.encoder is not None:  # samples wait in memory beside their rows
        header = replace(header, options=replace(header.options, read_ahead_steps=SAMPLES_AHEAD_STEPS))
    # Four bytes a node: a row that is not what it was left as is a sentence then, not another result.
    partitions = replace(
        header, options=replace(header.options, partition_rows=int(graph.partition_rows), remember_versions=True)
    )
    if config.cache.unit is not None:
        return (
            header if config.cache.unit == "rows" else partitions
        ), f"moving {config.cache.unit}, as cache.unit says"
    kind, layout = store_kind(config.tables.store), table_layout(config, graph)
    if config.model.inputs == "features":  # mapped from the disk, whatever the store of embeddings
        kind = store_kind("memory")
    return unit_of(stream, header, partitions, lambda: measured(kind, layout, config.tables_folder))


def table_layout(config: GraphConfig, graph: Any) -> Layout:
    """How the rows of nodes look."""
    if config.model.inputs == "features":
        return feature_layout(_features(config, graph))
    tables: NodeTablesConfig = config.tables
    optimizer, dim = row_optimizer(tables.optimizer), config.model.dim
    scale = math.sqrt(6 / (graph.num_nodes + dim)) if tables.init_scale is None else tables.init_scale
    return Layout(
        tables=(Table("nodes", int(graph.num_nodes)),), width=dim, state_width=optimizer.state_width(dim),
        optimizer=optimizer.name, seed=tables.seed, init_scale=scale, dtype=tables.dtype,
        rounding=rounding_for(tables.dtype, tables.rounding),
    )  # fmt: skip


def node_tables(config: GraphConfig, graph: Any, stored: RunStorage | None = None) -> Tables:
    """The rows of nodes at the last complete commit of the run: opened if they are there, else made."""
    if config.model.inputs == "features":
        if stored is not None:
            raise ConfigError("storage: a run with model.inputs: features has no rows to copy; leave storage out")
        steps = checkpoint.whole_steps(RunFolder(config.run).checkpoints)
        return Tables(feature_store(config, graph, max(steps, default=0)), NO_OPTIMIZER)
    return tables_of(config, table_layout(config, graph), stored)


@contextmanager
def new_tables(config: GraphConfig, graph: Any, folder: Path) -> Iterator[Tables]:
    """The rows of nodes as they begin, made in a folder of their own, or on as many servers of this process."""
    if config.model.inputs == "features":
        yield Tables(feature_store(config, graph), NO_OPTIMIZER)
        return
    kind, layout = store_kind(config.tables.store), table_layout(config, graph)
    with ExitStack() as stack:
        if kind.open_newest is not None:
            num_servers = len(addresses_of(config.tables.store))
            kind = store_kind(stack.enter_context(local_servers(layout, num_servers)))
        yield stack.enter_context(Tables(kind.open(folder, layout), row_optimizer(config.tables.optimizer)))


def feature_store(config: GraphConfig, graph: Any, committed_step: int = 0) -> FeatureStore:
    """The features of the graph as rows, at a step of the run."""
    return FeatureStore(_features(config, graph), committed_step)


def _features(config: GraphConfig, graph: Any) -> Any:
    features = graph.features()
    if features is None:
        where = shown(config.graph)
        raise ConfigError(f"model.inputs: {where} has no features; use embeddings, or prepare it with features")
    return features


def build_model(config: GraphConfig, graph: Any) -> LinkModel | NodeModel:
    """The model with the weights that the seed gives. Seeds torch's global generator."""
    model = config.model
    torch.manual_seed(config.train.seed)
    if model.folder is not None:
        look_in(model.folder)
    if model.task == "nodes":
        if not graph.num_classes:
            raise ConfigError(
                f"model.task: {shown(config.graph)} has no classes of nodes; prepare it with labels, or train links"
            )
        return NodeModel(_encoder(config, graph, int(graph.num_classes)))
    encoder = None if model.encoder is None else _encoder(config, graph, model.dim)
    return LinkModel(_decoder(config, graph, model.dim), objective_of(config), encoder)


def _encoder(config: GraphConfig, graph: Any, out_width: int) -> nn.Module:
    model, key = config.model, "model.encoder"
    name = str(model.encoder)
    kind: Any = find_model(name) if ":" in name else ENCODERS.find(name, key)
    width = table_layout(config, graph).width
    try:
        encoder: nn.Module = kind(width, out_width, len(model.fanouts), **model.encoder_options)
    except TypeError as error:
        raise ConfigError(f"{key}_options: {name} cannot be made with these ({error})") from error
    if not isinstance(encoder, nn.Module):
        raise ConfigError(f"{key}: {name} gives a {type(encoder).__name__}; it must give a torch.nn.Module")
    return encoder


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
