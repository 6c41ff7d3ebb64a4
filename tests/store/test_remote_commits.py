"""Commits of several servers stand on all of them or on none, and a new run brings live servers back to a commit."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from remote_servers import Server, Servers

from foresee.errors import StoreError, StoreUnavailableError, UsageError
from foresee.store.commits import Prepare, Settle
from foresee.store.contract import Rows, TwoPhaseStore
from foresee.store.remote import RemoteStore
from foresee.store.remote.opening import open_run
from foresee.store.rpc.endpoint import Endpoint
from foresee.testing.store_suite import SUITE_LAYOUT, assert_same, initial_rows, random_rows, read_rows

ALL_ROWS = np.arange(SUITE_LAYOUT.num_rows, dtype=np.int64)


def rows_of(step: int) -> Rows:
    return random_rows(np.random.default_rng(step), len(ALL_ROWS), SUITE_LAYOUT, step)


def begin(processes: list[Server], run: str, *, manifests: tuple[int, ...]) -> RemoteStore:
    endpoints = [Endpoint.parse(process.address, None, None) for process in processes]
    open_run(endpoints, SUITE_LAYOUT, run=run, num_workers=1, manifests=manifests)
    return RemoteStore(
        [process.address for process in processes], SUITE_LAYOUT, worker=0, num_workers=1, run=run, opened=True
    )


def at(store: RemoteStore, step: int) -> None:
    assert store.committed_step == step
    expected = rows_of(step) if step else initial_rows(SUITE_LAYOUT, ALL_ROWS)
    assert_same(read_rows(store, ALL_ROWS), expected)


def train(store: RemoteStore, step: int) -> None:
    store.write_step(step - 1, ALL_ROWS, rows_of(step))


@pytest.fixture(params=["memory", "disk"])
def pair(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> list[Server]:
    return servers.start_all(SUITE_LAYOUT, 2, tmp_path if request.param == "disk" else None)


def test_a_new_run_rolls_live_servers_back(pair: list[Server]) -> None:
    first = begin(pair, "first", manifests=())
    at(first, 0)
    train(first, 1)
    first.commit(1)
    train(first, 2)
    second = begin(pair, "second", manifests=(1,))
    at(second, 1)
    with pytest.raises(StoreUnavailableError, match="run 'first' is not the one served here, which is 'second'"):
        train(first, 3)
    at(second, 1)
    train(second, 2)
    second.commit(2)
    at(second, 2)
    for store in (first, second):
        store.close()


@pytest.mark.parametrize("decided", [True, False])
@pytest.mark.parametrize("settled", [0, 1, 2])
def test_a_commit_that_was_interrupted_stands_as_its_manifest_says(
    pair: list[Server], settled: int, decided: bool
) -> None:
    if settled and not decided:
        return  # nobody settles what was not decided
    first = begin(pair, "first", manifests=())
    train(first, 1)
    first.commit(1)
    train(first, 2)
    first.prepare(2)
    for link in first._links[:settled]:
        link.tell(Settle(run="first", step=2), 10.0)
    train(first, 3)
    second = begin(pair, "second", manifests=(1, 2) if decided else (1,))
    at(second, 2 if decided else 1)
    for store in (first, second):
        store.close()


def test_a_prepare_that_reached_one_server_is_given_up(pair: list[Server]) -> None:
    first = begin(pair, "first", manifests=())
    train(first, 1)
    first._links[0].tell(Prepare(run="first", step=1, on=0), 10.0)
    second = begin(pair, "second", manifests=())
    at(second, 0)
    train(second, 1)
    second.commit(1)
    at(second, 1)
    for store in (first, second):
        store.close()


def test_messages_that_come_twice_or_late_change_nothing(pair: list[Server]) -> None:
    first = begin(pair, "first", manifests=())
    train(first, 1)
    for _ in range(2):
        first.prepare(1)
    train(first, 2)
    first._links[0].tell(Prepare(run="first", step=1, on=0), 10.0)
    first.settle(1)
    for link in first._links:
        link.tell(Settle(run="first", step=1), 10.0)
    second = begin(pair, "second", manifests=(1,))
    at(second, 1)
    with pytest.raises(StoreUnavailableError, match="run 'first' is not the one served here"):
        first._links[0].tell(Prepare(run="first", step=2, on=1), 10.0)
    with pytest.raises(StoreUnavailableError, match="run 'first' is not the one served here"):
        RemoteStore([it.address for it in pair], worker=0, num_workers=1, run="first", opened=True)
    for store in (first, second):
        store.close()


def test_only_what_is_prepared_is_settled(pair: list[Server]) -> None:
    store = begin(pair, "first", manifests=())
    with pytest.raises(UsageError, match="step 1 is not prepared"):
        store.settle(1)
    store.close()


def test_a_server_that_lost_its_rows_is_named(servers: Servers) -> None:
    pair = servers.start_all(SUITE_LAYOUT, 2)
    first = begin(pair, "first", manifests=())
    for step in (1, 2):
        train(first, step)
        first.commit(step)
    first.close()
    servers.end(pair[1])
    pair[1] = servers.start(SUITE_LAYOUT, shard=1, num_shards=2)
    with pytest.raises(StoreError, match=rf"no commit is complete: .* kept of step 1, 2, .*{pair[1].address}: 0;"):
        begin(pair, "second", manifests=(1, 2))


def test_a_killed_server_comes_back_at_the_commit(servers: Servers, tmp_path: Path) -> None:
    pair = servers.start_all(SUITE_LAYOUT, 2, tmp_path)
    first = begin(pair, "first", manifests=())
    for step in (1, 2):
        train(first, step)
        first.commit(step)
    train(first, 3)
    first.prepare(3)
    servers.end(pair[0], signal.SIGKILL)
    first.close()
    pair[0] = servers.start(SUITE_LAYOUT, shard=0, num_shards=2, folder=str(tmp_path / "shard-0"))
    second = begin(pair, "second", manifests=(2, 3))
    at(second, 3)
    second.close()


def test_servers_are_a_two_phase_store_like_any_other(pair: list[Server]) -> None:
    store = RemoteStore([process.address for process in pair], SUITE_LAYOUT)
    assert isinstance(store, TwoPhaseStore)
    for step in (1, 2):
        store.write(ALL_ROWS, rows_of(step))
        store.prepare(step)
        assert [part.prepared for part in store.parts] == [step, step]
        store.settle(step)
    assert [(part.committed, part.previous) for part in store.parts] == [(2, 1), (2, 1)]
    store.write(ALL_ROWS, rows_of(3))
    store.open_at(2)
    at(store, 2)
    store.open_at(1)
    at(store, 1)
    store.write(ALL_ROWS, rows_of(4))
    store.commit(4)
    at(store, 4)
    store.close()


def test_a_trainer_does_not_take_servers_from_its_peers(pair: list[Server]) -> None:
    store = begin(pair, "first", manifests=())
    with pytest.raises(UsageError, match="a trainer cannot take its servers to step 0"):
        store.open_at(0)
    store.close()
