"""Guarded reads wait at the server for exactly what they need, and for nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from remote_servers import Server, Servers

from foresee.arrays import Int64
from foresee.errors import LostWriteError, StaleReadError, StoreUnavailableError, UsageError
from foresee.plan.record import NOTHING_BEFORE, UNKNOWN_VERSION
from foresee.store.contract import GuardedStore, Rows
from foresee.store.layout import Layout
from foresee.store.memory import MemoryStore
from foresee.store.remote import RemoteStore, link
from foresee.store.remote.opening import ask_status
from foresee.store.server import EmbeddingServer, Share
from foresee.store.server.applied import not_ready
from foresee.store.server.shard import Shard
from foresee.testing import GuardedStoreSuite
from foresee.testing.store_suite import SUITE_LAYOUT, assert_same, ids, initial_rows, random_rows, read_rows
from waiting import wait_until


@pytest.fixture(params=[1, 2])
def processes(servers: Servers, request: pytest.FixtureRequest) -> Iterator[list[Server]]:
    yield servers.start_all(SUITE_LAYOUT, request.param)
    servers.end_all()


@pytest.fixture
def workers(processes: list[Server]) -> Iterator[list[RemoteStore]]:
    """Two trainers of one run."""
    stores = [open_worker(processes, worker) for worker in range(2)]
    yield stores
    for store in stores:
        store.close()


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def open_worker(processes: list[Server], worker: int, run: str = "run", **options: Any) -> RemoteStore:
    addresses = [process.address for process in processes]
    return RemoteStore(addresses, worker=worker, num_workers=2, run=run, **{"deadline_seconds": 30.0, **options})


def guarded(store: RemoteStore, rows: Int64, versions: list[int], not_before: int = NOTHING_BEFORE) -> Rows:
    out = Rows.empty(len(rows), store.layout)
    store.read_guarded(rows, np.array(versions, np.int32), not_before, out)
    return out


def parked(processes: list[Server]) -> int:
    return sum(int(ask_status(process.address)["parked_now"]) for process in processes)


def when_parked(processes: list[Server], number: int = 1) -> None:
    wait_until(lambda: parked(processes) >= number, f"parking of {number} reads")


class TestWorkersOfTwoServers(GuardedStoreSuite):
    @pytest.fixture(autouse=True)
    def _servers(self, processes: list[Server]) -> None:
        self.processes = processes

    def make_workers(self, folder: Path, layout: Layout, num_workers: int) -> Sequence[GuardedStore]:
        return [open_worker(self.processes, worker) for worker in range(num_workers)]


def test_a_ready_read_does_not_wait(workers: list[RemoteStore]) -> None:
    rows = ids(3, 4, 1000)
    assert_same(guarded(workers[0], rows, [0, 0, 0]), initial_rows(SUITE_LAYOUT, rows))
    assert_same(guarded(workers[0], rows, [UNKNOWN_VERSION] * 3), initial_rows(SUITE_LAYOUT, rows))
    assert len(guarded(workers[0], ids(), [])) == 0


def test_a_known_version_waits_for_its_row_only(
    processes: list[Server], workers: list[RemoteStore], background: ThreadPoolExecutor
) -> None:
    rng = np.random.default_rng(1)
    late = background.submit(guarded, workers[0], ids(7, 8, 9), [0, 6, 0])
    when_parked(processes)
    # Writes of other rows, and steps of both workers, wake it but are not what it needs.
    workers[0].write_step(4, ids(20), random_rows(rng, 1, SUITE_LAYOUT, 5))
    workers[1].write_step(9, ids(), Rows.empty(0, SUITE_LAYOUT))
    # An older version of the row is not enough either.
    workers[1].write(ids(8), random_rows(rng, 1, SUITE_LAYOUT, 5))
    assert parked(processes) >= 1
    assert not late.done()
    arrived = random_rows(rng, 1, SUITE_LAYOUT, 6)
    workers[1].write_step(5, ids(8), arrived)
    found = late.result()
    assert found.versions.tolist() == [0, 6, 0]
    assert found.values[1].tobytes() == arrived.values[0].tobytes()


def test_an_unknown_version_waits_for_every_worker(
    processes: list[Server], workers: list[RemoteStore], background: ThreadPoolExecutor
) -> None:
    rng = np.random.default_rng(2)
    nothing = Rows.empty(0, SUITE_LAYOUT)
    late = background.submit(guarded, workers[0], ids(7, 8), [UNKNOWN_VERSION] * 2, 3)
    when_parked(processes)
    for step in range(4):
        workers[0].write_step(step, ids(), nothing)
    for step in range(3):
        workers[1].write_step(step, ids(), nothing)
    assert not late.done()
    source = random_rows(rng, 2, SUITE_LAYOUT, 4)
    # Plain writes do not count as a step, and a step that came before does not count again.
    workers[1].write(ids(7, 8), source)
    workers[1].write_step(2, ids(), nothing)
    assert parked(processes) >= 1
    assert not late.done()
    workers[1].write_step(3, ids(), nothing)
    assert_same(late.result(), source)


def test_many_parked_reads_hold_up_nobody(
    servers: Servers, processes: list[Server], workers: list[RemoteStore], background: ThreadPoolExecutor
) -> None:
    rng = np.random.default_rng(3)
    reader = open_worker(processes, 0, reads_in_flight=12)
    waiting: list[Future[Rows]] = [background.submit(guarded, reader, ids(row), [2]) for row in range(12)]
    when_parked(processes, 12)
    settled = random_rows(rng, 3, SUITE_LAYOUT, 1)
    workers[1].write(ids(900, 901, 902), settled)
    assert_same(read_rows(workers[1], ids(900, 901, 902)), settled)
    assert_same(guarded(workers[1], ids(900, 901, 902), [1, 1, 1]), settled)
    assert parked(processes) == 12
    source = random_rows(rng, 12, SUITE_LAYOUT, 2)
    for row in reversed(range(12)):
        one = slice(row, row + 1)
        workers[1].write_step(11 - row, ids(row), Rows(source.values[one], source.state[one], source.versions[one]))
        assert waiting[row].result().values.tobytes() == source.values[one].tobytes()
    assert parked(processes) == 0
    reader.close()


def test_a_row_beyond_its_expected_version_is_an_error_at_once(workers: list[RemoteStore]) -> None:
    workers[1].write_step(8, ids(5), random_rows(np.random.default_rng(4), 1, SUITE_LAYOUT, 9))
    with pytest.raises(StaleReadError, match=r"server grpc://.*row 5 is stored in version 9, the plan expects 7"):
        guarded(workers[0], ids(5), [7])
    assert read_rows(workers[0], ids(5)).versions[0] == 9


def test_the_deadline_names_what_is_missing(processes: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    # The server gives up after half a second, long before the client does: it is the server's answer that is tested.
    monkeypatch.setattr(link, "PARK_SHARE", 0.5 / 30.0)
    store = open_worker(processes, 1, run="short")
    with pytest.raises(
        StoreUnavailableError, match=r"server grpc://.*row 6 .*needs version 3 \(stored: 0\); .*worker 0 -1"
    ):
        guarded(store, ids(6), [3])
    with pytest.raises(
        StoreUnavailableError, match=r"row 6 .*needs step 0 by all; applied up to step: worker 0 -1, worker 1 -1"
    ):
        guarded(store, ids(6), [UNKNOWN_VERSION], 0)
    assert_same(guarded(store, ids(6), [0]), initial_rows(SUITE_LAYOUT, ids(6)))
    assert parked(processes) == 0
    store.close()


def test_a_newer_run_replaces_an_older_one(processes: list[Server], workers: list[RemoteStore]) -> None:
    nothing = Rows.empty(0, SUITE_LAYOUT)
    workers[0].write_step(5, ids(), nothing)
    newer = open_worker(processes, 0, run="newer")
    assert ask_status(processes[0].address)["watermarks"] == [-1, -1]
    with pytest.raises(StoreUnavailableError, match=r"run 'run' is not the one served here, which is 'newer'"):
        workers[0].write_step(6, ids(), nothing)
    with pytest.raises(StoreUnavailableError, match=r"run 'run' is not the one served here"):
        guarded(workers[1], ids(1), [0])
    newer.write_step(0, ids(), nothing)
    assert ask_status(processes[0].address)["watermarks"] == [0, -1]
    newer.close()


def test_workers_of_a_run_agree_on_their_number(processes: list[Server], workers: list[RemoteStore]) -> None:
    addresses = [process.address for process in processes]
    with pytest.raises(UsageError, match=r"run 'run' has 2 workers here, worker 2 says 3"):
        RemoteStore(addresses, worker=2, num_workers=3, run="run")
    with pytest.raises(UsageError, match="the same run= name"):
        RemoteStore(addresses, worker=0, num_workers=2)
    with pytest.raises(UsageError, match="worker= and num_workers="):
        RemoteStore(addresses, worker=0)
    plain = RemoteStore(addresses)
    with pytest.raises(UsageError, match="read_guarded is for the trainers of a run"):
        guarded(plain, ids(1), [0])
    plain.close()


def test_two_workers_pass_rows_back_and_forth(workers: list[RemoteStore]) -> None:
    """Each worker reads what the other wrote a step before, with no other synchronisation than the guards."""
    rows = np.arange(0, 40, dtype=np.int64)
    num_steps = 40
    failures: list[BaseException] = []

    def play(worker: int) -> None:
        try:
            for step in range(num_steps):
                if step % 2 == worker:
                    found = guarded(workers[worker], rows, [step] * len(rows))
                    source = Rows(found.values + np.float32(1), found.state, found.versions + np.int32(1))
                    workers[worker].write_step(step, rows, source)
                else:
                    workers[worker].write_step(step, ids(), Rows.empty(0, SUITE_LAYOUT))
        except BaseException as error:
            failures.append(error)

    in_threads([lambda worker=worker: play(worker) for worker in range(2)])  # type: ignore[misc]
    assert not failures, failures[0]
    values = initial_rows(SUITE_LAYOUT, rows).values
    for _ in range(num_steps):
        values = values + np.float32(1)
    found = read_rows(workers[0], rows)
    assert found.values.tobytes() == values.tobytes()
    assert found.versions.tolist() == [num_steps] * len(rows)


def in_threads(bodies: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class SlowStore(MemoryStore):
    """A store whose writes begin, and finish only when they are told to."""

    def __init__(self) -> None:
        super().__init__(SUITE_LAYOUT)
        self.begun, self.may_finish = threading.Event(), threading.Event()

    def write(self, rows: Int64, source: Rows) -> None:
        self.begun.set()
        assert self.may_finish.wait(30)
        super().write(rows, source)


def test_applied_means_applied(background: ThreadPoolExecutor) -> None:
    """A step does not count while its rows are on their way into the store, and a read of them stays parked."""
    slow = SlowStore()
    server = EmbeddingServer(Shard(slow, SUITE_LAYOUT, Share()))
    store = RemoteStore([server.address], worker=0, num_workers=1, deadline_seconds=30.0)
    source = random_rows(np.random.default_rng(5), 2, SUITE_LAYOUT, 1)
    reading = background.submit(guarded, store, ids(7, 8), [UNKNOWN_VERSION] * 2, 0)
    wait_until(lambda: ask_status(server.address)["parked_now"] == 1, "parking")
    writing = background.submit(store.write_step, 0, ids(7, 8), source)
    assert slow.begun.wait(30)
    state = ask_status(server.address)
    assert (state["watermarks"], state["parked_now"]) == ([-1], 1)
    assert not reading.done()
    slow.may_finish.set()
    writing.result()
    assert_same(reading.result(), source)
    store.close()
    assert server.stop(10.0)
    server.shutdown()


def test_the_rule_of_readiness() -> None:
    rows, unknown = ids(1, 2, 3), UNKNOWN_VERSION
    expected = np.array([4, unknown, 0], np.int32)
    found = np.array([3, 9, 0], np.int32)
    assert not_ready(rows, expected, found, not_before=3, all_applied=False).tolist() == [True, True, False]
    assert not_ready(rows, expected, found, not_before=2, all_applied=True).tolist() == [True, False, False]
    with pytest.raises(LostWriteError, match="row 1 is stored in version 3, the plan expects 4, and all write-backs"):
        not_ready(rows, expected, found, not_before=3, all_applied=True)
    with pytest.raises(StaleReadError, match="row 1"):
        not_ready(rows, expected, np.array([5, 0, 0], np.int32), not_before=3, all_applied=True)


def test_a_lost_write_is_known_once_all_have_written(
    processes: list[Server], workers: list[RemoteStore], background: ThreadPoolExecutor
) -> None:
    """Not at the deadline: when the last worker's write-backs are applied and the row is still the old one."""
    rows, none = ids(5, 6), ids()
    reading = background.submit(guarded, workers[0], rows, [1, UNKNOWN_VERSION], 0)
    when_parked(processes)
    workers[0].write_step(0, none, Rows.empty(0, SUITE_LAYOUT))
    assert not reading.done()
    workers[1].write_step(0, none, Rows.empty(0, SUITE_LAYOUT))
    with pytest.raises(LostWriteError, match=r"row 5 .*write-back was lost; resume from the last commit"):
        reading.result()
    assert read_rows(workers[0], rows).versions.tolist() == [0, 0], "the connection goes on"
