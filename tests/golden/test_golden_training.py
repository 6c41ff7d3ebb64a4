"""A small training run whose numbers are written down: losses of every optimiser, rows moved by every planner.

Exactness compares a run with itself in another shape; a change that is wrong in both shapes passes there and fails
here. Losses are held to five digits, not to the byte: other processors round sums differently.
"""

from __future__ import annotations

import pytest
import torch

from foresee.data.click_log import ClickLog
from foresee.data.synthetic import tiny
from foresee.engine.optimizers import OPTIMIZERS
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.models import DLRM
from foresee.plan import trainable
from foresee.run.steps import lookahead
from reference_loop import RowOptimizer, train_plainly
from whole_run import all_rows, train

BATCH_SIZE = 16
CACHE_ROWS = 90
LOSSES = {  # of steps 0, 12, 24, 36, 49
    "sgd": [0.692845, 0.732814, 0.646824, 0.560106, 0.695676],
    "adagrad": [0.692845, 0.782505, 0.53708, 0.44965, 0.712964],
    "rowwise_adagrad": [0.692845, 0.776815, 0.537028, 0.450642, 0.71841],
    "lazy_adam": [0.692845, 0.825646, 0.499244, 0.515179, 0.644029],
}
MOVED = {  # rows fetched, rows written back
    "none": (3199, 3199),
    "static": (1095, 1095),
    "lru": (1268, 1268),
    "lfu": (1169, 1169),
    "lookahead": (848, 848),
    "belady": (848, 848),
}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("golden") / "log", seed=11)


def model_of(log: ClickLog) -> DLRM:
    torch.manual_seed(11)
    return DLRM(log, 4, bottom=(8,), top=(8,))


def run_of(log: ClickLog, *, optimizer: str = "adagrad", planner: str = "lookahead") -> Run:
    tables = Tables.in_memory(log, dim=4, optimizer=OPTIMIZERS[optimizer](lr=0.2), init_scale=0.3)
    return lookahead(log, tables, batch_size=BATCH_SIZE, cache_rows=CACHE_ROWS, planner=planner, seed=11)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_losses(optimizer: str, log: ClickLog) -> None:
    losses = train(run_of(log, optimizer=optimizer), model_of(log)).losses
    assert len(losses) == 50
    assert [losses[step] for step in (0, 12, 24, 36, 49)] == pytest.approx(LOSSES[optimizer], abs=1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_the_written_losses_are_those_of_a_plain_loop(optimizer: str, log: ClickLog) -> None:
    """So the numbers were not merely copied from the engine."""
    plain = train_plainly(
        model_of(log),
        log.batches(batch_size=BATCH_SIZE, seed=11).batches(),
        all_rows(run_of(log, optimizer=optimizer).tables.store).values,
        row_optimizer=RowOptimizer(optimizer, 0.2),
        dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        pooling=["mean" if mean else "sum" for mean in log.mean_features],
    )
    assert [plain.losses[step] for step in (0, 12, 24, 36, 49)] == pytest.approx(LOSSES[optimizer], abs=1e-5)


@pytest.mark.parametrize("planner", trainable())
def test_rows_moved(planner: str, log: ClickLog) -> None:
    run = run_of(log, planner=planner)
    train(run, model_of(log))
    assert (run.counters.num_fetched, run.counters.num_evicted) == MOVED[planner]


def test_every_optimizer_and_planner_has_its_numbers() -> None:
    assert LOSSES.keys() == OPTIMIZERS.keys()
    assert MOVED.keys() == set(trainable())


def test_the_log_itself(log: ClickLog) -> None:
    """If this differs, the numbers above are not about training."""
    assert log.description.splits["train"].content == "6d0dcfd555b8331b0177b5db131bea243a316c65f4b5cad34c01843422dd785a"
