"""The parts of a run, made from its configuration: log, stream, cache size, tables, model.

In: a `RunConfig`. Out: each part by itself, so that planning opens no tables and verifying can make two of each. What a
configuration can get wrong about a part is a ConfigError that names the key. Nothing here trains or decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from foresee.data.batch import Batch
from foresee.data.click_log import ClickLog
from foresee.data.stream import LogStream
from foresee.engine.header import groups_for, make_header
from foresee.engine.next_uses import USES_AHEAD_STEPS
from foresee.engine.optimizers import Optimizer, Schedule, make_optimizer
from foresee.engine.optimizers.contract import Rate
from foresee.engine.planned_step import planned_records, too_large
from foresee.engine.run import Run
from foresee.engine.tables import Tables, dims_of, layout_for
from foresee.errors import ConfigError, PlanError
from foresee.io.urls import brought
from foresee.plan import is_trainable, trainable
from foresee.plan.format.folder import MANIFEST, SavedPlan, open_plan
from foresee.plan.record import Header, Record
from foresee.run import checkpoint
from foresee.run.backup import RunStorage
from foresee.run.by_name import build, look_in, model_dim, row_width
from foresee.run.config import AnyRun, RowOptimizerConfig, RowScheduleConfig, RunConfig
from foresee.run.folder import RunFolder
from foresee.run.kept_plan import KeptPlan
from foresee.run.tasks import tasks_of
from foresee.store.layout import Layout
from foresee.store.registry import store_kind
from foresee.store.shard_folders import open_store


def open_log(config: RunConfig) -> ClickLog:
    return ClickLog.open(config.log)


def train_stream(config: RunConfig, log: ClickLog) -> LogStream:
    """The batches of all steps."""
    train = config.train
    return log.batches(
        batch_size=train.batch_size, seed=train.seed, epochs=train.epochs, shuffle_samples=train.shuffle_samples
    )


def cache_rows(config: RunConfig, log: ClickLog) -> int:
    """Slots of the cache; never more than there are rows, which no planner could use."""
    if config.cache.rows is not None:
        return min(config.cache.rows, log.num_rows)
    assert config.cache.share is not None, "the configuration has one of the two"
    return math.ceil(config.cache.share * log.num_rows)


def plan_header(
    config: RunConfig, log: ClickLog, stream: LogStream, *, first_step: int = 0, planned_from: int | None = None
) -> Header:
    """What is to be planned, from a step on; `planned_from`: of a plan that began there."""
    planner, workers = config.cache.planner, config.distributed.workers
    if not is_trainable(planner):
        raise ConfigError(f"cache.planner: there is no planner {planner!r}; choose one of {', '.join(trainable())}")
    if config.train.batch_size < workers:
        raise ConfigError(
            f"train.batch_size: {workers} workers cannot share {config.train.batch_size} samples; "
            f"choose at least {workers}, or fewer workers"
        )
    return make_header(
        stream,
        planner=planner,
        cache_rows=cache_rows(config, log),
        first_step=first_step,
        window_steps=config.cache.window_steps,
        window_bytes=config.cache.window_bytes,
        num_workers=workers,
        placement=config.distributed.placement if workers > 1 else None,
        placement_positions=_placement_positions(config, log) if workers > 1 else None,
        planned_from=planned_from,
        uses_ahead_steps=_uses_ahead_steps(config),
        groups=groups_for(table_layout(config, log), stream),
    )


def _uses_ahead_steps(config: RunConfig) -> int | None:
    """How far ahead next uses are looked for: by default only for a store that makes something of it."""
    if config.cache.uses_ahead_steps is not None:
        return config.cache.uses_ahead_steps
    return USES_AHEAD_STEPS if store_kind(config.tables.store).takes_next_use else None


def _placement_positions(config: RunConfig, log: ClickLog) -> tuple[int, ...] | None:
    """The features that placement looks at, as positions of lookups in a sample."""
    chosen, names = config.distributed.placement_features, [feature.name for feature in log.features]
    if chosen is None:
        return None
    if config.distributed.placement != "location_aware" or log.multi_valued:
        raise ConfigError(
            "distributed.placement_features: only location_aware chooses features, and only in a log with one id a "
            "feature; leave the key out"
        )
    unknown = [name for name in chosen if name not in names]
    if unknown or not chosen:
        raise ConfigError(
            f"distributed.placement_features: {config.log} has no feature {unknown[0] if unknown else ''!r}; choose "
            f"from {', '.join(names)}"
        )
    return tuple(sorted({names.index(name) for name in chosen}))


def saved_plan(config: RunConfig, stream: LogStream) -> SavedPlan | None:
    """The plan file of the configuration, if it names one; refuses the plan of another stream, or of a part of it."""
    if config.cache.plan_file is None:
        return None
    plan = open_plan(brought(config.cache.plan_file, "plans", marker=MANIFEST))
    if plan.header.stream_digest != stream.digest:
        raise PlanError(
            f"{plan.path} was made for another log, seed, batch size or number of epochs than this run has; "
            "plan this run again, or leave cache.plan_file out"
        )
    first, num_steps = plan.header.first_step, plan.header.num_steps
    if (first, num_steps) != (0, stream.num_steps):
        part = f"{num_steps}" if first == 0 else f"{num_steps} (from step {first} on)"
        raise PlanError(f"{plan.path} covers {part} of the run's {stream.num_steps} steps; plan the whole run")
    return plan


def check_alone(saved: SavedPlan, header: Header) -> None:
    """Refuse a saved plan that one process cannot train with.

    The plan may have another planner, cache and window than the run; in everything else its header has to be `header`,
    the one that the run itself would be planned with.
    """
    theirs = saved.header
    if theirs.num_workers > 1:
        raise PlanError(
            f"{saved.path} is a plan for {theirs.num_workers} workers; train with --workers {theirs.num_workers}, plan "
            "this run again, or leave cache.plan_file out"
        )
    if not is_trainable(theirs.planner):
        raise PlanError(
            f"{saved.path} was planned by {theirs.planner!r}, which is no planner that trains; plan this run again"
        )
    chosen = ("window_steps", "window_bytes", "window_first_bytes", "remember_versions", "uses_ahead_steps")
    options = replace(header.options, **{name: getattr(theirs.options, name) for name in chosen})
    groups = [group.tables for group in header.groups] == [group.tables for group in theirs.groups]
    expected = replace(
        header, planner=theirs.planner, options=options, capacity_rows=theirs.capacity_rows,
        fetch_ahead_steps=theirs.fetch_ahead_steps,
        groups=theirs.groups if groups else header.groups,
    )  # fmt: skip
    check_same_plan(saved, expected)


def check_same_plan(saved: SavedPlan, header: Header) -> None:
    """Refuse a saved plan that was made with other settings than this header has."""
    theirs, ours = saved.header.to_dict(), header.to_dict()
    theirs |= theirs.pop("parameters")
    ours |= ours.pop("parameters")
    for name in ours | theirs:
        if name != "format_version" and theirs.get(name) != ours.get(name):
            raise PlanError(
                f"{saved.path} was planned with {name} {theirs.get(name)}, this run has {ours.get(name)}; plan this "
                "run again, or leave cache.plan_file out"
            )


def records_of(kept: KeptPlan | None, stream: LogStream, header: Header) -> Iterator[Record]:
    """The records of all workers: of the saved plan, where the header begins with it, or planned as the stream is read.

    A run in the middle is planned: its caches have to be filled, and a saved plan began with empty ones.
    """
    if kept is not None and kept.header.first_step == header.first_step:
        return kept.records(stream)
    return planned_records(stream, header)


def make_run(
    config: RunConfig, log: ClickLog, stream: LogStream, tables: Tables, header: Header, kept: KeptPlan | None = None,
    *, num_threads: int = 1,
) -> Run:  # fmt: skip
    """Steps from the tables' last commit on, as the saved plan has them or planned as they go.

    A saved plan begins with an empty cache at its first step, so a run in the middle is planned as it goes, by the same
    planner in as many slots. The caller commits: rows belong together with the dense half.
    """
    first_step, records = tables.store.committed_step, None
    if kept is not None and kept.header.first_step == first_step:
        records = kept.records(stream)
    else:
        header = replace(header, first_step=first_step, num_steps=stream.num_steps - first_step)
    return Run(
        stream, tables, header, log.pooling, records=records, device=training_device(config),
        num_threads=num_threads, commit_at_end=False, scratch=config.run if config.run.is_dir() else None,
    )  # fmt: skip


def check_batch_fits(header: Header, batch: Batch, stream: LogStream) -> None:
    """Refuses a cache too small for this batch, before anything is made. Planning would, but later."""
    num_distinct = len(np.unique(batch.rows))
    if num_distinct > header.capacity_rows:
        raise too_large(batch.step, num_distinct, header.capacity_rows, stream)


def row_optimizer(config: RowOptimizerConfig) -> Optimizer:
    """How rows learn."""
    rate: Rate = config.lr
    if config.schedule != RowScheduleConfig():
        rate = Schedule(lr=config.lr, **config.schedule.model_dump())
    return make_optimizer(config.name, {"lr": rate, **config.numbers}, "tables.optimizer")


def table_layout(config: RunConfig, log: ClickLog) -> Layout:
    """How the rows of this run look."""
    tables = config.tables
    _look_beside_run_file(config)
    dims = table_dims(config, log)
    widths = {name: row_width(config.model.name, dim) for name, dim in dims.items()}
    return layout_for(
        log, widths, row_optimizer(tables.optimizer), tables.seed, tables.init_scale, tables.dtype, tables.rounding
    )


def table_dims(config: RunConfig, log: ClickLog) -> dict[str, int]:
    """The width of the embeddings of each table."""
    names = [table.name for table in log.tables]
    return dict(zip(names, dims_of(names, config.model.dim, "model.dim"), strict=True))


def open_tables(config: RunConfig, log: ClickLog, stored: RunStorage | None = None) -> Tables:
    """The tables of this run at its last complete commit: opened if they are there, else made."""
    return tables_of(config, table_layout(config, log), stored)


def tables_of(config: AnyRun, layout: Layout, stored: RunStorage | None = None) -> Tables:
    """The same, of any kind of run, with rows of this layout. `stored`: its commits are copied there."""
    kind, optimizer = store_kind(config.tables.store), row_optimizer(config.tables.optimizer)
    if stored is not None:
        kind = stored.copied(kind, config.tables_folder)
    if kind.open_newest is not None:
        commits = checkpoint.whole_steps(RunFolder(config.run).checkpoints)
        return Tables(kind.open_newest(layout, commits), optimizer)
    store = open_store(config.tables_folder, layout, kind)
    if not kind.durable:
        return Tables(store, optimizer)
    try:
        checkpoint.open_newest(store, RunFolder(config.run).checkpoints, stored.steps if stored is not None else ())
    except BaseException:
        store.close()
        raise
    return Tables(store, optimizer)


def build_model(config: RunConfig, log: ClickLog) -> nn.Module:
    """The model with the weights that the seed gives, on its device. Seeds torch's global generator."""
    device = training_device(config)
    torch.manual_seed(config.train.seed)
    _look_beside_run_file(config)
    dims, num_outputs = table_dims(config, log), tasks_of(config.tasks, log).num_outputs
    dim = model_dim([dims[feature.table] for feature in log.features])
    return build(config.model.name, log, dim, num_outputs, **config.model.options).to(device)


def _look_beside_run_file(config: RunConfig) -> None:
    if config.model.folder is not None:
        look_in(config.model.folder)


def training_device(config: RunConfig) -> torch.device:
    """The device, if this machine has it."""
    name = config.train.device
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ConfigError(f"train.device: this machine has no {name!r}; use cpu, or a device torch finds") from None
    return device
