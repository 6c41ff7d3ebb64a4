"""Parts that a person starts one by one: in any order, with the file of `foresee layout`; mistakes are sentences."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import pytest
from ports import free_ports
from run_results import dense_half, num_steps_done
from warm_commands import SPEECHLESS, Command, Commands

from foresee.errors import INPUT_CODE, UNAVAILABLE_CODE, StoreError
from foresee.store.remote.opening import await_servers
from foresee.store.rpc.endpoint import Endpoint
from waiting import wait_until

TOKEN, OTHER_TOKEN = "a-token-of-some-length", "another-token-of-some-length"


def start_worker(
    commands: Commands, run_file: Path, servers: list[int], planner: int, *options: str, **environment: str
) -> Command:
    addresses = [word for port in servers for word in ("--server", f"grpc://127.0.0.1:{port}")]
    place = {"WORLD_SIZE": "1", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    return commands.start(
        "worker", run_file, "--set", "distributed.workers=1", *options, *addresses, "--planner", f"grpc://127.0.0.1:{planner}",
        environment={**place, "GLOO_SOCKET_IFNAME": "lo", **environment},
    )  # fmt: skip


def test_workers_wait_for_servers_and_planner(commands: Commands, run_file: Path) -> None:
    layout = run_file.parent / "layout.json"
    assert commands.run("layout", run_file, "--out", layout)[0] == 0
    first, second, planner = free_ports(3)
    worker = start_worker(commands, run_file, [first, second], planner)
    wait_until(lambda: f"waiting for server grpc://127.0.0.1:{first}, up to " in worker.text(), "a wait that is told")
    for shard, port in enumerate((first, second)):
        commands.start("serve", "--layout", layout, "--shard", shard, "--num-shards", 2, "--port", port)
    wait_until(lambda: f"waiting for planner grpc://127.0.0.1:{planner}, up to " in worker.text(), "the planner's wait")
    commands.start("plan-server", run_file, "--set", "distributed.workers=1", "--port", planner)
    assert commands.wait(worker) == 0, worker.text()
    assert dense_half(run_file.parent / "run", 25)
    commands.end_all()


def test_one_command_begins_a_run_and_goes_on_with_it(commands: Commands, run_file: Path) -> None:
    """An engine that starts a worker again knows nothing but its command."""
    layout, [port, planner] = run_file.parent / "layout.json", free_ports(2)
    assert commands.run("layout", run_file, "--out", layout)[0] == 0
    folder = ("--set", f"tables.folder={run_file.parent / 'shards'}")
    for stop_after, goes_on in ((10, "from the start"), (25, "from step 10 on")):
        shard = run_file.parent / "shards" / "shard-0"
        server = commands.start("serve", "--layout", layout, "--folder", shard, "--port", port)
        commands.start("plan-server", run_file, "--set", "distributed.workers=1", *folder, "--port", planner)
        again = ("--resume", "auto", "--stop-after", str(stop_after))
        worker = start_worker(commands, run_file, [port], planner, *folder, *again)
        assert commands.wait(worker) == 0, worker.text()
        assert goes_on in worker.text()
        server.signal(signal.SIGTERM)
        commands.wait(server)
        commands.end_all()
    assert num_steps_done(run_file.parent / "run") == 25


@pytest.mark.parametrize("lost", ["server", "worker"])
def test_whoever_loses_another_ends_with_the_code_for_that(commands: Commands, run_file: Path, lost: str) -> None:
    """As a launcher sees it, without a word that it could go by."""
    layout, [port, planner, meeting] = run_file.parent / "layout.json", free_ports(3)
    together = ("--set", "distributed.workers=2", "--set", "train.epochs=400")
    assert commands.run("layout", run_file, "--out", layout)[0] == 0
    said = {SPEECHLESS: "1"}
    server = commands.start("serve", "--layout", layout, "--port", port, environment=said)
    commands.start("plan-server", run_file, *together, "--port", planner, environment=said)
    workers = [
        start_worker(
            commands, run_file, [port], planner, *together,
            WORLD_SIZE="2", RANK=str(rank), MASTER_PORT=str(meeting), **said,
        )
        for rank in range(2)
    ]  # fmt: skip
    wait_until(lambda: num_steps_done(run_file.parent / "run") > 3, "a few steps")
    gone, left = (server, workers) if lost == "server" else (workers[1], workers[:1])
    gone.signal(signal.SIGKILL)
    for worker in left:
        assert commands.wait(worker) == UNAVAILABLE_CODE, worker.text()
        assert "foresee: x\n" in worker.text()
    commands.end_all()


@pytest.mark.parametrize("known", [True, False])
def test_a_server_that_never_comes_is_a_sentence(tmp_path: Path, known: bool) -> None:
    """One that has an address, and one that was to write it into a file."""
    said: list[str] = []
    address = f"grpc://127.0.0.1:{free_ports(1)[0]}" if known else f"file://{tmp_path}/address"
    endpoint = Endpoint.parse(address, None, None)
    with pytest.raises(StoreError, match=r"did not come up within 1 s \(.*\); start it with `foresee serve`") as caught:
        await_servers([endpoint], said.append, patience_seconds=1.0)
    assert caught.value.exit_code == INPUT_CODE, "no reason to start anything again"
    assert len(said) == 1


def test_a_server_that_is_away_is_no_mistake_of_a_person(commands: Commands) -> None:
    code, text = commands.run("status", f"grpc://127.0.0.1:{free_ports(1)[0]}")
    assert code == UNAVAILABLE_CODE, text
    assert "cannot be reached" in text
    assert commands.run("status", "grpc://nowhere")[0] == INPUT_CODE


def test_a_wrong_token_is_a_sentence_at_once(commands: Commands, run_file: Path) -> None:
    layout, port_file = run_file.parent / "layout.json", run_file.parent / "port"
    assert commands.run("layout", run_file, "--out", layout)[0] == 0
    commands.start("serve", "--layout", layout, "--port-file", port_file, environment={"FORESEE_TOKEN": TOKEN})
    wait_until(port_file.exists, "the start of a server")
    worker = start_worker(commands, run_file, [int(port_file.read_text())], 1, FORESEE_TOKEN=OTHER_TOKEN)
    assert commands.wait(worker) == 2
    assert "refuses the token; give the one it was started with" in worker.text()
    assert "Traceback" not in worker.text()
    assert not (run_file.parent / "run").exists()
    commands.end_all()


def test_a_port_that_is_taken_is_a_sentence(commands: Commands, run_file: Path) -> None:
    layout = run_file.parent / "layout.json"
    assert commands.run("layout", run_file, "--out", layout)[0] == 0
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        for command in (["serve", "--layout", layout], ["plan-server", run_file]):
            code, text = commands.run(*command, "--port", port)
            assert code == 2, text
            assert f"cannot listen on 127.0.0.1:{port}" in text
            assert "choose another port" in text
            assert "Traceback" not in text


def test_the_layout_of_a_run_is_written_for_its_servers(commands: Commands, run_file: Path) -> None:
    """DeepFM's rows are one wider than its dim: who types the file by hand has to know that."""
    layout, deepfm = run_file.parent / "layout.json", ["--set", "model.name=deepfm", "--set", "model.options={}"]
    code, text = commands.run("layout", run_file, *deepfm, "--out", layout)
    assert code == 0, text
    assert "each of 5 values (deepfm makes that of model.dim, which is 4)" in text
    written = json.loads(layout.read_text())
    assert written["width"] == 5
    assert commands.run("layout", run_file, *deepfm, "--out", layout)[0] == 0, "the same again"
    code, text = commands.run("layout", run_file, "--out", layout)
    assert code == 2
    assert "exists and is not the layout of this run; remove it, or give another name" in text
    assert json.loads(layout.read_text()) == written
    code, text = commands.run("layout", run_file, "--out", run_file.parent / "no such folder" / "layout.json")
    assert code == 2
    assert "cannot be written (No such file or directory)" in text
