"""Foresee: train models whose embedding tables outgrow memory. Plan every access first, then carry the plan out.

    import foresee

    log    = foresee.ClickLog.open("data/criteo")
    tables = foresee.Tables.on_disk("tables", log, dim=64, optimizer=foresee.RowwiseAdagrad(lr=0.05))
    model  = foresee.models.DLRM(log, dim=64)

    for step in foresee.lookahead(log, tables, batch_size=2048, cache_rows=500_000):
        loss = bce(model(step.dense, step.embeddings), step.labels)
        ...
        step.update()
"""

from foresee import models
from foresee.data import ClickLog
from foresee.engine.loop import Run, Step, lookahead
from foresee.engine.optimizers import SGD, Adagrad, LazyAdam, RowwiseAdagrad
from foresee.engine.tables import Tables
from foresee.errors import ForeseeError

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adagrad",
    "ClickLog",
    "ForeseeError",
    "LazyAdam",
    "RowwiseAdagrad",
    "Run",
    "Step",
    "Tables",
    "lookahead",
    "models",
]
