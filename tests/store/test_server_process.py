"""Servers that die, hang, stop, refuse, or start again: an error names them, and nothing stays behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from remote_servers import Server, Servers
from typer.testing import CliRunner

from foresee.errors import ConfigError, ForeseeError, StoreError, StoreUnavailableError, UnavailableError
from foresee.store.contract import Rows
from foresee.store.layout import Table, read_layout, write_layout
from foresee.store.remote import RemoteStore, link
from foresee.store.remote.opening import ask_status
from foresee.store.rpc.endpoint import Endpoint
from foresee.store.rpc.security import Security, check_address, read_token
from foresee.testing.store_suite import SUITE_LAYOUT, assert_same, ids, initial_rows, random_rows, read_rows
from foresee.tools.cli.serve import serve, status
from waiting import wait_until

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def _none_left(servers: Servers) -> Iterator[None]:
    yield
    servers.end_all()


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is busy is not asked again: its refusal is raised at once, and no deadline has to be short."""
    monkeypatch.setattr(link, "FIRST_PAUSE_SECONDS", 1000.0)


def open_store(processes: list[Server], deadline_seconds: float = 20.0) -> RemoteStore:
    return RemoteStore([process.address for process in processes], deadline_seconds=deadline_seconds)


class Proxy:
    """Passes bytes on between a client and a server until it is told to cut every connection."""

    def __init__(self, address: str) -> None:
        self._target = int(address.rsplit(":", 1)[1])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        for each in self._sockets:
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [near, far]
            for source, sink in ((near, far), (far, near)):
                thread = threading.Thread(target=self._pass_on, args=(source, sink))
                thread.start()
                self._threads.append(thread)

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        try:
            while piece := source.recv(1 << 16):
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_a_killed_server_is_named(servers: Servers) -> None:
    processes = servers.start_all(SUITE_LAYOUT, 2)
    store = open_store(processes)
    read_rows(store, ids(1, 2))
    servers.end(processes[1])
    name = re.escape(processes[1].address)
    with pytest.raises(StoreUnavailableError, match=rf"server {name} cannot be reached for a read"):
        read_rows(store, ids(1, 2))
    with pytest.raises(StoreUnavailableError, match=rf"server {name} cannot be reached for a write"):
        store.write(ids(1), random_rows(np.random.default_rng(1), 1, SUITE_LAYOUT, 1))
    with pytest.raises(StoreUnavailableError, match=rf"server {name} cannot be reached for the commit of step 4"):
        store.commit(4)
    assert len(read_rows(store, ids(2))) == 1, "the other server goes on"
    store.close()


def test_a_server_killed_while_a_read_is_parked_is_named(servers: Servers) -> None:
    process = servers.start(SUITE_LAYOUT)
    store = RemoteStore([process.address], worker=0, num_workers=1, deadline_seconds=20.0)
    out, version = Rows.empty(1, SUITE_LAYOUT), np.array([5], np.int32)
    with ThreadPoolExecutor(1) as background:
        waiting = background.submit(store.read_guarded, ids(1), version, 0, out)
        wait_until(lambda: ask_status(process.address)["parked_now"] == 1, "parking")
        servers.end(process)
        with pytest.raises(StoreError, match=re.escape(process.address)):
            waiting.result()
    store.close()


def test_a_slow_server_delays_and_a_hanging_one_is_named(servers: Servers) -> None:
    process = servers.start(SUITE_LAYOUT)
    patient, hasty = open_store([process]), open_store([process])
    source = random_rows(np.random.default_rng(2), 3, SUITE_LAYOUT, 1)
    patient.write(ids(1, 2, 3), source)
    read_rows(hasty, ids(1))
    process.signal(signal.SIGSTOP)
    hasty._links[0]._deadline_seconds = 0.5  # only while the server is stopped: a slow machine may need longer
    with ThreadPoolExecutor(1) as background:
        slow = background.submit(read_rows, patient, ids(1, 2, 3))
        with pytest.raises(
            StoreUnavailableError, match=rf"server {re.escape(process.address)} did not answer a read within"
        ):
            read_rows(hasty, ids(1))
        assert not slow.done()
        process.signal(signal.SIGCONT)
        assert_same(slow.result(), source)
    hasty._links[0]._deadline_seconds = 20.0
    assert len(read_rows(hasty, ids(1))) == 1, "a new connection works"
    patient.close()
    hasty.close()


def test_a_dropped_connection_is_made_again(servers: Servers) -> None:
    process = servers.start(SUITE_LAYOUT)
    proxy = Proxy(process.address)
    store = RemoteStore([proxy.address], worker=0, num_workers=1, deadline_seconds=20.0)
    rng = np.random.default_rng(3)
    for step in range(3):
        source = random_rows(rng, 5, SUITE_LAYOUT, step + 1)
        store.write_step(step, ids(1, 2, 3, 4, 5), source)
        proxy.cut()
        assert_same(read_rows(store, ids(1, 2, 3, 4, 5)), source)
        proxy.cut()
    wait_until(lambda: ask_status(process.address)["watermarks"] == [2], "the last write")
    store.close()
    proxy.close()


def test_a_server_that_was_started_again_is_not_the_same(servers: Servers, tmp_path: Path) -> None:
    process = servers.start(SUITE_LAYOUT, folder=str(tmp_path / "tables"))
    proxy = Proxy(process.address)
    store = RemoteStore([proxy.address], deadline_seconds=20.0)
    store.write(ids(1), random_rows(np.random.default_rng(4), 1, SUITE_LAYOUT, 1))
    store.commit(7)
    store.write(ids(1), random_rows(np.random.default_rng(4), 1, SUITE_LAYOUT, 2))
    servers.end(process)
    again = servers.start(SUITE_LAYOUT, folder=str(tmp_path / "tables"))
    proxy._target = int(again.address.rsplit(":", 1)[1])
    with pytest.raises(StoreUnavailableError, match=r"was started again and holds the state after step 7; resume"):
        read_rows(store, ids(1))
    store.close()
    proxy.close()


def test_sigterm_finishes_and_exits_with_zero(servers: Servers, tmp_path: Path) -> None:
    process = servers.start(SUITE_LAYOUT, folder=str(tmp_path / "tables"))
    store = RemoteStore([process.address], worker=0, num_workers=1, deadline_seconds=20.0)
    source = random_rows(np.random.default_rng(5), 2, SUITE_LAYOUT, 1)
    store.write(ids(1, 2), source)
    store.commit(1)
    out, version = Rows.empty(1, SUITE_LAYOUT), np.array([5], np.int32)
    with ThreadPoolExecutor(1) as background:
        waiting = background.submit(store.read_guarded, ids(1), version, 0, out)
        wait_until(lambda: ask_status(process.address)["parked_now"] == 1, "parking")
        assert servers.end(process, signal.SIGTERM) == 0
        with pytest.raises(StoreUnavailableError, match=r"server grpc://.*it is stopping"):
            waiting.result()
    assert process.output().splitlines()[-1] == "stopped"
    assert "Traceback" not in process.output()
    store.close()
    again = open_store([servers.start(SUITE_LAYOUT, folder=str(tmp_path / "tables"))])
    assert again.committed_step == 1
    assert_same(read_rows(again, ids(1, 2)), source)
    again.close()


def test_rows_over_the_limit_come_in_parts(servers: Servers) -> None:
    process = servers.start(SUITE_LAYOUT, limits={"rows_per_request_max": 100})
    store = open_store([process])
    rows = np.arange(SUITE_LAYOUT.num_rows, dtype=np.int64)
    assert_same(read_rows(store, rows), initial_rows(SUITE_LAYOUT, rows))
    wait_until(lambda: ask_status(process.address)["requests"] == 11, "eleven requests")
    source = random_rows(np.random.default_rng(9), len(rows), SUITE_LAYOUT, 1)
    store.write(rows, source)
    assert_same(read_rows(store, rows), source)
    # A client that does not keep to it is refused, and its connection goes on.
    store._links[0].rows_per_request_max = 1000
    with pytest.raises(StoreError, match=r"a request of 1,000 rows is over the limit of 100 rows; ask in parts"):
        read_rows(store, rows[:1000])
    assert len(read_rows(store, rows[:100])) == 100
    store.close()


@pytest.mark.usefixtures("one_try")
def test_bytes_in_flight_are_limited(servers: Servers) -> None:
    process = servers.start(SUITE_LAYOUT, limits={"bytes_in_flight_max": 4000})
    large, small = open_store([process]), open_store([process])
    with pytest.raises(StoreError, match=r"would be over the limit of 4,000 bytes in flight"):
        read_rows(large, np.arange(1000, dtype=np.int64))
    with pytest.raises(StoreError, match=r"would be over the limit of 4,000 bytes in flight"):
        large.write(np.arange(1000), random_rows(np.random.default_rng(6), 1000, SUITE_LAYOUT, 1))
    assert len(read_rows(small, ids(1, 2, 3))) == 3
    # The server sends a reply before it releases its bytes.
    wait_until(lambda: ask_status(process.address)["bytes_in_flight"] == 0, "the release of all bytes")
    large.close()
    small.close()


@pytest.mark.usefixtures("one_try")
def test_connections_are_limited(servers: Servers) -> None:
    process = servers.start(SUITE_LAYOUT, limits={"connections_max": 1})
    first, second = open_store([process]), open_store([process])
    read_rows(first, ids(1))
    with pytest.raises(StoreError, match="all 1 connections are taken"):
        read_rows(second, ids(1))
    assert len(read_rows(first, ids(1, 2))) == 2, "who is inside is served"
    first.close()
    wait_until(lambda: ask_status(process.address)["connections"] == 0, "the end of the first connection")
    assert len(read_rows(second, ids(1))) == 1
    second.close()


def test_a_wrong_token_is_refused_at_once(servers: Servers) -> None:
    process = servers.start(SUITE_LAYOUT, token=TOKEN)
    for wrong in (None, "f" * 32, TOKEN[:-1], TOKEN + "0"):
        with pytest.raises(StoreError, match=rf"server {re.escape(process.address)} refuses the token") as caught:
            RemoteStore([process.address], token=wrong, deadline_seconds=20.0)
        assert TOKEN not in str(caught.value)
        assert not isinstance(caught.value, UnavailableError), "a person's mistake: starting again would not help"
    store = RemoteStore([process.address], token=TOKEN)
    assert len(read_rows(store, ids(1))) == 1
    # One that opens a connection with another token gets no further.
    first = store._links[0]
    first.endpoint = replace(first.endpoint, token="f" * 32)
    with pytest.raises(StoreError, match="refuses the token"):
        store.write(ids(1), random_rows(np.random.default_rng(7), 1, SUITE_LAYOUT, 1))
    store.close()
    assert TOKEN not in process.output()


def test_tls(servers: Servers, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    process = servers.start(SUITE_LAYOUT, certificate=certificate.read_text(), key=key.read_text(), token=TOKEN)
    store = RemoteStore([process.address], token=TOKEN, tls_root_certificate=certificate.read_bytes())
    source = random_rows(np.random.default_rng(8), 2, SUITE_LAYOUT, 1)
    store.write(ids(1, 2), source)
    assert_same(read_rows(store, ids(1, 2)), source)
    store.close()
    with pytest.raises(StoreError, match=re.escape(process.address)):
        RemoteStore([process.address], token=TOKEN, deadline_seconds=2.0)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "example.org"])
def test_other_machines_need_tls_and_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match=rf"listen on {re.escape(host)}.*without TLS and a token"):
        check_address(host, Security())
    with pytest.raises(ConfigError, match="without TLS;"):
        check_address(host, Security(token=TOKEN))
    with pytest.raises(ConfigError, match="without a token;"):
        check_address(host, Security(certificate=b"c", key=b"k"))
    check_address(host, Security(certificate=b"c", key=b"k", token=TOKEN))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
def test_this_machine_needs_nothing(host: str) -> None:
    check_address(host, Security())


def test_a_client_does_not_talk_in_the_clear_to_others() -> None:
    with pytest.raises(ConfigError, match=r"in the clear; use grpc\+tls://"):
        RemoteStore(["grpc://10.1.2.3:4444"])
    for wrong in ("http://127.0.0.1:1", "127.0.0.1", "grpc://:5", "grpc://127.0.0.1:x"):
        with pytest.raises(ConfigError, match="is not the address of a server"):
            Endpoint.parse(wrong, None, None)
    assert Endpoint.parse("localhost:12", None, None).address == "grpc://localhost:12"


def test_tokens_come_from_a_private_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"can be read by others \(mode 0640\); run: chmod 600"):
        read_token(path)
    path.chmod(0o600)
    assert read_token(path, {}) == TOKEN
    assert read_token(None, {"FORESEE_TOKEN": TOKEN}) == TOKEN
    assert read_token(None, {}) is None
    with pytest.raises(ConfigError, match="at least 16 printable") as caught:
        read_token(None, {"FORESEE_TOKEN": "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert TOKEN not in repr(Security(token=TOKEN))


def test_servers_have_to_belong_together(servers: Servers) -> None:
    first, second = servers.start_all(SUITE_LAYOUT, 2)
    other = servers.start(replace(SUITE_LAYOUT, seed=12), shard=1, num_shards=2)
    for addresses, sentence in (
        ([first.address], r"is shard 0 of 2, but 1 servers were given"),
        ([first.address, first.address.replace("127.0.0.1", "localhost")], r"are both shard 0"),
        ([first.address, other.address], rf"server {other.address} has seed 12, server {first.address} has 11"),
    ):
        with pytest.raises(StoreError, match=sentence):
            RemoteStore(addresses)
    with pytest.raises(StoreError, match=rf"server {first.address} has width 5, this run wants 6"):
        RemoteStore([first.address, second.address], replace(SUITE_LAYOUT, width=6))
    with pytest.raises(StoreError, match=r"has the tables user \(1000\), item \(7\); this run wants user \(1007\)"):
        RemoteStore([first.address, second.address], replace(SUITE_LAYOUT, tables=(Table("user", 1007),)))


def test_shards_with_different_commits_are_refused(servers: Servers) -> None:
    processes = servers.start_all(SUITE_LAYOUT, 2)
    store = open_store(processes)
    store._links[0].commit(3, 10.0)
    with pytest.raises(StoreError, match=rf"different steps \({processes[0].address}: 3, {processes[1].address}: 0\)"):
        open_store(processes)
    store.commit(3)
    store.close()
    again = open_store(processes)
    assert again.committed_step == 3
    again.close()


def test_the_command_serves_and_shows_its_state(tmp_path: Path) -> None:
    """`foresee serve` as a person starts it, and `foresee status` for a person and for a monitor."""
    write_layout(tmp_path / "layout.json", SUITE_LAYOUT)
    assert read_layout(tmp_path / "layout.json") == SUITE_LAYOUT
    command = "import typer; from foresee.tools.cli.serve import serve; typer.run(serve)"
    arguments = ["--layout", "layout.json", "--folder", "tables", "--port-file", "port"]
    process = subprocess.Popen(
        [sys.executable, "-c", command, *arguments], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: (tmp_path / "port").exists() or process.poll() is not None, "the start")
        address = f"grpc://127.0.0.1:{(tmp_path / 'port').read_text().strip()}"
        store = RemoteStore([address], worker=0, num_workers=1)
        read_rows(store, ids(1, 2, 3))
        store.close()
        shown = run_command("status", [address])
        assert re.search(r"shard 0 of 1, 1,007 rows of 32 bytes, committed step 0", shown)
        assert "3 rows read" in shown
        assert "applied up to step: worker 0: -1" in shown
        numbers = json.loads(run_command("status", [address, "--json"]))
        assert (numbers["rows_read"], numbers["num_rows"], numbers["watermarks"]) == (3, 1007, [-1])
        process.terminate()
        output, errors = process.communicate(timeout=30)
        assert process.returncode == 0, errors
        needed, first, last = output.decode().splitlines()
        assert "memory" in needed
        assert first == f"serving shard 0 of 1 (1,007 rows, step 0) on {address}"
        assert last == "stopped"
        assert not (tmp_path / "port").exists()
    finally:
        process.kill()
        process.communicate()


def test_a_server_ends_with_its_launcher(tmp_path: Path) -> None:
    """Even if the launcher is killed and cannot say goodbye."""
    write_layout(tmp_path / "layout.json", SUITE_LAYOUT)
    launch = (
        "import os, subprocess, sys, time;"
        "code = 'import typer; from foresee.tools.cli.serve import serve; typer.run(serve)';"
        "subprocess.Popen([sys.executable, '-c', code, '--layout', 'layout.json', '--port-file', 'port',"
        " '--parent', str(os.getpid())], stdout=open('log', 'w')); time.sleep(100)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", launch], cwd=tmp_path)
    try:
        wait_until((tmp_path / "port").exists, "the start")
    finally:
        launcher.kill()
        launcher.wait()
    wait_until(lambda: (tmp_path / "log").read_text().endswith("stopped\n"), "the end of the server")
    assert not (tmp_path / "port").exists()


def run_command(name: str, arguments: list[str]) -> str:
    app = typer.Typer()
    commands: dict[str, Callable[..., None]] = {"serve": serve, "status": status}
    app.command()(commands[name])
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, ForeseeError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_refuses_with_sentences(tmp_path: Path) -> None:
    write_layout(tmp_path / "layout.json", SUITE_LAYOUT)
    layout = ["--layout", str(tmp_path / "layout.json")]
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o644)
    (tmp_path / "bad.json").write_text('{"tables": []}')
    for arguments, sentence in (
        ([], "a server has to know its tables"),
        ([*layout, "--host", "0.0.0.0"], "without TLS and a token"),
        ([*layout, "--token-file", str(tmp_path / "token")], "can be read by others"),
        ([*layout, "--tls-key", str(tmp_path / "token")], "give both"),
        ([*layout, "--shard", "2", "--num-shards", "2"], "there is no shard 2 of 2 shards"),
        (["--layout", str(tmp_path / "bad.json")], "is not a layout"),
        (["--layout", str(tmp_path / "none.json")], "cannot be read"),
    ):
        with pytest.raises(ForeseeError, match=sentence):
            run_command("serve", arguments)
    with pytest.raises(StoreUnavailableError, match=r"server grpc://127.0.0.1:1 cannot be reached"):
        run_command("status", ["grpc://127.0.0.1:1", "--timeout", "2"])


def test_a_folder_of_another_shard_is_refused(servers: Servers, tmp_path: Path) -> None:
    from foresee.store.server.shard import Share, disk_shard

    disk_shard(tmp_path / "tables", SUITE_LAYOUT, Share(1, 2)).close()
    reopened = disk_shard(tmp_path / "tables", None, Share(1, 2))
    assert reopened.layout == SUITE_LAYOUT
    with pytest.raises(StoreError, match="row 4 is not on shard 1 of 2"):
        reopened.read(ids(3, 4), Rows.empty(2, SUITE_LAYOUT))
    reopened.close()
    with pytest.raises(StoreError, match=r"holds shard 1 of 2, this server is to be shard 0 of 2"):
        disk_shard(tmp_path / "tables", SUITE_LAYOUT, Share(0, 2))
    with pytest.raises(StoreError, match="holds other tables"):
        disk_shard(tmp_path / "tables", replace(SUITE_LAYOUT, seed=3), Share(1, 2))
    with pytest.raises(StoreError, match="give a layout file"):
        disk_shard(tmp_path / "new", None, Share(1, 2))


def test_no_process_stays(servers: Servers) -> None:
    processes = servers.start_all(SUITE_LAYOUT, 2)
    store = open_store(processes)
    read_rows(store, ids(1, 2))
    store.close()
    for process in processes:
        assert servers.end(process, signal.SIGTERM) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(process.process_id, 0)
