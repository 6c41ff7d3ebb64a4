"""Strangers on the network: each is answered at once or cut, memory stays flat, and a good client is served."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import hostile_wire as wire
import numpy as np
import pytest
from pyarrow import flight
from remote_servers import Server, Servers

from foresee.errors import ForeseeError, StoreError
from foresee.store.contract import Rows
from foresee.store.layout import Layout, Table
from foresee.store.remote import RemoteStore, protocol
from foresee.store.remote.opening import ask_status, check_agreement
from foresee.store.rpc.endpoint import Endpoint
from foresee.store.rpc.failures import raise_failure
from waiting import wait_until

TOKEN = "0123456789abcdef0123456789abcdef"
LAYOUT = Layout(tables=(Table("t", 5000),), width=16, state_width=1, optimizer="x")
UNAUTHENTICATED_SECONDS = 2.0
GROWTH_BYTES_MAX = 128 << 20
"""What a server may grow by under any of these attacks; each of them sends, or claims, far more."""


def memory_of(server: Server) -> int:
    pages = int(Path(f"/proc/{server.process_id}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


VERSIONS = itertools.count(1)


class GoodClient:
    """Reads and writes rows all the time; whatever goes wrong for it is kept."""

    def __init__(self, server: Server, **options: Any) -> None:
        self._store = RemoteStore([server.address], deadline_seconds=20.0, token=TOKEN, **options)
        self.num_answers, self._stop = 0, threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> GoodClient:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self._store.close()
        assert self.failure is None
        assert self.num_answers > 0

    def is_served(self) -> None:
        """Some more answers come now."""
        before = self.num_answers
        wait_until(lambda: self.num_answers > before + 3 or self.failure is not None, "an answer to the good client")
        assert self.failure is None

    def _run(self) -> None:
        rng = np.random.default_rng(0)
        try:
            while not self._stop.is_set():
                version = next(VERSIONS)
                rows = rng.choice(5000, 200, replace=False).astype(np.int64)
                values = rng.standard_normal((200, 16)).astype(np.float32)
                source = Rows(values, np.zeros((200, 1), np.float32), np.full(200, version, np.int32))
                self._store.write(rows, source)
                found = Rows.empty(200, LAYOUT)
                self._store.read(rows, found)
                assert found.values.tobytes() == values.tobytes()
                self.num_answers += 1
        except BaseException as error:
            self.failure = error


@contextmanager
def flat_memory(server: Server, growth_bytes_max: int = GROWTH_BYTES_MAX) -> Iterator[None]:
    before, peak, stop = memory_of(server), [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            peak[0] = max(peak[0], memory_of(server))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)
    assert peak[0] - before < growth_bytes_max, f"it grew by {(peak[0] - before) / 1e6:.0f} MB"


@pytest.fixture
def server(servers: Servers) -> Iterator[Server]:
    started = servers.start(LAYOUT, token=TOKEN, limits={"unauthenticated_seconds": UNAUTHENTICATED_SECONDS})
    with GoodClient(started) as client:
        client.is_served()
    yield started
    assert "Traceback" not in started.output()
    assert TOKEN not in started.output()
    servers.end_all()


SMALL_CALL = wire.call("DoAction", wire.action("describe", b"{}"))
HOSTILE_STREAMS = {
    "garbage": os.urandom(300_000),
    "another protocol": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS to a plain server": bytes.fromhex("16030100f8010000f40303") + os.urandom(240),
    "a frame of sixteen megabytes": wire.PREFACE + wire.frame(wire.DATA, 0, 1, b"x", length=(1 << 24) - 1),
    "headers without end": wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0, b"")
    + wire.frame(wire.HEADERS, 0, 1, b"") + 200 * wire.frame(wire.CONTINUATION, 0, 1, b"\x10\x01a\x7f" + bytes(16000)),
    "settings of nonsense": wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0, os.urandom(600)),
    "a message of four gigabytes": wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0, b"")
    + wire.frame(wire.HEADERS, wire.END_HEADERS, 1, wire.header_block("DoAction"))
    + wire.frame(wire.DATA, 0, 1, wire.message(b"x" * 1000, length=(1 << 32) - 1)),
    "streams by the thousand": wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0, b"") + b"".join(
        wire.frame(wire.HEADERS, wire.END_HEADERS, 2 * it + 1, wire.header_block("DoAction")) for it in range(2000)
    ),
    "resets by the thousand": wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0, b"") + b"".join(
        wire.frame(wire.HEADERS, wire.END_HEADERS, 2 * it + 1, wire.header_block("DoAction"))
        + wire.frame(wire.RESET, 0, 2 * it + 1, bytes(4)) for it in range(2000)
    ),
    "pings by the thousand": wire.PREFACE + wire.frame(wire.SETTINGS, 0, 0, b"")
    + 5000 * wire.frame(wire.PING, 0, 0, bytes(8)),
    "half a preface": wire.PREFACE[:10],
    "nothing": b"",
}  # fmt: skip


@pytest.mark.parametrize("attack", list(HOSTILE_STREAMS))
def test_a_hostile_stream_is_cut(server: Server, attack: str) -> None:
    with GoodClient(server) as client, flat_memory(server), ExitStack() as stack:
        connections = [stack.enter_context(closing(wire.connect(server.address))) for _ in range(4)]
        for connection in connections:
            wire.send(connection, HOSTILE_STREAMS[attack])
        client.is_served()
        assert all(wire.is_cut(connection, 15.0) for connection in connections)
        client.is_served()


def test_a_large_message_before_the_token_is_not_held(server: Server) -> None:
    """gRPC takes in the whole message of a small call before it asks anyone about the token."""
    with GoodClient(server) as client, flat_memory(server), closing(flight.FlightClient(server.address)) as stranger:
        with pytest.raises(flight.FlightError):
            list(stranger.do_action(flight.Action("describe", bytes(300 << 20))))
        client.is_served()
    assert status_of(server)["connections_cut"] >= 1


def test_a_large_message_after_the_token_is_not_held(servers: Servers) -> None:
    """A client with the token may send one message as large as any of ours, and no larger."""
    server = servers.start(LAYOUT, token=TOKEN, limits={"rows_per_request_max": 10_000})
    options = Endpoint.parse(server.address, TOKEN, None).options(20.0)
    with GoodClient(server) as client, flat_memory(server, 128 << 20):
        with closing(flight.FlightClient(server.address)) as greedy:
            assert list(greedy.do_action(flight.Action("describe", b"{}"), options))
            with pytest.raises(flight.FlightError):
                list(greedy.do_action(flight.Action("describe", bytes(400 << 20)), options))
        client.is_served()
    servers.end_all()


def test_a_thousand_idle_connections_are_bounded_and_cut(server: Server) -> None:
    with GoodClient(server) as client, flat_memory(server), ExitStack() as stack:
        crowd = [stack.enter_context(closing(wire.connect(server.address))) for _ in range(1000)]
        client.is_served()
        wait_until(lambda: len(os.listdir(f"/proc/{server.process_id}/fd")) < 200, "the cut of those over the limit")
        client.is_served()
        assert all(wire.is_cut(connection, 30.0) for connection in crowd)
        client.is_served()
    wait_until(lambda: len(os.listdir(f"/proc/{server.process_id}/fd")) < 60, "the end of all strangers")


def test_a_byte_a_second_gets_nowhere(server: Server) -> None:
    with GoodClient(server) as client, ExitStack() as stack:
        slow = [stack.enter_context(closing(wire.connect(server.address))) for _ in range(20)]
        begun, position = time.monotonic(), 0
        while any([wire.send(connection, SMALL_CALL[position : position + 1]) for connection in slow]):  # noqa: C419
            position += 1
            assert time.monotonic() - begun < 30.0, "a slow client was never cut"
            time.sleep(0.5)
        client.is_served()


def test_a_client_that_never_takes_its_reply_holds_up_nobody(server: Server) -> None:
    """Reads are asked for and never taken: the server keeps what flow control lets it send, and serves on."""
    with GoodClient(server) as client, flat_memory(server), closing(wire.connect(server.address)) as lazy:
        described = status_of(server, "describe")
        command = protocol.Opening(kind="read", incarnation=described["incarnation"]).to_bytes()
        opening = wire.call("DoExchange", wire.flight_data(command=command), token=TOKEN, end=False)
        assert wire.send(lazy, opening)
        wait_until(lambda: status_of(server)["connections"] >= 2, "the exchange of the lazy client")
        client.is_served()


def status_of(server: Server, question: str = "status") -> dict[str, Any]:
    endpoint = Endpoint.parse(server.address, TOKEN, None)
    with closing(endpoint.client()) as client:
        return endpoint.ask(client, question, {}, time.monotonic() + 20.0)


WRONG_QUESTIONS: list[tuple[str, bytes]] = [
    ("describe", b"["), ("describe", b"[]"), ("describe", b"[" * 60_000), ("describe", b'{"a":' * 9_000),
    ("describe", b"\xff\xfe"), ("describe", b"1" * 60_000), ("describe", b"x" * 70_000),
    ("join", b"{}"), ("join", b'{"run": 5, "worker": 0, "num_workers": 1}'),
    ("join", b'{"run": "r", "worker": 0, "num_workers": 1000000000000}'),
    ("join", b'{"run": "r", "worker": 0, "num_workers": NaN}'),
    ("join", b'{"run": "r", "worker": 1e5, "num_workers": 2}'),
    ("join", b'{"run": "r", "worker": 0, "num_workers": 1, "first_step": -4}'),
    ("commit", b"{}"), ("commit", b'{"step": -1}'), ("commit", b'{"step": 99999999999999999999}'),
    ("commit", b'{"step": 1, "run": "another"}'), ("commit", b'{"step": true}'),
    ("format the disk", b"{}"), ("x" * 10_000, b"{}"),
]  # fmt: skip


def test_wrong_questions_get_a_sentence(server: Server) -> None:
    endpoint = Endpoint.parse(server.address, TOKEN, None)
    with GoodClient(server) as client, closing(endpoint.client()) as asking:
        for kind, body in WRONG_QUESTIONS:
            answer = next(iter(asking.do_action(flight.Action(kind, body), endpoint.options(20.0))))
            with pytest.raises(ForeseeError, match="; ") as caught:
                raise_failure(_object(answer.body.to_pybytes()), server.address)
            assert len(str(caught.value)) < 600
        client.is_served()


def _object(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)
    return found


def test_rows_that_cannot_be_are_refused(server: Server) -> None:
    """Ids below, beyond and twice; the connection goes on, and the tables are as they were."""
    with closing(RemoteStore([server.address], token=TOKEN, deadline_seconds=20.0)) as store:
        link = store._links[0]
        before = Rows.empty(3, LAYOUT)
        store.read(np.array([1, 2, 3]), before)
        for rows, sentence in (
            ([-1], "row -1 is in no table"),
            ([1, 5000], "row 5000 is in no table"),
            ([np.iinfo(np.int64).max], "is in no table"),
            ([np.iinfo(np.int64).min], "is in no table"),
        ):
            with pytest.raises(StoreError, match=sentence):
                link.read(np.array(rows, np.int64), lambda begin, chunk: None)
            with pytest.raises(StoreError, match=sentence):
                _write(link, rows, versions=[1] * len(rows))
        with pytest.raises(StoreError, match="has one of them twice"):
            _write(link, [1, 2, 1], versions=[1, 1, 1])
        with pytest.raises(StoreError, match=r"version 2147483647, more than"):
            _write(link, [1], versions=[2**31 - 1])
        after = Rows.empty(3, LAYOUT)
        store.read(np.array([1, 2, 3]), after)
        assert before.values.tobytes() == after.values.tobytes()
        assert (before.versions == after.versions).all()


def _write(link: Any, rows: list[int], versions: list[int]) -> None:
    values, state = np.ones((len(rows), 16), np.float32), np.ones((len(rows), 1), np.float32)
    source = Rows(values, state, np.array(versions, np.int32))
    link.write(lambda schema: iter([(protocol.write_batch(schema, np.array(rows, np.int64), source), True)]), None)


def test_another_width_is_refused(server: Server) -> None:
    with closing(RemoteStore([server.address], token=TOKEN, deadline_seconds=20.0)) as store:
        link = store._links[0]
        link._layout = replace(LAYOUT, width=8)
        source = Rows.empty(1, link._layout)
        with pytest.raises(StoreError, match="not those of these tables"):
            link.write(lambda schema: iter([(protocol.write_batch(schema, np.array([1]), source), True)]), None)


def test_an_old_client_is_told_so() -> None:
    with pytest.raises(StoreError, match=r"speaks protocol 0, this program \d+; use the same version"):
        check_agreement({"grpc://127.0.0.1:1": {"protocol": 0}}, None)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, Path]]:
    """Two machines that do not know each other."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    made = []
    for name in ("ours", "theirs"):
        folder = tmp_path_factory.mktemp(name)
        key, certificate = folder / "key.pem", folder / "certificate.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True,
        )  # fmt: skip
        made.append((certificate, key))
    return made


def test_tls_with_the_wrong_partner(servers: Servers, certificates: list[tuple[Path, Path]]) -> None:
    (certificate, key), (other, _) = certificates
    server = servers.start(LAYOUT, certificate=certificate.read_text(), key=key.read_text(), token=TOKEN,
                           limits={"unauthenticated_seconds": UNAUTHENTICATED_SECONDS})  # fmt: skip
    name = re.escape(server.address)
    with GoodClient(server, tls_root_certificate=certificate.read_bytes()) as client, flat_memory(server):
        for wrong in (other.read_bytes(), None, b"no certificate"):
            with pytest.raises(StoreError, match=name):
                RemoteStore([server.address], token=TOKEN, tls_root_certificate=wrong, deadline_seconds=2.0)
        plain = server.address.replace("grpc+tls", "grpc")
        with pytest.raises(StoreError, match=re.escape(plain)):
            RemoteStore([plain], token=TOKEN, deadline_seconds=2.0)
        with closing(wire.connect(server.address)) as half:
            assert wire.send(half, bytes.fromhex("16030100f8010000f40303"))
            assert wire.is_cut(half, 30.0), "a TLS handshake that never ends"
        client.is_served()
    servers.end_all()


def test_tls_to_a_plain_server(servers: Servers) -> None:
    server = servers.start(LAYOUT)
    tls = server.address.replace("grpc", "grpc+tls")
    with GoodClient(server) as client:
        with pytest.raises(StoreError, match=re.escape(tls)):
            RemoteStore([tls], deadline_seconds=2.0)
        client.is_served()
    servers.end_all()


def test_half_open_connections_are_probed(server: Server) -> None:
    """The kernel asks machines that say nothing whether they are still there."""
    port = int(server.address.rpartition(":")[2])

    def probed() -> bool:
        lines = [line.split() for line in Path(f"/proc/{server.process_id}/net/tcp6").read_text().splitlines()[1:]]
        ours = [line for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "01"]
        return any(line[5].startswith("02:") for line in ours)  # a keepalive is pending

    with closing(RemoteStore([server.address], token=TOKEN, deadline_seconds=20.0)) as idle:
        idle.read(np.array([1]), Rows.empty(1, LAYOUT))
        wait_until(probed, "a keepalive on an idle connection")


def test_no_connection_is_left_to_a_dead_socket(server: Server) -> None:
    for _ in range(50):
        connection = wire.connect(server.address)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        wire.send(connection, SMALL_CALL[:80])
        connection.close()
    wait_until(lambda: len(os.listdir(f"/proc/{server.process_id}/fd")) < 60, "the end of reset connections")
    wait_until(lambda: ask_status(server.address, token=TOKEN)["connections"] == 0, "the end of their exchanges")
