"""`foresee train --workers 2 --servers 2`: everything a distributed run needs, started and watched on one machine.

In: a configuration. Out: the run folder, as `worker` leaves it, and an exit code. Servers and planner come first, then
the workers, with ports the system chose; worker 0's progress is shown here. If any part fails, all are taken down and
it is said which one it was, with its last lines. The first Ctrl-C or SIGTERM asks the workers to commit and stop, the
second ends everything at once. However this ends, no process stays behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from rich.console import Console

from foresee.config import RunConfig
from foresee.engine import run_folder
from foresee.engine.local_shards import shard_folder, shard_folders
from foresee.engine.parts import build_model, open_log, plan_header, table_layout, train_stream
from foresee.engine.processes import LOST_ANOTHER_CODE, POLL_SECONDS, Part, Processes, culprit, send
from foresee.engine.progress import Display, make_display
from foresee.engine.relayed_display import relay
from foresee.engine.run_folder import CONFIG_FILE, RunFolder
from foresee.engine.stopping import StopSignals
from foresee.errors import ConfigError, InputError
from foresee.store.server.layout_file import write_layout

START_SECONDS = 300.0
"""Until servers and planner listen."""
FAREWELL_SECONDS = 700.0
"""Until workers that were asked to stop have committed: a little longer than a commit may take."""
CAUSE_SECONDS = 5.0
"""Until it shows which part failed first."""
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"


class _Failed(Exception):  # noqa: N818 - says who, not what
    def __init__(self, part: Part) -> None:
        self.part = part


class _Stopped(Exception):  # noqa: N818 - a signal came
    pass


def launch(
    config: RunConfig,
    *,
    resume: bool = False,
    replace: bool = False,
    stop_after: int | None = None,
    console: Console | None = None,
    display: Display | None = None,
) -> int:
    """Runs to the end; returns the exit code. What is wrong with the input is an InputError, before or during."""
    console = console or Console()
    check_can_launch(config)
    log = open_log(config)
    build_model(config, log)
    plan_header(config, log, train_stream(config, log))
    layout = table_layout(config, log)
    with (
        _folder(config, log.digest, resume=resume, replace=replace),
        _logs(RunFolder(config.run)) as logs,
        tempfile.TemporaryDirectory(prefix="foresee-") as scratch,
        StopSignals() as stop,
        Processes(logs) as processes,
        display or make_display(console) as display,
    ):
        write_layout(Path(scratch) / "layout.json", layout)
        launcher = _Launcher(config, processes, Path(scratch), display, stop)
        try:
            launcher.run(stop_after)
        except _Stopped:
            return launcher.stop_workers()
        except _Failed as failed:
            return _tell(failed.part)
    return 0


class _Launcher:
    """One launched run."""

    def __init__(
        self, config: RunConfig, processes: Processes, scratch: Path, display: Display, stop: StopSignals
    ) -> None:
        self._config, self._processes, self._scratch = config, processes, scratch
        self._display, self._stop = display, stop
        self._workers: list[Part] = []
        self._shown = 0

    def run(self, stop_after: int | None) -> None:
        """Until all workers have ended."""
        self._start_servers_and_planner()
        files = [*self._port_files(), self._scratch / "planner.port"]
        self._watch(lambda: all(file.exists() for file in files), START_SECONDS)
        *servers, planner = [f"grpc://127.0.0.1:{file.read_text().strip()}" for file in files]
        self._start_workers(servers, planner, stop_after)
        self._watch(lambda: all(part.code == 0 for part in self._workers), None)
        self._show()

    def stop_workers(self) -> int:
        """Lets the workers commit; what they cannot finish is given up."""
        asked = self._stop.received or signal.SIGTERM
        self._display.say("stopping after a commit; a second Ctrl-C ends everything at once")
        send(self._workers, signal.SIGTERM)
        deadline = time.monotonic() + FAREWELL_SECONDS
        while any(part.code is None for part in self._workers) and time.monotonic() < deadline:
            if any((part.code or 0) < 0 for part in self._workers):
                break  # it was ended before it could listen, and the others would wait for it
            self._show()
            time.sleep(POLL_SECONDS)
        self._show()
        if not self._workers or not all(part.code in (0, 128 + signal.SIGTERM) for part in self._workers):
            self._display.say("stopped before anything could be kept; everything since the last commit is given up")
        return 128 + asked

    def _start_servers_and_planner(self) -> None:
        config, num_servers = self._config, self._config.num_servers
        for shard, port_file in enumerate(self._port_files()):
            command = ["serve", "--layout", str(self._scratch / "layout.json"), "--shard", str(shard)]
            command += ["--num-shards", str(num_servers), "--port-file", str(port_file)]
            if config.tables.store == "disk":
                command += ["--folder", str(shard_folder(config.tables_folder, shard))]
            self._processes.start(f"server {shard}", command, endless=True)
        command = ["plan-server", self._run_file, "--port-file", str(self._scratch / "planner.port")]
        self._processes.start("planner", command, endless=True)

    def _start_workers(self, servers: list[str], planner: str, stop_after: int | None) -> None:
        num_workers = self._config.distributed.workers
        command = ["worker", self._run_file, "--planner", planner, "--launched"]
        command += ["--rendezvous", f"file://{self._scratch / 'rendezvous'}"]
        for address in servers:
            command += ["--server", address]
        if stop_after is not None:
            command += ["--stop-after", str(stop_after)]
        # What the person has set stays; by default workers talk on this machine only and share its cores.
        shared = {
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", LOOPBACK),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_workers))),
        }
        for rank in range(num_workers):
            environment = {**shared, "RANK": str(rank), "WORLD_SIZE": str(num_workers)}
            part = self._processes.start(f"worker {rank}", command, endless=False, environment=environment)
            self._workers.append(part)

    def _watch(self, done: Callable[[], bool], seconds: float | None) -> None:
        """Looks after everything until `done`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not done():
            self._show()
            if self._stop.asked:
                raise _Stopped
            if (part := culprit(self._processes.parts)) is not None:
                raise _Failed(self._cause(part))
            if deadline is not None and time.monotonic() > deadline:
                raise InputError(
                    f"servers and planner did not start within {seconds:.0f} s; see {self._config.run}/logs, and try "
                    "again when the machine is less busy"
                )
            time.sleep(POLL_SECONDS)

    def _cause(self, part: Part) -> Part:
        """A part that only lost another notices at once, while the other may still be printing why it ends."""
        deadline = time.monotonic() + CAUSE_SECONDS
        while part.code == LOST_ANOTHER_CODE and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            part = culprit(self._processes.parts) or part
        return part

    def _show(self) -> None:
        """Passes on what worker 0 has to say."""
        if not self._workers:
            return
        with open(self._workers[0].output, encoding="utf-8", errors="replace") as file:
            file.seek(self._shown)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break
                self._shown = file.tell()
                relay(line, self._display)

    @property
    def _run_file(self) -> str:
        return str(self._config.run / CONFIG_FILE)

    def _port_files(self) -> list[Path]:
        return [self._scratch / f"server-{shard}.port" for shard in range(self._config.num_servers)]


def check_can_launch(config: RunConfig) -> None:
    """What would only be found out by a process later."""
    if config.cache.plan_file is not None:
        raise ConfigError("cache.plan_file: a run with servers is planned by its planner; leave the key out")
    if config.train.device != "cpu":
        raise ConfigError(
            f"train.device: several processes train on the cpu in this release, not on {config.train.device!r}; "
            "set it to cpu, or train in one process"
        )
    found = shard_folders(config.tables_folder)
    if config.tables.store == "disk" and found and len(found) != config.num_servers:
        raise ConfigError(
            f"{config.tables_folder} holds {len(found)} shards, but this run has {config.num_servers} servers; "
            f"give --servers {len(found)}, or another run folder"
        )


def _folder(
    config: RunConfig, log_digest: str, *, resume: bool, replace: bool
) -> AbstractContextManager[RunFolder]:
    if resume:
        return run_folder.resume(config, log_digest=log_digest)
    return run_folder.begin(config, log_digest=log_digest, replace=replace)


@contextmanager
def _logs(folder: RunFolder) -> Iterator[Path]:
    """What the parts print. If a person's mistake ends the run before its first commit, it does not stay."""
    path = folder.path / "logs"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    except InputError:
        if not any(folder.checkpoints.glob("*/*")):
            shutil.rmtree(path, ignore_errors=True)
        raise


def _tell(part: Part) -> int:
    """Says which part failed and how; what a person did wrong is an InputError."""
    if (sentence := part.sentence()) is not None:
        raise InputError(f"{sentence} ({part.name})")
    lines = "\n".join(f"  {line}" for line in part.last_lines())
    print(
        f"foresee: {part.name} {part.how_it_ended()} and everything else was taken down; go on from the last commit "
        f"with --resume; its last lines in {part.output}:\n{lines}",
        file=sys.stderr,
    )
    return 1
