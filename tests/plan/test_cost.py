"""The cost model against cases that can be worked out by hand: each rule of the engine by itself, and the bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foresee.plan.cost import (
    BEHIND,
    CORES,
    DENSE,
    DEPENDENCY,
    EXCHANGE,
    PLANNER,
    READER,
    SERVER_LINK,
    SERVERS,
    WAITED,
    WRITER,
    Prediction,
    RowBytes,
    Speeds,
    predict,
)
from foresee.plan.record import Kind
from foresee.plan.volumes import BACKGROUND, CRITICAL, RECEIVED, SENT, Volumes

ROW_BYTES = RowBytes(stored=100, value=80)
NUM_STEPS = 40


def volumes(num_workers: int = 1, **given: Any) -> Volumes:
    """Nothing moves but what is given, the same in every step."""
    shape = (NUM_STEPS, num_workers)
    names = ("lookups", "unique", "missed", "fetched", "refreshed", "evicted", "pushed", "plan_bytes")
    arrays = {name: np.full(shape, given.get(name, 0), np.int64) for name in names}
    waits = np.arange(NUM_STEPS)[:, None] - given.get("waits_for", 9)
    return Volumes(
        **arrays,
        not_before=np.broadcast_to(np.maximum(waits, -1), shape).copy(),
        transfers=np.broadcast_to(given.get("transfers", np.zeros((2, 3, 2), np.int64)), (*shape, 2, 3, 2)).copy(),
        reduced=np.broadcast_to(given.get("reduced", np.zeros(2, np.int64)), (*shape, 2)).copy(),
    )


def step(given: Volumes, **speeds: Any) -> Prediction:
    return predict(given, ROW_BYTES, Speeds(**{"compute_seconds": 1.0, **speeds}), first_step=NUM_STEPS // 2)


def transfers(kind: Kind, urgency: int, rows: int) -> np.ndarray[Any, Any]:
    table = np.zeros((2, 3, 2), np.int64)
    table[[SENT, RECEIVED], kind, urgency] = rows
    return table


def test_nothing_moves_and_a_step_is_its_compute() -> None:
    found = step(volumes())
    assert found.step_seconds == pytest.approx(1.0)
    assert found.bottleneck == "compute"


def test_fetches_and_write_backs_are_hidden_up_to_a_step() -> None:
    moving = volumes(fetched=10, evicted=10)
    assert step(moving, read_row_seconds=0.09, write_row_seconds=0.09).step_seconds == pytest.approx(1.0)
    slow_reads = step(moving, read_row_seconds=0.25)
    assert slow_reads.step_seconds == pytest.approx(2.5)
    assert slow_reads.parts[WAITED] == pytest.approx(1.5)
    assert slow_reads.bottleneck == READER
    slow_writes = step(moving, write_row_seconds=0.25)
    assert slow_writes.step_seconds == pytest.approx(2.5, rel=0.05)
    assert slow_writes.bottleneck == WRITER


def test_a_write_that_the_next_step_reads_is_not_hidden() -> None:
    chain = volumes(fetched=10, evicted=10, waits_for=1)
    found = step(chain, read_row_seconds=0.1, write_row_seconds=0.1)
    assert found.step_seconds == pytest.approx(1.0 + 1.0 + 1.0), "compute, then its write, then the read of it"
    assert found.bottleneck == DEPENDENCY


def test_a_planner_that_is_slower_than_training() -> None:
    found = step(volumes(), planner_seconds=3.0)
    assert found.step_seconds == pytest.approx(3.0)
    assert found.bottleneck == PLANNER


def test_the_critical_exchange_is_not_hidden_and_the_background_one_is() -> None:
    link = {"trainer_bytes_per_second": 8000.0}
    gradients = volumes(2, transfers=transfers(Kind.GRAD, CRITICAL, 50))
    assert step(gradients, **link).step_seconds == pytest.approx(1.5), "50 rows of 80 bytes at 8000 bytes a second"
    moves = volumes(2, transfers=transfers(Kind.MOVE, CRITICAL, 40))
    assert step(moves, **link).step_seconds == pytest.approx(1.5), "a row that moves takes its state along"
    background = volumes(2, transfers=transfers(Kind.GRAD, BACKGROUND, 90))
    assert step(background, **link).step_seconds == pytest.approx(1.0)
    late = step(volumes(2, transfers=transfers(Kind.GRAD, BACKGROUND, 250)), **link)
    assert late.step_seconds == pytest.approx(2.5)
    assert late.parts[BEHIND] == pytest.approx(1.5)


def test_latency_and_messages_of_an_exchange() -> None:
    exchanged = volumes(4, transfers=transfers(Kind.GRAD, CRITICAL, 1))
    found = step(exchanged, latency_seconds=0.1, exchange_seconds=0.01)
    assert found.parts[EXCHANGE] == pytest.approx(2 * (0.1 + 3 * 0.01)), "gradients, then rows"


def test_sums_over_all_workers_go_round_a_ring() -> None:
    found = step(volumes(4, reduced=np.array([100, 0])), trainer_bytes_per_second=8000.0)
    assert found.parts[EXCHANGE] == pytest.approx(2 * 3 / 4 * 100 * 80 / 8000)
    dense = step(volumes(4), trainer_bytes_per_second=1000.0, dense_bytes=1000.0, dense_hidden_share=0.5)
    assert dense.parts[DENSE] == pytest.approx(0.75)
    assert dense.step_seconds == pytest.approx(1.75)
    assert step(volumes(1), trainer_bytes_per_second=1.0, dense_bytes=1000.0).step_seconds == pytest.approx(1.0)


def test_servers_have_links_and_speeds_of_their_own() -> None:
    moving = volumes(4, fetched=100, evicted=100)
    narrow = step(moving, server_bytes_per_second=10_000.0, num_servers=2)
    assert narrow.lanes[SERVER_LINK] == pytest.approx(4 * 100 * 100 / 2 / 10_000)
    assert narrow.step_seconds == pytest.approx(2.0)
    assert narrow.bottleneck == SERVER_LINK
    slow = step(moving, server_rows_per_second=100.0, num_servers=2)
    assert slow.step_seconds == pytest.approx(4.0)
    assert slow.bottleneck == SERVERS
    assert step(moving, server_rows_per_second=100.0, num_servers=8).step_seconds == pytest.approx(1.0)


def test_hidden_work_needs_cores() -> None:
    moving = volumes(fetched=10, evicted=10)
    speeds = {"read_row_seconds": 0.02, "write_row_seconds": 0.03, "compute_threads": 2}
    assert step(moving, cores=8, **speeds).step_seconds == pytest.approx(1.0)
    full = step(moving, cores=2, **speeds)
    assert full.step_seconds == pytest.approx(1.25), "two threads of compute and half a second of rows on two cores"
    assert full.lanes[CORES] == pytest.approx(1.25)
    own_planner = step(moving, cores=2, planner_seconds=0.5, planner_cores_here=1, **speeds)
    assert own_planner.step_seconds == pytest.approx(1.5)


def test_the_slowest_worker_decides() -> None:
    uneven = volumes(2, fetched=1)
    uneven.fetched[:, 1] = 30
    found = step(uneven, read_row_seconds=0.1)
    assert found.step_seconds == pytest.approx(3.0)
