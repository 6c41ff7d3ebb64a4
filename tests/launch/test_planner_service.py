"""The planner as a service: each worker gets its own records, from any step on, the same after every restart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from foresee.data import ClickLog
from foresee.data.stream import LogStream
from foresee.engine.header import make_header
from foresee.engine.planned_step import planned_records
from foresee.engine.planner_service import server as sessions
from foresee.engine.planner_service.client import Beginning, PlannerClient
from foresee.engine.planner_service.server import PlannerServer, PlanSession, kept_steps
from foresee.errors import ConfigError, PlanError, PlanUnavailableError, StoreError, StoreUnavailableError
from foresee.plan.format.columns import batch_of, record_of
from foresee.plan.record import Header, Record
from foresee.store.rpc.endpoint import Endpoint
from foresee.store.rpc.security import Security

NUM_WORKERS = 2


class Source:
    """A stream of 200 steps and headers for it. Each call gives a stream of its own, with its own open files."""

    def __init__(self, log: ClickLog) -> None:
        self.log = log

    @property
    def stream(self) -> LogStream:
        return self.log.batches(batch_size=16, epochs=8)

    def header(self, first_step: int = 0, *, cache_rows: int = 100) -> Header:
        return make_header(
            self.stream, planner="lookahead", cache_rows=cache_rows, first_step=first_step, num_workers=NUM_WORKERS,
            placement="location_aware",
        )  # fmt: skip

    def begin(self, beginning: Beginning) -> Header:
        return self.header(beginning.first_step)

    def plan(self, first_step: int = 0) -> list[bytes]:
        return [as_bytes(record) for record in planned_records(self.stream, self.header(first_step))]


@pytest.fixture
def source(small_log: ClickLog) -> Source:
    return Source(small_log)


def as_bytes(record: Record) -> bytes:
    return bytes(batch_of(record).serialize())


def soon() -> float:
    return time.monotonic() + 30.0


def take(session: PlanSession, worker: int, step: int, num_steps: int) -> list[bytes]:
    """Records of so many steps, asked for as a worker does."""
    found: list[bytes] = []
    while len(found) < num_steps:
        batches = session.records(worker, step + len(found), deadline=soon())
        assert batches
        found += [bytes(batch.serialize()) for batch in batches]
    return found[:num_steps]


def client(
    server: PlannerServer, source: Source, worker: int, *, run: str = "one", first_step: int = 0
) -> PlannerClient:
    endpoint = Endpoint.parse(server.address, None, None)
    return PlannerClient(endpoint, run=run, worker=worker, header=source.header(first_step))


@pytest.fixture
def serve(source: Source) -> Iterator[Callable[..., PlannerServer]]:
    made: list[PlannerServer] = []

    def start(port: int = 0) -> PlannerServer:
        server = PlannerServer(source.stream, source.begin, port=port)
        made.append(server)
        return server

    yield start
    for server in made:
        server.stop()
        server.shutdown()
    made.clear()


def test_two_sessions_in_a_row_give_the_same_bytes(source: Source) -> None:
    whole = source.plan()
    for _ in range(2):
        with PlanSession(source.stream, source.header()) as session:
            for step in range(0, source.stream.num_steps, 20):
                for worker in range(NUM_WORKERS):
                    mine = whole[worker::NUM_WORKERS]
                    assert take(session, worker, step, 20) == mine[step : step + 20]


def test_planning_keeps_a_bounded_part_and_stays_a_bounded_way_ahead(source: Source) -> None:
    with PlanSession(source.stream, source.header()) as session:
        for step in (0, 40, 80, 120):
            take(session, 0, step, 1)
            # Planning goes on until it is as far ahead as it may be.
            session._changed.acquire()
            ahead = step + sessions.AHEAD_STEPS - 1
            session._changed.wait_for(lambda ahead=ahead: ahead in session._kept, 30.0)  # type: ignore[misc]
            assert max(session._kept) == ahead
            assert len(session._kept) <= sessions.AHEAD_STEPS + kept_steps(session.header)
            session._changed.release()


def test_a_step_that_is_long_gone_is_planned_again(source: Source) -> None:
    whole = source.plan()[::NUM_WORKERS]
    with PlanSession(source.stream, source.header()) as session:
        assert take(session, 0, 150, 1) == whole[150:151]
        assert take(session, 0, 3, 5) == whole[3:8]
        assert take(session, 0, 199, 1) == whole[199:]


def test_what_is_wrong_with_a_plan_reaches_the_worker_as_its_sentence(source: Source) -> None:
    with PlanSession(source.stream, source.header(cache_rows=3)) as session, pytest.raises(PlanError, match="smallest"):
        session.records(0, 0, deadline=soon())
    with PlanSession(source.stream, source.header()) as session:
        for worker, step in ((2, 0), (-1, 0), (0, 200), (0, -1)):
            with pytest.raises(PlanError, match="not part of this plan"):
                session.records(worker, step, deadline=soon())


def test_workers_get_their_own_records_over_the_wire(source: Source, serve: Callable[..., PlannerServer]) -> None:
    server, whole = serve(), source.plan(first_step=20)
    streams = [client(server, source, worker, first_step=20) for worker in range(NUM_WORKERS)]
    for stream in streams:
        stream.open()
    for number, (one, other) in enumerate(zip(streams[0].records(), streams[1].records(), strict=True)):
        assert as_bytes(one) == whole[2 * number]
        assert as_bytes(other) == whole[2 * number + 1]
    assert number == source.stream.num_steps - 21


def test_a_planner_that_is_started_again_goes_on_with_the_same_bytes(
    source: Source, serve: Callable[..., PlannerServer]
) -> None:
    whole = source.plan()[1::NUM_WORKERS]
    server = serve()
    records = client(server, source, 1).records()
    found = [as_bytes(next(records)) for _ in range(70)]
    port = server.port
    server.stop()
    server.shutdown()
    serve(port)
    found += [as_bytes(record) for record in records]
    assert found == whole


def test_a_newer_run_replaces_an_older_one(source: Source, serve: Callable[..., PlannerServer]) -> None:
    server = serve()
    older, newer = client(server, source, 0).records(), client(server, source, 0, run="two", first_step=20)
    next(older)
    newer.open()
    with pytest.raises(PlanUnavailableError, match="its workers were replaced by newer ones"):
        list(older)
    newer.close()


def test_other_settings_are_refused(source: Source, serve: Callable[..., PlannerServer]) -> None:
    endpoint = Endpoint.parse(serve().address, None, None)
    other = PlannerClient(endpoint, run="one", worker=0, header=source.header(cache_rows=101))
    with pytest.raises(PlanError, match="capacity_rows 100 where this worker has 101"):
        other.open()
    other.close()


def test_a_planner_that_is_away_is_a_sentence(
    source: Source, serve: Callable[..., PlannerServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foresee.engine.planner_service.client.START_SECONDS", 0.3)
    server = serve()
    lonely = client(server, source, 0)
    server.shutdown()
    with pytest.raises(StoreUnavailableError, match="cannot be reached for the plan"):
        lonely.open()


def test_other_machines_need_tls_and_a_token(source: Source) -> None:
    with pytest.raises(ConfigError, match="without TLS and a token"):
        PlannerServer(source.stream, source.begin, host="0.0.0.0")
    token = "a token of sufficient length"
    server = PlannerServer(source.stream, source.begin, security=Security(token=token))
    try:
        with pytest.raises(StoreError, match="refuses the token"):
            client(server, source, 0).open()
        endpoint = Endpoint.parse(server.address, token, None)
        welcome = PlannerClient(endpoint, run="one", worker=0, header=source.header())
        welcome.open()
        welcome.close()
    finally:
        server.stop()
        server.shutdown()


def test_a_record_of_another_worker_is_refused(source: Source) -> None:
    record = next(planned_records(source.stream, source.header()))
    with pytest.raises(PlanError, match="stands in its place"):
        record_of(batch_of(record), source.header(), 0, 1)
