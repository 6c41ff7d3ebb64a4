"""Keeps the parts of a launched run alive, from the first start to the last end, and shows what worker 0 reports.

In: a configuration, and processes on some engine. Out: returns when all trainers are done; `Failed` names the part that
could not be restarted, `Stopped` says that somebody asked the run to stop, `Resized` that it is to go on with another
size. What happens after a part ended is decided in `restarts` and carried out here. Servers and planner come first,
then the trainers, with ports the system chose. Trainers look the planner's address up in a file whenever they connect,
since they go on while it is started again.

The display is one process away: worker 0 writes readings and sentences as lines of JSON (`RelayedDisplay`), and `relay`
turns them into calls of the real display. Other output of the worker passes unchanged.
"""

from __future__ import annotations

import json
import logging
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from foresee.errors import UNAVAILABLE_CODE, InputError
from foresee.launch.decisions import STOPPED_CODES, Ended, RestartDecision, Size, decide_restart
from foresee.launch.engine import Command
from foresee.launch.processes import POLL_SECONDS, Part, Processes, culprit, send
from foresee.run.config import RunConfig
from foresee.run.config_file import dump_run
from foresee.run.folder import RunFolder, run_id
from foresee.run.progress import TERMINAL_SECONDS, Display, Reading
from foresee.run.stop import Stop
from foresee.store.layout import Layout, layout_text
from foresee.store.registry import store_kind
from foresee.store.shard_folders import shard_folder

_logger = logging.getLogger(__name__)

MARK = '{"foresee": '


class SilentDisplay:
    """For all workers but the first."""

    def __enter__(self) -> SilentDisplay:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def due(self) -> bool:
        return False

    def show(self, reading: Reading) -> None:
        pass

    def say(self, text: str) -> None:
        pass


class RelayedDisplay(SilentDisplay):
    """Writes lines for a launcher."""

    def __init__(self, file: IO[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._last = clock()

    def due(self) -> bool:
        return self._clock() - self._last >= TERMINAL_SECONDS

    def show(self, reading: Reading) -> None:
        self._last = self._clock()
        self._write("reading", asdict(reading))

    def say(self, text: str) -> None:
        self._write("say", text)

    def _write(self, kind: str, content: Any) -> None:
        print(json.dumps({"foresee": kind, "content": content}), file=self._file, flush=True)


def relay(line: str, display: Display) -> bool:
    """Shows a line of `RelayedDisplay`; False if it is something else."""
    if not line.startswith(MARK):
        return False
    try:
        message = json.loads(line)
        kind, content = message["foresee"], message["content"]
        if kind == "say":
            display.say(str(content))
        elif display.due() or content["step"] == content["num_steps"]:
            display.show(Reading(**content))
    except (ValueError, KeyError, TypeError):
        return False
    return True


START_SECONDS = 300.0
"""Until servers and planner listen."""
FAREWELL_SECONDS = 700.0
"""Until workers that were asked to stop have committed: a little longer than a commit may take."""
TELL_SECONDS = 15.0
"""Until a person is told that parts wait for a place: those of a lost node get another within that time."""
CAUSE_SECONDS = 2.0
"""Until it shows which part failed first."""


class Failed(Exception):  # noqa: N818 - says who, not what
    """A part ended, and starting it again would not help, or was done too often."""

    def __init__(self, part: Part) -> None:
        self.part = part


class Stopped(Exception):  # noqa: N818 - a signal came
    """The run is to stop."""


class Resized(Exception):  # noqa: N818 - what has to be done
    """The run is to go on with another size, from a commit."""

    def __init__(self, size: Size) -> None:
        self.size = size


class Supervisor:
    """One launched run."""

    def __init__(
        self, config: RunConfig, layout: Layout, processes: Processes, display: Display, stop: Stop,
        stop_after: int | None, new_size: Callable[[], Size | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._processes, self._engine = processes, processes.engine
        self._layout = self._engine.share("layout.json", layout_text(layout))
        self._display, self._stop, self._stop_after, self._new_size = display, stop, stop_after, new_size
        self._sizes = 0
        self.take(config)
        self._restarts = 0
        self._starts_of_trainers = 0
        self._lost_in_a_row = 0
        self._waiting_since: float | None = None
        self._shown = 0

    def take(self, config: RunConfig) -> None:
        """What the parts that are started from now on are told."""
        self._config, self._num_servers = config, config.num_servers
        self._run_file = str(self._engine.share("run.yaml", dump_run(config)))
        # What nodes have on their own disks of another size is of no use, and the storage has all of it.
        self._run_id = run_id(config.run) + (f"-{self._sizes}-{uuid.uuid4().hex}" if self._sizes else "")
        self._sizes += 1

    @property
    def _workers(self) -> list[Part]:
        return [part for part in self._processes.parts if not part.endless]

    def run(self) -> None:
        """Until all trainers are done."""
        for shard in range(self._num_servers):
            self._start_server(shard)
        self._start_planner()
        while True:
            ended = self._watch(self._listening, START_SECONDS)
            if ended is None:
                planner = self._engine.share("planner.address", self._address("planner"))
                if not self._workers:
                    self._start_workers(planner)
                ended = self._watch(self._done, None)
            if ended is None:
                break
            self._help(ended)
        self._show()

    def stop_workers(self) -> int:
        """Lets the trainers commit; what they cannot finish is given up. Returns the exit code."""
        asked = self._stop.received or signal.SIGTERM
        if self._stop.asked:
            self._display.say("stopping after a commit; a second Ctrl-C ends everything at once")
        if not self._commit():
            self._display.say("stopped before anything could be kept; everything since the last commit is given up")
        return 128 + asked

    def leave(self, size: Size) -> None:
        """Ends all parts after a commit, so that they can be started with another size; where parts are missing, it is
        the last one that all had."""
        self._display.say(f"the nodes of the cluster have room for {size}, with which the run goes on from a commit")
        if all(part.process.pid for part in self._processes.parts) and self._workers:
            self._commit()
        self._processes.end_all()

    def _commit(self) -> bool:
        """Whether all workers have committed and stopped, as they are asked to."""
        _logger.info("asking %d workers to commit and stop", len(self._workers))
        send(self._workers, signal.SIGTERM)
        deadline = time.monotonic() + FAREWELL_SECONDS
        while any(part.code is None for part in self._workers) and time.monotonic() < deadline:
            if any((part.code or 0) < 0 for part in self._workers):
                break  # it was ended before it could listen, and the others would wait for it
            self._show()
            time.sleep(POLL_SECONDS)
        self._show()
        return bool(self._workers) and all(part.code in (0, *STOPPED_CODES) for part in self._workers)

    def _done(self) -> bool:
        return all(part.code == 0 for part in self._workers)

    def _help(self, first: Part) -> None:
        """Starts again what has to be, if that is possible and was not done too often."""
        ended = [
            Ended(name=part.name, role=part.role, code=code)
            for part in self._processes.parts
            if (code := part.code) is not None and (code != 0 or part.endless)
        ]
        only_lost = all(it.code == UNAVAILABLE_CODE for it in ended)
        self._lost_in_a_row = self._lost_in_a_row + 1 if only_lost else 0
        on_disk = store_kind(self._config.tables.store).durable
        what = decide_restart(ended, servers_on_disk=on_disk, lost_in_a_row=self._lost_in_a_row)
        if not what.possible or self._restarts >= self._config.distributed.restarts_max:
            raise Failed(first)
        self._restarts += 1
        told = (
            f"{first.name} {first.how_it_ended()}; {_in_words(what)} "
            f"(restart {self._restarts} of at most {self._config.distributed.restarts_max})"
        )
        self._display.say(told)
        _logger.info(told)
        self._carry_out(what)

    def _carry_out(self, what: RestartDecision) -> None:
        """Trainers that are gone are started by `run`, once everything they need listens."""
        if what.trainers:
            self._processes.kill(self._workers)
        for name in what.servers:
            self._start_server(int(name.split()[1]))
        if what.planner:
            self._start_planner()

    def _start_server(self, shard: int) -> None:
        kind = store_kind(self._config.tables.store)
        command = ["serve", "--layout", str(self._layout), "--shard", str(shard)]
        command += ["--num-shards", str(self._num_servers), "--store", kind.name]
        if kind.durable:
            command += ["--folder", str(shard_folder(self._config.tables_folder, shard))]
        if self._config.storage is not None:
            command += ["--storage", self._config.storage, "--run-id", self._run_id]
        self._processes.start(Command(role="server", index=shard, arguments=tuple(command)))

    def _start_planner(self) -> None:
        self._processes.kill([part for part in self._processes.parts if part.role == "planner"])
        self._processes.start(Command(role="planner", index=0, arguments=("plan-server", self._run_file)))

    def _start_workers(self, planner: Path) -> None:
        """When servers and planner listen."""
        self._starts_of_trainers += 1
        num_workers = self._config.distributed.workers
        command = ["worker", self._run_file, "--planner", f"file://{planner}", "--launched"]
        command += ["--rendezvous", self._engine.rendezvous(self._starts_of_trainers)]
        for shard in range(self._num_servers):
            command += ["--server", self._address(f"server {shard}")]
        if self._stop_after is not None:
            command += ["--stop-after", str(self._stop_after)]
        for rank in range(num_workers):
            place = {"RANK": str(rank), "WORLD_SIZE": str(num_workers)}
            records = RunFolder(self._config.run).records(rank)
            self._processes.start(
                Command(role="worker", index=rank, arguments=tuple(command), environment=place, records=records)
            )

    def _watch(self, done: Callable[[], bool], seconds: float | None) -> Part | None:
        """Looks after everything until `done`; returns a part that has ended before it should."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not done():
            self._show()
            self._processes.write_down()
            if self._stop.asked or any(part.code in STOPPED_CODES for part in self._workers):
                raise Stopped
            if (size := self._new_size()) is not None:
                raise Resized(size)
            if (part := culprit(self._processes.parts)) is not None:
                return self._cause(part)
            if self._wait_for_places() and seconds is not None:
                deadline = time.monotonic() + seconds  # a cluster gives places when it has them
            if deadline is not None and time.monotonic() > deadline:
                raise InputError(
                    f"servers and planner did not start within {seconds:.0f} s; see {self._config.run}/logs, and try "
                    "again when the machine is less busy"
                )
            time.sleep(POLL_SECONDS)
        return None

    def _wait_for_places(self) -> bool:
        """Whether parts have no process yet; a person is told when it takes long to find a place for them."""
        parts = [part for part in self._processes.parts if part.code is None]
        waiting = [part.name for part in parts if not part.process.placed]
        if not waiting:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = time.monotonic()
        elif time.monotonic() - self._waiting_since > TELL_SECONDS:
            self._waiting_since = float("inf")  # once
            self._display.say(
                f"no machine of the cluster has what distributed.resources asks for {', '.join(waiting)}; waiting"
            )
        return not all(part.process.pid for part in parts)

    def _cause(self, part: Part) -> Part:
        """A part that only lost another notices at once, while the other may still be printing why it ends."""
        deadline = time.monotonic() + CAUSE_SECONDS
        while part.code == UNAVAILABLE_CODE and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            part = culprit(self._processes.parts) or part
        return part

    def _show(self) -> None:
        """Passes on what worker 0 has to say."""
        output = next((part.output for part in self._processes.parts if part.name == "worker 0"), None)
        if output is None or not output.exists():
            return
        with open(output, encoding="utf-8", errors="replace") as file:
            file.seek(self._shown)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break
                self._shown = file.tell()
                relay(line, self._display)

    def _listening(self) -> bool:
        return all(part.address is not None for part in self._processes.parts if part.endless)

    def _address(self, name: str) -> str:
        """Of a part that listens."""
        return next(part.address for part in self._processes.parts if part.name == name and part.address is not None)


def _in_words(what: RestartDecision) -> str:
    if not what.trainers:
        return "it is started again, and training goes on meanwhile"
    again = "it is started again, and all trainers" if what.servers else "all trainers"
    return f"{again} go on from the last commit"
