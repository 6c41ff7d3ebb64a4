"""A cluster on paper: plans of the real planner, predictions that follow the speeds, memory that adds up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from foresee.data.synthetic import CRITEO_TABLE_SIZES
from foresee.engine.optimizers import RowwiseAdagrad
from foresee.engine.tables import layout_for
from foresee.errors import DataError
from foresee.plan import find
from foresee.tools.comparison import CacheSize, Candidate, take_sample
from foresee.tools.cost import EXCHANGE, PLANNER, Speeds
from foresee.tools.simulation import ClusterSpec, Simulated, SyntheticStream, plan_sample, simulate, time_rows

NUM_STEPS = 8


def stream(num_trainers: int, num_rows: float = 1e5) -> SyntheticStream:
    return SyntheticStream(num_rows, batch_size=16 * num_trainers, num_steps=NUM_STEPS)


def simulated(num_trainers: int, *, num_planners: int = 0, num_rows: float = 1e5, **speeds: float) -> Simulated:
    source = stream(num_trainers, num_rows)
    layout = layout_for(source, 8, RowwiseAdagrad(lr=0.1), 0, 0.01)
    sample = take_sample(source, num_trainers, NUM_STEPS)
    known = Speeds(**{"compute_seconds": 0.01, "num_servers": 2, **speeds})  # type: ignore[arg-type]
    cluster = ClusterSpec(speeds=known, num_planners=num_planners)
    return simulate(plan_sample(sample, Candidate(policy=find("lookahead")), CacheSize.parse("1x"), layout), cluster)


def test_a_fast_cluster_is_limited_by_its_compute() -> None:
    found = simulated(4)
    assert found.prediction.step_seconds == pytest.approx(0.01)
    assert found.prediction.bottleneck == "compute"
    assert found.samples_per_second == pytest.approx(64 / 0.01)
    assert found.planner_seconds > 0
    assert found.planner_cores == pytest.approx(found.planner_seconds / 0.01)


def test_slow_links_show_in_the_exchange() -> None:
    slow, slower = (simulated(4, trainer_bytes_per_second=rate) for rate in (1e6, 1e5))
    assert slow.prediction.parts[EXCHANGE] > 0
    assert slower.prediction.step_seconds > 4 * slow.prediction.step_seconds
    assert slow.critical_bytes == slower.critical_bytes, "what moves does not depend on the link"
    assert slow.critical_bytes_most >= slow.critical_bytes > 0


def test_a_planner_that_cannot_keep_up_is_the_bottleneck() -> None:
    one = simulated(4, num_planners=1, compute_seconds=1e-7)
    assert one.prediction.bottleneck == PLANNER
    assert one.prediction.step_seconds >= one.planner_seconds
    assert one.planner_cores <= 1.0


def test_memory_adds_up() -> None:
    found = simulated(4)
    row_bytes = 4 * (8 + 1 + 1)
    assert found.server_bytes == pytest.approx(stream(4).num_rows * row_bytes / 2)
    assert found.trainer_bytes > found.cache_rows * row_bytes
    assert found.planner_bytes > 4 * found.cache_rows * 28
    larger = simulated(4, num_rows=1e7)
    assert larger.planner_bytes < 3 * found.planner_bytes, "a planner's memory does not grow with the tables"
    assert larger.plan_bytes < 2 * found.plan_bytes


def test_synthetic_logs_of_any_size() -> None:
    small, huge = stream(1), stream(1, 2e10)
    assert len(small.table_sizes) == len(CRITEO_TABLE_SIZES)
    assert len(huge.table_sizes) == 3 * len(CRITEO_TABLE_SIZES)
    assert huge.num_rows == pytest.approx(2e10, rel=0.01)
    assert max(huge.table_sizes) < 1 << 31
    (*_, last), again = huge.batches(), next(huge.batches(NUM_STEPS - 1))
    assert last.step == again.step == NUM_STEPS - 1
    assert np.array_equal(last.rows, again.rows)
    assert int(last.rows.max()) < huge.num_rows
    assert huge.digest != small.digest
    with pytest.raises(DataError, match="a synthetic log of 5 rows cannot be made"):
        SyntheticStream(5, batch_size=1, num_steps=1)


def test_rows_are_timed_for_every_optimiser() -> None:
    source = stream(1)
    layout = layout_for(source, 8, RowwiseAdagrad(lr=0.1), 0, 0.01)
    for optimizer, state_width in (("sgd", 0), ("lazy_adam", 17)):
        times = time_rows(replace(layout, optimizer=optimizer, state_width=state_width))
        assert min(times.read, times.write, times.cache) > 0
