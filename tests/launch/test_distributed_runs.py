"""Real workers, servers and a planner end with the bytes of unplanned training, however they are started or delayed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ports import free_port
from run_results import dense_half, num_steps_done, rows_in_folders, rows_on_servers
from warm_commands import Command, Commands

from foresee.run.build import open_log, table_layout
from foresee.run.config_file import load_run
from foresee.run.folder import open_run
from foresee.store.layout import write_layout
from waiting import wait_until

NUM_STEPS = 25


def train_unplanned(commands: Commands, run_file: Path, *settings: str) -> Path:
    """Started by `foresee train`; rows on disk. Returns the run folder."""
    run = run_file.parent / "unplanned"
    options = [word for it in ("cache.planner=none", f"run={run}", *settings) for word in ("--set", it)]
    code, text = commands.run("train", run_file, *options)
    assert code == 0, text
    assert "done: " in text
    assert "AUC" in text
    return run


class ByHand:
    """Servers in memory and a planner, as a person on a cluster would start them."""

    def __init__(self, commands: Commands, run_file: Path, settings: list[str]) -> None:
        folder = run_file.parent
        config = load_run(run_file, settings)
        self.run_file, self.settings = run_file, [word for it in settings for word in ("--set", it)]
        self.run = config.run
        write_layout(folder / "layout.json", table_layout(config, open_log(config)))
        ports = [folder / "server-0", folder / "server-1", folder / "planner"]
        for shard in range(2):
            commands.start(
                "serve", "--layout", folder / "layout.json", "--shard", shard, "--num-shards", 2,
                "--port-file", ports[shard],
            )  # fmt: skip
        self.planner = commands.start("plan-server", run_file, *self.settings, "--port-file", ports[2])
        wait_until(lambda: all(port.exists() for port in ports), "the start of servers and planner")
        *self.servers, self.planner_address = [f"grpc://127.0.0.1:{port.read_text().strip()}" for port in ports]

    def worker_arguments(self) -> list[str]:
        servers = [word for address in self.servers for word in ("--server", address)]
        return ["worker", str(self.run_file), *self.settings, *servers, "--planner", self.planner_address]

    def start_workers(self, commands: Commands) -> list[Command]:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        meeting["GLOO_SOCKET_IFNAME"] = "lo"
        return [
            commands.start(*self.worker_arguments(), environment={**meeting, "RANK": str(rank)}) for rank in range(2)
        ]


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "sgd"])
def test_planned_equals_unplanned_with_real_processes(commands: Commands, run_file: Path, optimizer: str) -> None:
    setting = f"tables.optimizer.name={optimizer}"
    unplanned = train_unplanned(commands, run_file, setting)
    hands = ByHand(commands, run_file, [setting, "cache.planner=lookahead", "train.evaluate_every_steps=10"])
    for worker in hands.start_workers(commands):
        assert commands.wait(worker) == 0, worker.text()
    assert rows_on_servers(hands.servers) == rows_in_folders(unplanned)
    assert dense_half(hands.run, NUM_STEPS) == dense_half(unplanned, NUM_STEPS)
    commands.end_all()


def test_a_stopped_run_goes_on_and_ends_with_the_same_bytes(commands: Commands, run_file: Path) -> None:
    """Rows on their way between workers are part of the commit in the middle."""
    unplanned = train_unplanned(commands, run_file)
    code, text = commands.run("train", run_file, "--stop-after", 11)
    assert code == 0, text
    assert f"stopped after 11 of {NUM_STEPS} steps" in text
    code, text = commands.run("train", run_file, "--resume")
    assert code == 0, text
    run = run_file.parent / "run"
    assert rows_in_folders(run) == rows_in_folders(unplanned)
    assert dense_half(run, NUM_STEPS) == dense_half(unplanned, NUM_STEPS)
    code, text = commands.run("evaluate", run, "--json")
    assert code == 0, text
    assert f'"step": {NUM_STEPS}' in text
    code, text = commands.run("export", run, "--out", run_file.parent / "exported")
    assert code == 0, text


@pytest.mark.parametrize("placement", ["location_aware", "herald"])
def test_samples_are_placed_as_if_the_run_had_never_stopped(commands: Commands, run_file: Path, placement: str) -> None:
    """Placement looks at who holds what: after a stop it has to see what it would have seen."""
    settings = ["--set", f"distributed.placement={placement}", "--set", "cache.rows=60"]
    once = run_file.parent / "once"
    code, text = commands.run("train", run_file, *settings, "--set", f"run={once}")
    assert code == 0, text
    code, text = commands.run("train", run_file, *settings, "--stop-after", 9)
    assert code == 0, text
    for stop in (["--stop-after", 16], []):
        code, text = commands.run("train", run_file, *settings, "--resume", *stop)
        assert code == 0, text
    run = run_file.parent / "run"
    assert rows_in_folders(run) == rows_in_folders(once)
    assert dense_half(run, NUM_STEPS) == dense_half(once, NUM_STEPS)


@pytest.mark.slow
def test_slow_parts_delay_but_never_corrupt(commands: Commands, run_file: Path) -> None:
    unplanned = train_unplanned(commands, run_file, "train.epochs=4")
    run, num_steps = run_file.parent / "run", 4 * NUM_STEPS
    launched = commands.start("train", run_file, "--set", "train.epochs=4")
    wait_until(lambda: "plan-server" in launched.children(), "the start of the planner")
    pause(launched, "plan-server")
    wait_until(lambda: "worker1" in launched.children(), "the start of the workers")
    pauses = ((1, "worker1", 5.0), (6, "serve0", 1.0), (12, "plan-server", 1.0), (18, "worker0", 1.0))
    for step, name, seconds in pauses:
        wait_until(lambda step=step: num_steps_done(run) >= step, f"step {step}")  # type: ignore[misc]
        assert num_steps_done(run) < num_steps, "the run was over before it could be disturbed"
        pause(launched, name, seconds)
    assert commands.wait(launched) == 0, launched.text()
    assert rows_in_folders(run) == rows_in_folders(unplanned)
    assert dense_half(run, num_steps) == dense_half(unplanned, num_steps)


def pause(launched: Command, name: str, seconds: float = 1.0) -> None:
    process_id = launched.children()[name]
    os.kill(process_id, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(process_id, signal.SIGCONT)


@pytest.mark.slow
def test_workers_run_under_torchrun(commands: Commands, run_file: Path) -> None:
    hands = ByHand(commands, run_file, [])
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "foresee"]
    done = subprocess.run(
        [*command, *hands.worker_arguments()], capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"done: {NUM_STEPS} steps" in done.stdout
    assert open_run(hands.run).distributed.workers == 2
    commands.end_all()
