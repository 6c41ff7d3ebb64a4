"""Foresee: train models whose embedding tables outgrow memory. Plan every access first, then carry the plan out.

    import foresee

    log    = foresee.ClickLog.open("data/criteo")
    tables = foresee.Tables.on_disk("tables", log, dim=64, optimizer=foresee.RowwiseAdagrad(lr=0.05))
    model  = foresee.models.DLRM(log, dim=64)

    for step in foresee.lookahead(log, tables, batch_size=2048, cache_rows=500_000):
        loss = bce(model(step.dense, step.embeddings), step.labels)
        ...
        step.update()

Names are imported when they are first used: torch takes seconds, and `foresee --help` needs none of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from foresee import moved
from foresee.errors import ForeseeError

if TYPE_CHECKING:
    from foresee import models
    from foresee.data import ClickLog
    from foresee.data.batches import Batches
    from foresee.data.source import Source
    from foresee.engine.optimizers import (
        SGD,
        Adagrad,
        LazyAdam,
        Optimizer,
        RowwiseAdagrad,
        Schedule,
        register_optimizer,
    )
    from foresee.engine.run import Run
    from foresee.engine.step import Step
    from foresee.engine.tables import Tables
    from foresee.plan.record import Planner
    from foresee.run import checkpoint
    from foresee.run.bags import EmbeddingBagConfig, EmbeddingBags
    from foresee.run.serving.exported import load_exported
    from foresee.run.steps import lookahead, steps
    from foresee.run.stop import Stop
    from foresee.run.worker_group import Trainers
    from foresee.store.contract import Store
    from foresee.store.registry import StoreKind, register_store
    from foresee.tools.forecast import fetches_by_cache

moved.install()

__version__ = "0.2.0"

__all__ = [
    "SGD",
    "Adagrad",
    "Batches",
    "ClickLog",
    "EmbeddingBagConfig",
    "EmbeddingBags",
    "ForeseeError",
    "LazyAdam",
    "Optimizer",
    "Planner",
    "RowwiseAdagrad",
    "Run",
    "Schedule",
    "Source",
    "Step",
    "Stop",
    "Store",
    "StoreKind",
    "Tables",
    "Trainers",
    "checkpoint",
    "fetches_by_cache",
    "load_exported",
    "lookahead",
    "models",
    "register_optimizer",
    "register_store",
    "steps",
]

_HOMES = {
    "SGD": "foresee.engine.optimizers",
    "Adagrad": "foresee.engine.optimizers",
    "Batches": "foresee.data.batches",
    "ClickLog": "foresee.data",
    "EmbeddingBagConfig": "foresee.run.bags",
    "EmbeddingBags": "foresee.run.bags",
    "LazyAdam": "foresee.engine.optimizers",
    "Optimizer": "foresee.engine.optimizers",
    "Planner": "foresee.plan.record",
    "RowwiseAdagrad": "foresee.engine.optimizers",
    "Schedule": "foresee.engine.optimizers",
    "Run": "foresee.engine.run",
    "Source": "foresee.data.source",
    "Step": "foresee.engine.step",
    "Stop": "foresee.run.stop",
    "Store": "foresee.store.contract",
    "StoreKind": "foresee.store.registry",
    "Tables": "foresee.engine.tables",
    "Trainers": "foresee.run.worker_group",
    "fetches_by_cache": "foresee.tools.forecast",
    "load_exported": "foresee.run.serving.exported",
    "lookahead": "foresee.run.steps",
    "register_optimizer": "foresee.engine.optimizers",
    "register_store": "foresee.store.registry",
    "steps": "foresee.run.steps",
}


_MODULES = {"checkpoint": "foresee.run.checkpoint", "models": "foresee.models"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'foresee' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
