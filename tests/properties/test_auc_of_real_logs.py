"""On real logs, training through plan, cache and store ends with the AUC of a plain PyTorch loop, to four decimals.

The plain loop (`reference_loop`) shares nothing with the engine but the model, the batches and the first values of the
rows: it has no plan, no cache, no kernels and a dense gradient. So the two agree as floating-point sums in different
orders do, and not to the byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from foresee.data import Avazu, ClickLog, Libfm, MovieLens, PrepareOptions, Source, prepare
from foresee.engine.optimizers import SGD, Adagrad, Optimizer, RowwiseAdagrad
from foresee.engine.optimizers.contract import number_of
from foresee.engine.tables import Tables
from foresee.run.by_name import build, row_width
from foresee.run.evaluation import evaluate
from foresee.run.steps import lookahead
from real_data import RealData
from reference_loop import RowOptimizer, train_plainly
from whole_run import all_rows, train_step

DIM = 8


@dataclass(frozen=True, kw_only=True)
class Case:
    """A real log and how to train on it."""

    files: tuple[str, ...]
    model: str
    options: dict[str, tuple[int, ...]]
    optimizer: Optimizer
    batch_size: int
    epochs: int = 1
    held_out: str = "valid"

    def source(self, files: tuple[Path, ...]) -> tuple[Source, PrepareOptions]:
        if files[0].suffix == ".libfm":
            return Libfm(files=files), PrepareOptions(split="files", test_files=files[1:])
        return (Avazu if files[0].suffix == ".csv" else MovieLens)(files=files), PrepareOptions()


CASES = {
    "movielens-100k": Case(
        files=("movielens/ml-100k.inter",), model="ncf", options={"deep": (16, 8)}, optimizer=Adagrad(lr=0.05),
        batch_size=256,
    ),
    "frappe": Case(
        files=("frappe/frappe.validation.libfm", "frappe/frappe.test.libfm"), model="deepfm", options={"deep": (16,)},
        optimizer=RowwiseAdagrad(lr=0.05), batch_size=256, held_out="test",
    ),
    "avazu": Case(
        files=("avazu/avazu_union_sorted.csv",), model="dlrm", options={"bottom": (16,), "top": (16,)},
        optimizer=SGD(lr=0.5), batch_size=128, epochs=2,
    ),
}  # fmt: skip


def prepared(case: Case, real_data: RealData, folder: Path) -> ClickLog:
    source, options = case.source(tuple(real_data.path(name) for name in case.files))
    return prepare(source, folder, options).log


def model_of(case: Case, log: ClickLog) -> nn.Module:
    torch.manual_seed(1)
    return build(case.model, log, DIM, **case.options)


def smallest_cache(case: Case, log: ClickLog) -> int:
    stream = log.batches(batch_size=case.batch_size, seed=2, epochs=case.epochs)
    return max(len(np.unique(batch.rows)) for batch in stream.batches())


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_auc_equals_that_of_a_plain_loop(case: Case, real_data: RealData, tmp_path: Path) -> None:
    log = prepared(case, real_data, tmp_path / "log")
    width = row_width(case.model, DIM)
    with Tables.on_disk(tmp_path / "tables", log, dim=width, optimizer=case.optimizer) as tables:
        first_values = all_rows(tables.store).values
        planned = model_of(case, log)
        dense_optimizer = torch.optim.Adam(planned.parameters(), lr=0.003)
        run = lookahead(
            log, tables, batch_size=case.batch_size, cache_rows=smallest_cache(case, log), epochs=case.epochs, seed=2
        )
        losses = [train_step(step, planned, dense_optimizer) for step in run]
        ours = evaluate(planned, tables.store, log, split=case.held_out)
        trained = all_rows(tables.store).values
    plain = train_plainly(
        model_of(case, log),
        log.batches(batch_size=case.batch_size, seed=2, epochs=case.epochs).batches(),
        first_values,
        row_optimizer=RowOptimizer(case.optimizer.name, number_of(case.optimizer.lr)),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.003),
        pooling=["mean" if mean else "sum" for mean in log.mean_features],
        validation=log.batches(batch_size=512, split=case.held_out, shuffle=False, drop_last=False).batches(),
    )
    assert run.counters.num_evicted > log.num_rows / 2, "the cache is small: rows left and came back"
    assert plain.auc > 0.6, "something was learned"
    assert ours.auc == pytest.approx(plain.auc, abs=5e-5)
    assert ours.log_loss == pytest.approx(plain.log_loss, abs=5e-5)
    assert losses == pytest.approx(plain.losses, abs=1e-3)
    assert np.abs(trained - plain.rows).max() < 0.01
