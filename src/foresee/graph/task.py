"""`foresee graph train` as a function: a configuration in, embeddings and a model in a run folder out.

The loop, commits, checkpoints, recovery and progress are those of every run (`run.session`); what differs is passed
in: the cost of a step's edges, what counts as a sample, and how the valid split is ranked. Everything that can be found
wrong is found before anything is written. A run that stops, however it stops, goes on with `resume=True` from its last
commit and ends with the same bytes as one that never stopped. One process trains; several do not yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from foresee.engine.cache import BatchesInFlight
from foresee.engine.planned_step import Pooling, too_large
from foresee.engine.run import Run
from foresee.engine.step import Step
from foresee.engine.tables import Tables
from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.graph.evaluation import (
    EncodedVectors,
    NodeMetrics,
    StoredVectors,
    encoded,
    evaluate_links,
    evaluate_nodes,
)
from foresee.graph.examples import sampler_of
from foresee.graph.ranking import LinkMetrics
from foresee.io.units import counted
from foresee.io.urls import shown
from foresee.plan.record import Header
from foresee.run.callbacks import Callback, Evaluation
from foresee.run.dense_state import DenseHalf, keep_rows
from foresee.run.evaluation import judging
from foresee.run.folder import RunFolder
from foresee.run.group import Alone
from foresee.run.loop import Objective
from foresee.run.memory import check_memory, in_words, memory_needed
from foresee.run.progress import Display
from foresee.run.session import Outcome, Parts, carry_out
from foresee.store.contract import Store
from foresee.store.registry import store_kind

LINKS = Objective(loss=lambda costs, step: costs.sum(), num_samples=lambda step: step.item.num_edges,
                  summed=True)  # fmt: skip
"""What each edge costs, summed: so an edge moves its rows as far whatever the size of the batch."""


NODES = Objective(loss=lambda logits, step: cross_entropy(logits, torch.from_numpy(step.item.labels)),
                  num_samples=lambda step: len(step.item.labels))  # fmt: skip
"""The classes of nodes."""


def objective_of(config: GraphConfig) -> Objective:
    """What the loop learns."""
    return LINKS if config.model.task == "links" else NODES


def forward(model: nn.Module, step: Step) -> Tensor:
    """What the model gives for the edges or nodes of a step."""
    out: Tensor = model(step.item, step.embeddings)
    return out


def train(
    config: GraphConfig,
    *,
    resume: bool = False,
    replace: bool = False,
    stop_after: int | None = None,
    console: Console | None = None,
    display: Display | None = None,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Trains to the end of the last epoch, until a signal, or until `stop_after` steps of the run are done.

    Args:
        config: The run, as `load(GraphConfig, path)` reads it.
        resume: Go on from the last commit of the run folder.
        replace: Start anew over a run that is there.
        stop_after: Stop when so many steps of the run are done, counted from its very first.
        console: Where progress goes.
        display: Takes progress instead of the console's own display.
        callbacks: Called after every step, before the commit of that step.

    Returns:
        How it ended.
    """
    return carry_out(
        config, parts_of(config), resume=resume, replace=replace, stop_after=stop_after, console=console,
        display=display, callbacks=callbacks,
    )  # fmt: skip


def parts_of(config: GraphConfig) -> Parts:
    """Everything that the run is made of, checked."""
    graph = build.open_graph(config)
    chosen = build.choose_order(config, graph)
    stream, model = build.train_stream(config, graph, chosen), build.build_model(config, graph)
    half = DenseHalf.of(config, model, stream.steps_of_epoch(0) * config.train.epochs)
    if config.train.staleness_bound > 1:
        half = replace(half, in_flight=BatchesInFlight())
    header, unit = build.header_and_unit(config, graph, stream, chosen)
    memory = memory_needed(
        build.table_layout(config, graph), header, _checked(header, stream), 0,
        kind=store_kind(config.tables.store),
    )  # fmt: skip
    check_memory(memory)
    return Parts(
        digest=graph.digest, half=half, group=Alone(model, forward), objective=objective_of(config),
        open_tables=lambda stored: build.node_tables(config, graph, stored),
        make_run=lambda tables, num_threads: make_run(stream, tables, header, num_threads, half.in_flight),
        evaluation=lambda run: evaluation_of(config, graph, model, run),
        opening=lambda run, first_step: [_opening(config, run, first_step), *filter(None, [chosen.words]), unit,
                                         in_words(memory)],
        keep=lambda run: _keep_rows(config, run),
    )  # fmt: skip


def _keep_rows(config: GraphConfig, run: Run) -> bool:
    """Keep the rows of a store that ends with this process; features are in the graph anyway."""
    if store_kind(config.tables.store).durable or config.model.inputs == "features":
        return False
    keep_rows(run.tables.store, RunFolder(config.run).kept_tables, run.steps_done)
    return True


def _checked(header: Header, stream: Any) -> Any:
    """The first batch, if the cache can hold it."""
    batch, size = stream.batch(0), header.options.partition_rows
    num_distinct = len(np.unique(batch.rows // size)) * size
    if num_distinct // size > header.capacity_rows // size:
        raise too_large(0, num_distinct, header.capacity_rows, stream, partition_rows=size)
    return batch


def make_run(
    stream: Any, tables: Tables, header: Header, num_threads: int, in_flight: BatchesInFlight | None = None
) -> Run:
    """Steps from the tables' last commit on; the caller commits."""
    first_step = tables.store.committed_step
    header = replace(header, first_step=first_step, num_steps=stream.num_steps - first_step)
    return Run(
        stream, tables, header, Pooling.of([False]), num_threads=num_threads, commit_at_end=False,
        in_flight=in_flight or BatchesInFlight(),
    )  # fmt: skip


def evaluation_of(config: GraphConfig, graph: Any, model: Any, run: Run) -> Evaluation | None:
    """Of the valid split's edges or nodes; None if there are none."""
    there = graph.num_split_nodes if config.model.task == "nodes" else graph.num_edges
    if not there.get("valid"):
        return None

    def figures(samples_max: int | None) -> Any:
        return evaluate(config, graph, model, run.tables.store, "valid", samples_max=samples_max)

    return Evaluation(figures, lambda found: found.in_words())


def evaluate(
    config: GraphConfig, graph: Any, model: Any, store: Store, split: str, *, samples_max: int | None = None
) -> LinkMetrics | NodeMetrics:
    """How good a model with these rows is on a split, or on some of it."""
    rows = StoredVectors(store)
    sampler = None if model.encoder is None else sampler_of(graph.neighbours(), build.sampling_to_judge(config))
    if sampler is not None and config.model.task == "nodes":
        with judging(model):
            return evaluate_nodes(
                lambda nodes: encoded(model.encoder, rows, sampler, nodes), graph, split, nodes_max=samples_max
            )
    with judging(model):
        vectors = rows if sampler is None else EncodedVectors(model.encoder, rows, sampler)
    options = config.evaluation.options(
        both_sides=config.model.both_sides, seed=config.train.seed, edges_max=samples_max
    )
    return evaluate_links(model, vectors, graph, split, options)


def _opening(config: GraphConfig, run: Run, first_step: int) -> str:
    header, layout = run.header, run.tables.layout
    where: Any = config.tables_folder if store_kind(config.tables.store).in_folder else config.tables.store
    if config.model.inputs == "features":
        where = shown(config.graph)
    begin = f"from step {first_step:,} on" if first_step else "from the start"
    size = header.options.partition_rows
    unit = "rows" if size == 1 else f"partitions of {size:,} rows"
    model = config.model
    what = " and ".join(filter(None, [model.encoder, model.decoder if model.task == "links" else None]))
    return (
        f"{what} on {shown(config.graph)}: {counted(run.stream.num_steps, 'step')} of up to "
        f"{config.train.batch_size:,} {'edges' if model.task == 'links' else 'nodes'}, {begin}\n"
        f"{layout.num_rows:,} nodes of {layout.row_bytes} bytes in {where}; cache of {header.capacity_rows:,} rows "
        f"({header.capacity_rows / layout.num_rows:.1%}), planner {header.planner}, moving {unit}"
    )
