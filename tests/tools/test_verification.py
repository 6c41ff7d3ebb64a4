"""No byte differs between a run without a cache and one with it, whatever the model, optimiser, planner or store.

And the comparison sees what it is for: one flipped bit in any of the things it compares.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import small_run

from foresee.data import ClickLog, tiny
from foresee.engine.planned_step import planned_records
from foresee.errors import PlanError
from foresee.plan import trainable
from foresee.plan.format.file import write_plan
from foresee.run.build import open_tables, plan_header, train_stream
from foresee.run.session import train
from foresee.store.contract import Rows
from foresee.store.layout import Layout, Table
from foresee.store.memory import MemoryStore
from foresee.testing.fake_disk import small_chunks
from foresee.tools.verify import Trained, compare, verify

NUM_STEPS = 6


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("verification") / "log", num_samples=400)


@pytest.mark.parametrize("planner", sorted(trainable()))
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "lazy_adam"])
def test_no_byte_differs(planner: str, optimizer: str, log: ClickLog, tmp_path: Path) -> None:
    store = "disk" if optimizer in ("sgd", "lazy_adam") else "memory"
    tables = {"store": store, "optimizer": {"name": optimizer, "lr": 0.1}}
    config = small_run(log, tmp_path / "run", tables=tables, cache={"planner": planner})
    with small_chunks():  # so that rows come from the log and not from memory
        found = verify(config, num_steps=NUM_STEPS)
    assert found.equal, found.first_difference
    assert found.num_steps == NUM_STEPS
    assert found.num_rows > 100
    assert not (tmp_path / "run").exists()


def _bytes_below(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize("state", ["finished", "interrupted", "damaged"])
def test_a_run_in_any_state_is_verified_and_left_alone(state: str, log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run")
    train(config, stop_after=3 if state == "interrupted" else None)
    if state == "damaged":
        for path in (tmp_path / "run").rglob("*"):
            if path.is_file():
                path.write_bytes(b"damaged")
    before = _bytes_below(tmp_path / "run")
    assert verify(config, num_steps=NUM_STEPS).equal
    assert _bytes_below(tmp_path / "run") == before


@pytest.mark.parametrize("folder", [None, "elsewhere"])
def test_a_run_that_is_being_trained_is_verified(folder: str | None, log: ClickLog, tmp_path: Path) -> None:
    tables = {"store": "disk", **({} if folder is None else {"folder": str(tmp_path / folder)})}
    config = small_run(log, tmp_path / "run", tables=tables)
    with open_tables(config, log):  # holds the lock, as training does
        assert verify(config, num_steps=NUM_STEPS).equal


@pytest.mark.parametrize("model", ["deepfm", "wide_and_deep", "dcn_v2", "ncf"])
def test_no_byte_differs_for_other_models(model: str, log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run", model={"name": model, "options": {}})
    assert verify(config, num_steps=NUM_STEPS).num_differing == 0


def test_a_kept_plan_is_what_is_verified(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run")
    stream = train_stream(config, log)
    header = plan_header(config, log, stream)
    path = tmp_path / "plan.arrow"
    write_plan(path, header, planned_records(stream, header))
    kept = small_run(log, tmp_path / "run", cache={"plan_file": str(path)})
    assert verify(kept, num_steps=NUM_STEPS).equal
    assert verify(kept, num_steps=10**6).num_steps == stream.num_steps, "as many as there are"
    other = small_run(log, tmp_path / "run", cache={"plan_file": str(path)}, train={"seed": 5})
    with pytest.raises(PlanError, match="was made for another log, seed, batch size or number of epochs"):
        verify(other, num_steps=NUM_STEPS)


def test_a_wrong_plan_is_found_out(log: ClickLog, tmp_path: Path) -> None:
    """Rows fetched into each other's slots: checksums and bounds are right, the numbers are not."""
    config = small_run(log, tmp_path / "run")
    stream = train_stream(config, log)
    header = plan_header(config, log, stream)
    records = list(planned_records(stream, header))
    first = records[0]
    swapped = replace(first, fetch=replace(first.fetch, row=first.fetch.row[::-1].copy()))
    write_plan(tmp_path / "plan.arrow", header, [swapped, *records[1:]])
    kept = small_run(log, tmp_path / "run", cache={"plan_file": str(tmp_path / "plan.arrow")})
    found = verify(kept, num_steps=1)
    assert found.num_differing > 0
    assert found.first_difference is not None
    assert "of row" in found.first_difference


def trained(seed: int = 0) -> Trained:
    layout = Layout(tables=(Table("t", 10),), width=2, state_width=1, optimizer="sgd", seed=0, init_scale=0.1)
    store = MemoryStore(layout)
    rng = np.random.default_rng(seed)
    values, state = rng.random((10, 2), np.float32), rng.random((10, 1), np.float32)
    store.write(np.arange(10), Rows(values, state, np.full(10, 3, np.int32)))
    return Trained(store, {"w": torch.tensor([0.0, 1.0]), "n": torch.tensor(3)})


def test_equal_sides_have_no_difference() -> None:
    found = compare(trained(), trained(), np.arange(10), num_steps=3)
    assert (found.num_differing, found.first_difference) == (0, None)
    assert found.num_bytes == 10 * (8 + 4 + 4) + 8 + 8


@pytest.mark.parametrize(("name", "row"), [("values", 0), ("state", 9), ("versions", 4)])
def test_one_changed_number_is_counted_and_named(name: str, row: int) -> None:
    left, right = trained(), trained()
    rows = Rows.empty(1, right.store.layout)
    right.store.read(np.array([row]), rows)
    getattr(rows, name)[:] += 1
    if name != "versions":
        rows.versions[:] = 3
    right.store.write(np.array([row]), rows)
    found = compare(left, right, np.arange(10), num_steps=3)
    assert 1 <= found.num_differing <= 8
    assert found.first_difference == f"{name} of row {row}"
    rest = np.array([other for other in range(10) if other != row])
    assert compare(left, right, rest, num_steps=3).equal


def test_a_negative_zero_in_the_dense_weights_is_a_difference() -> None:
    left, right = trained(), trained()
    right = replace(right, weights={**right.weights, "w": torch.tensor([-0.0, 1.0])})
    found = compare(left, right, np.arange(10), num_steps=3)
    assert found.num_differing == 1
    assert found.first_difference == "dense weights w, byte 3"
    with pytest.raises(PlanError, match="different weights"):
        compare(left, replace(right, weights={}), np.arange(10), num_steps=3)
