"""The cost model against cases that can be worked out by hand: each rule of the engine by itself, and the bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.plan.count import BACKGROUND, CRITICAL, RECEIVED, SENT, Volumes
from foresee.plan.record import Kind
from foresee.tools.cost import (
    BEHIND,
    CORES,
    DENSE,
    DEPENDENCY,
    EXCHANGE,
    PLANNER,
    READER,
    SERVER_LINK,
    SERVERS,
    TRAINER_LINK,
    WAITED,
    WRITER,
    Prediction,
    RowBytes,
    Speeds,
    predict,
)

ROW_BYTES = RowBytes(stored=100, value=80, gradient=80)
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


def test_rows_travel_beside_the_compute_that_follows_their_gradients() -> None:
    link = {"trainer_bytes_per_second": 8000.0, "compute_after_rows_share": 0.3}
    hidden = step(volumes(2, transfers=transfers(Kind.GRAD, CRITICAL, 20)), **link)
    assert hidden.step_seconds == pytest.approx(1.0), "0.2 seconds of exchange behind 0.3 of compute"
    assert hidden.parts[EXCHANGE] == pytest.approx(0.0)
    longer = step(volumes(2, transfers=transfers(Kind.GRAD, CRITICAL, 80)), **link)
    assert longer.step_seconds == pytest.approx(0.7 + 0.8)
    assert longer.parts[EXCHANGE] == pytest.approx(0.5)
    one_core = step(
        volumes(2, transfers=transfers(Kind.GRAD, CRITICAL, 20)), exchange_row_seconds=0.01, cores=1, **link
    )
    assert one_core.step_seconds == pytest.approx(0.7 + 0.3 + 0.4), "both need the core; the link does not"


def test_rows_and_dense_gradients_share_the_link() -> None:
    exchanged = volumes(2, transfers=transfers(Kind.GRAD, CRITICAL, 50))
    dense = {"trainer_bytes_per_second": 8000.0, "dense_bytes": 2400.0}
    assert step(exchanged, **dense).step_seconds == pytest.approx(1.0 + 0.5 + 0.3)
    packing = step(exchanged, exchange_row_seconds=0.003, **dense)
    assert packing.step_seconds == pytest.approx(1.0 + 0.5 + 0.3), "packed while dense gradients have the link"
    assert packing.parts[DENSE] == pytest.approx(0.3)


def test_an_exchange_may_get_less_than_a_link() -> None:
    exchanged = volumes(2, transfers=transfers(Kind.GRAD, CRITICAL, 50))
    found = step(exchanged, trainer_bytes_per_second=8000.0, exchange_link_share=0.5)
    assert found.step_seconds == pytest.approx(2.0)
    assert found.lanes[TRAINER_LINK] == pytest.approx(0.5), "the other half is free for others"


def test_hidden_work_on_full_cores_delays_compute_and_not_the_link() -> None:
    moving = volumes(2, fetched=10, evicted=10, transfers=transfers(Kind.GRAD, CRITICAL, 50))
    speeds = {"trainer_bytes_per_second": 8000.0, "served_row_seconds": 0.02}
    assert step(moving, cores=8, **speeds).step_seconds == pytest.approx(1.5)
    full = step(moving, cores=1, **speeds)
    assert full.step_seconds == pytest.approx(1.0 + 0.4 + 0.5), "rows are served beside compute, then exchanged"
    assert full.lanes[CORES] == pytest.approx(1.4)


def test_hidden_work_is_done_while_training_waits_for_it() -> None:
    chain = volumes(fetched=10, evicted=10, waits_for=1)
    found = step(chain, cores=1, read_row_seconds=0.1, write_row_seconds=0.1)
    assert found.step_seconds == pytest.approx(1.0 + 1.0 + 1.0)


def test_a_shared_store_is_told_of_steps_without_write_backs() -> None:
    assert step(volumes(1), request_seconds=3.0).step_seconds == pytest.approx(1.0)
    assert step(volumes(2), request_seconds=3.0).step_seconds == pytest.approx(3.0, rel=0.05)


@given(
    fetched=st.integers(0, 50), evicted=st.integers(0, 50), exchanged=st.integers(0, 50), num_workers=st.integers(1, 4),
    kind=st.sampled_from(Kind), urgency=st.sampled_from([CRITICAL, BACKGROUND]), waits_for=st.integers(1, 9),
    share=st.floats(0, 1), cores=st.sampled_from([0.5, 1.0, 2.0, float("inf")]),
)  # fmt: skip
def test_no_step_is_shorter_than_its_compute_or_what_a_resource_needs(
    fetched: int, evicted: int, exchanged: int, num_workers: int, kind: Kind, urgency: int, waits_for: int,
    share: float, cores: float,
) -> None:  # fmt: skip
    moved = transfers(kind, urgency, exchanged if num_workers > 1 else 0)
    moving = volumes(num_workers, fetched=fetched, evicted=evicted, transfers=moved, waits_for=waits_for)
    found = step(
        moving, compute_after_rows_share=share, cores=cores, trainer_bytes_per_second=8000.0, dense_bytes=500.0,
        read_row_seconds=0.01, write_row_seconds=0.01, served_row_seconds=0.01, exchange_row_seconds=0.005,
        request_seconds=0.1, cache_row_seconds=0.001,
    )  # fmt: skip
    assert np.isfinite(found.step_seconds)
    assert found.step_seconds >= max(1.0, *found.lanes.values()) - 1e-9
    assert min(found.parts.values()) >= -1e-9


def test_the_slowest_worker_decides() -> None:
    uneven = volumes(2, fetched=1)
    uneven.fetched[:, 1] = 30
    found = step(uneven, read_row_seconds=0.1)
    assert found.step_seconds == pytest.approx(3.0)
