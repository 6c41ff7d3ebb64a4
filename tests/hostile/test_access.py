"""Where servers may listen, and a token that is nowhere to be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from remote_servers import Servers
from typer.testing import CliRunner

from foresee.data import tiny
from foresee.engine.header import make_header
from foresee.engine.planner_service.server import PlannerServer
from foresee.errors import ConfigError, ForeseeError
from foresee.store.contract import Rows
from foresee.store.layout import Layout, Table, write_layout
from foresee.store.remote import RemoteStore
from foresee.store.remote.opening import ask_status
from foresee.store.rpc.endpoint import Endpoint
from foresee.store.rpc.security import Security, check_address, location, read_token
from foresee.store.server import EmbeddingServer, Share, memory_shard
from foresee.tools.cli.commands import COMMANDS, app, load

TOKEN = "5ecre7-5ecre7-5ecre7-5ecre7-5ecre7"
LAYOUT = Layout(tables=(Table("t", 50),), width=4, state_width=1, optimizer="x")
ELSEWHERE = ("0.0.0.0", "::", "[::]", "0", "10.1.2.3", "fe80::1", "example.org", "some-host", "127.0.0.1.nip.io",
             "2130706433", "0x7f000001", "127.1", "localhost.", "Localhost", "::ffff:8.8.8.8")  # fmt: skip
NO_ADDRESS = ("", " ", "unix:/tmp/socket", "unix:socket", "/tmp/socket", "127.0.0.1:4444", "*", "a b", "grpc://127.0.0.1",
              "127.0.0.1/../x", "x" * 300, "[::1", "dns:///localhost", "vsock:1:2", "a\nb", "@abstract")  # fmt: skip


@pytest.mark.parametrize("host", ELSEWHERE)
def test_no_server_listens_for_others_without_tls_and_token(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="without TLS and a token"):
        EmbeddingServer(memory_shard(LAYOUT, Share()), host=host)
    with pytest.raises(ConfigError, match="without a token;"):
        check_address(host, Security(certificate=b"c", key=b"k"))
    stream = tiny(tmp_path / "log", num_samples=100).batches(batch_size=10)
    with pytest.raises(ConfigError, match="without TLS and a token"):
        PlannerServer(stream, lambda step: make_header(stream, planner="none", cache_rows=100), host=host)


@pytest.mark.parametrize("host", NO_ADDRESS)
def test_what_is_no_address_is_refused_whatever_the_security(host: str) -> None:
    for security in (Security(), Security(certificate=b"c", key=b"k", token=TOKEN)):
        with pytest.raises(ConfigError, match="neither the name of a machine nor an IP address"):
            check_address(host, security)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.0.0.2"])
def test_this_machine_in_every_form(host: str) -> None:
    server = EmbeddingServer(memory_shard(LAYOUT, Share()), host=host)
    try:
        assert ask_status(server.address)["shard"] == 0
    finally:
        server.stop(1.0)
        server.shutdown()


def test_addresses_are_written_as_grpc_wants_them() -> None:
    assert location("::", 5, Security(certificate=b"c")) == location("[::]", 5, Security(certificate=b"c"))
    assert location("::1", 5, Security()) == "grpc://[::1]:5"
    assert location("host", 5, Security()) == "grpc://host:5"


@pytest.mark.parametrize("command", ["serve", "plan-server"])
def test_the_command_refuses_before_anything_listens(command: str, tmp_path: Path) -> None:
    write_layout(tmp_path / "layout.json", LAYOUT)
    tiny(tmp_path / "log", num_samples=100)
    (tmp_path / "run.yaml").write_text("log: log\nrun: run\ncache: {rows: 50}\ntrain: {batch_size: 10}\n")
    first = {"serve": ["--layout", str(tmp_path / "layout.json")], "plan-server": [str(tmp_path / "run.yaml")]}
    outcome = CliRunner().invoke(app, [command, *first[command], "--host", "0.0.0.0"])
    assert isinstance(outcome.exception, ConfigError)
    assert "give --tls-certificate, --tls-key and --token-file, or listen on 127.0.0.1" in str(outcome.exception)


@pytest.mark.parametrize(
    ("content", "mode", "sentence"),
    [
        (TOKEN.encode(), 0o644, "can be read by others"),
        (TOKEN.encode(), 0o604, "can be read by others"),
        (TOKEN.encode(), 0o660, "can be read by others"),
        (b"", 0o600, "at least 16 printable"),
        (b"short", 0o600, "at least 16 printable"),
        (TOKEN.encode() + b"\n" + TOKEN.encode(), 0o600, "on one line"),
        (b"\xff" * 40, 0o600, "cannot be read"),
        (bytes(40), 0o600, "printable"),
        (b"x" * 10_000_000, 0o600, "more than"),
    ],
)
def test_token_files(tmp_path: Path, content: bytes, mode: int, sentence: str) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=sentence) as caught:
        read_token(path)
    assert TOKEN not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_token_file_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(ConfigError):
            read_token(path)


def test_no_command_takes_a_token_as_an_argument() -> None:
    """Arguments are in everyone's list of processes."""
    commands = {name: load(name) for name in COMMANDS}
    taken = [
        (name, parameter.name)
        for name, command in commands.items()
        for parameter in command.params
        if "token" in str(parameter.name) and parameter.name != "token_file"
    ]
    assert taken == []
    assert any(p.name == "token_file" for p in commands["serve"].params), "the test looks at the right place"


def test_the_token_is_in_no_line_anywhere(servers: Servers, tmp_path: Path) -> None:
    server = servers.start(LAYOUT, token=TOKEN)
    said = [repr(Security(token=TOKEN)), repr(Endpoint.parse(server.address, TOKEN, None))]
    store = RemoteStore([server.address], token=TOKEN, worker=0, num_workers=1)
    store.write(np.array([1]), Rows.empty(1, LAYOUT))
    said.append(json.dumps(ask_status(server.address, token=TOKEN)))
    # Whatever a client can do wrong: the sentences and the server's own lines.
    with pytest.raises(ForeseeError) as caught:
        store._links[0].read(np.array([-5]), lambda begin, chunk: None)
    said += [str(caught.value), repr(caught.value)]
    with pytest.raises(ForeseeError) as caught:
        store.commit(10**12)
    said += [str(caught.value), repr(caught.value)]
    for other in ("x" * 34, None):
        with pytest.raises(ForeseeError) as caught:
            RemoteStore([server.address], token=other, deadline_seconds=5.0)
        said.append(str(caught.value))
    process_id = server.process_id
    said.append(Path(f"/proc/{process_id}/cmdline").read_text())
    store.close()
    servers.end(server)
    with pytest.raises(ForeseeError) as caught:
        RemoteStore([server.address], token=TOKEN, deadline_seconds=1.0)
    said += [str(caught.value), repr(caught.value.__cause__), server.output()]
    assert [line for line in said if TOKEN in line] == []


def test_the_token_of_the_environment_stays_out_of_tracebacks() -> None:
    """A process that fails with the variable set prints no part of it."""
    code = "from foresee.store.remote import RemoteStore; RemoteStore(['grpc://127.0.0.1:1'], deadline_seconds=0.5)"
    ended = subprocess.run(
        [sys.executable, "-c", code], env={"FORESEE_TOKEN": TOKEN}, capture_output=True, text=True, timeout=60
    )
    assert "StoreUnavailableError" in ended.stderr
    assert TOKEN not in ended.stderr + ended.stdout
