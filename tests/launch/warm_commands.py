"""Commands of Foresee as real processes that start in milliseconds.

Importing torch takes seconds. So one warm process imports everything once and forks a process for every command that a
line on its input asks for; when such a command launches others, these are forked, too. Apart from that nothing is
different: each is a process of its own, with its own signals, output and exit code. `Commands` ends everything it
started, and fails if something would stay.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from foresee.errors import ForeseeError
from foresee.launch import fork_server
from foresee.launch.fork_server import become

sys.path.append(str(Path(__file__).parents[1]))  # the warm process runs this file as a script
from waiting import wait_until

WAIT_SECONDS = 60.0
SPEECHLESS = "FORESEE_TEST_SPEECHLESS"
"""Variable of a command whose errors say nothing but x, in it and in all that it starts."""


@dataclass
class Command:
    """A running command."""

    process_id: int
    output: Path

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process_id, number)

    def text(self) -> str:
        return self.output.read_text()

    def children(self) -> dict[str, int]:
        """Process ids of what it has started, by command and number: serve0, plan-server, worker1."""
        return {_name(process_id): process_id for process_id in children_of(self.process_id)}


def children_of(process_id: int) -> list[int]:
    try:
        return [int(it) for it in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]
    except OSError:
        return []


def _name(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/comm").read_text().strip()
    except OSError:  # ended since
        return ""


def is_alive(process_id: int) -> bool:
    """Does it still run? One that nobody has waited for does not."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


class Commands:
    """The warm process. Use it as a context manager."""

    def __init__(
        self, folder: Path, optimizers: Sequence[str] = ("sgd", "rowwise_adagrad"), dtypes: Sequence[str] = ("float32",)
    ) -> None:
        """`optimizers`, `dtypes`: of rows whose kernels the warm process loads."""
        self._folder, self._count, self._lock = folder, 0, threading.Lock()
        self._running: dict[int, Command] = {}
        self._warm = subprocess.Popen(
            [sys.executable, str(Path(__file__)), ",".join(optimizers), ",".join(dtypes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        )  # fmt: skip

    def __enter__(self) -> Commands:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_all()
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.close()
        assert self._warm.wait(WAIT_SECONDS) == 0
        self._warm.stdout.close()

    def start(self, *arguments: object, environment: dict[str, str] | None = None) -> Command:
        """`foresee` with these arguments; `python` and a file run that script."""
        with self._lock:
            self._count += 1
            output = self._folder / f"command-{self._count}.txt"
        request = {"arguments": [str(it) for it in arguments], "output": str(output), "environment": environment or {}}
        command = Command(int(self._ask(request)["process_id"]), output)
        self._running[command.process_id] = command
        return command

    def run(self, *arguments: object) -> tuple[int, str]:
        """Exit code and output of a command that ends by itself."""
        command = self.start(*arguments)
        return self.wait(command), command.text()

    def wait(self, command: Command) -> int:
        """Exit code, or minus a signal."""
        code: int | None = None

        def ended() -> bool:
            nonlocal code
            code = self._ask({"wait": command.process_id})["code"]
            return code is not None

        wait_until(ended, f"the end of the command that prints into {command.output}", WAIT_SECONDS)
        del self._running[command.process_id]
        assert code is not None
        return code

    def end_all(self) -> None:
        for command in list(self._running.values()):
            command.signal(signal.SIGKILL)
            self.wait(command)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        with self._lock:
            self._warm.stdin.write(json.dumps(request) + "\n")
            self._warm.stdin.flush()
            answer: dict[str, Any] = json.loads(self._warm.stdout.readline())
        return answer


@dataclass
class _Forked:
    """A forked process, with the face that the launcher needs."""

    pid: int
    code: int | None = field(default=None)

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def fork_command(arguments: Sequence[str], environment: dict[str, str], output: Path) -> _Forked:
    """Starts a part as the product's fork server would."""
    output.touch()
    child = os.fork()
    if child:
        return _Forked(child)
    try:
        name = arguments[0] + environment.get("RANK", "")
        if "--shard" in arguments:
            name += arguments[list(arguments).index("--shard") + 1]
        Path("/proc/self/comm").write_text(name)
        if SPEECHLESS in environment:
            ForeseeError.__str__ = lambda error: "x"  # type: ignore[method-assign]
        if arguments[0] == "python":
            fork_server._run_command = _run_script
        become(arguments, environment, output)
    finally:
        os._exit(70)


def _run_script(arguments: Sequence[str]) -> int:
    """Take the place of the command line in a process that runs a script."""
    sys.argv = list(arguments[1:])
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def forking(num_workers: int, optimizers: Sequence[str]) -> Iterator[Any]:
    """Takes the place of `starting`."""
    yield fork_command


def _warm_up(optimizers: Sequence[str], dtypes: Sequence[str]) -> None:
    """Loads compiled kernels before the first fork, not in each process: a small run with two threads as workers."""
    import importlib
    import tempfile
    from itertools import product
    from threading import Thread

    import numpy as np
    import torch

    from foresee.data import tiny
    from foresee.engine.exchange.peers import PeerExchange
    from foresee.engine.header import make_header
    from foresee.engine.optimizers import make_optimizer
    from foresee.engine.planned_step import Pooling
    from foresee.engine.run import Run
    from foresee.engine.tables import Tables, layout_for
    from foresee.store.contract import Rows
    from foresee.store.memory import MemoryStore
    from foresee.store.server.shard import Share, disk_shard
    from foresee.store.sharding import scatter, split
    from foresee.testing.delays import Meeting, SharedStore, ThreadMesh

    parts = ("launch.launcher", "launch.planner_process", "run.worker", "run.stop", "store.server.process")
    for name in (*parts, "run.evaluation", "run.serving.export"):
        importlib.import_module(f"foresee.{name}")
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.Adam(model.parameters()).step()  # imports much more than one would think
    with tempfile.TemporaryDirectory() as folder:
        log = tiny(Path(folder) / "log", num_samples=100)
        for name, dtype in product(optimizers, dtypes):
            optimizer = make_optimizer(name, {"lr": 0.1})
            layout = layout_for(log, 4, optimizer, 0, 0.1, dtype)
            shared, meeting = SharedStore(MemoryStore(layout), 2), Meeting(2)

            def work(rank: int, optimizer: Any = optimizer, shared: Any = shared, meeting: Any = meeting) -> None:
                stream = log.batches(batch_size=8)
                header = make_header(stream, planner="lookahead", cache_rows=80, num_workers=2)
                tables = Tables(shared.for_worker(rank), optimizer)
                exchange = PeerExchange(tables.layout, ThreadMesh(meeting, rank))
                run = Run(stream, tables, header, Pooling.of(log.mean_features), exchange=exchange, commit_at_end=False)
                for step in run:
                    step.embeddings.sum().backward()  # type: ignore[no-untyped-call]
                    step.update()
                exchange.close()

            threads = [Thread(target=work, args=(rank,)) for rank in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            shard, at = disk_shard(Path(folder) / f"{name}-{dtype}", layout, Share(1, 2)), np.array([3, 5])
            rows = Rows.empty(2, layout)
            shard.read(at, rows)
            shard.write(at, rows)
            shard.read(at, rows)
            shard.commit(1)
            shard.close()
            scatter(rows, split(at, 1).of(0), rows)


def main() -> None:
    import foresee.launch.processes

    _warm_up(*(names.split(",") for names in sys.argv[1:3]))
    foresee.launch.processes.starting = forking
    running: dict[int, _Forked] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            answer: dict[str, Any] = {"code": running[request["wait"]].poll()}
        else:
            started = fork_command(
                request["arguments"], {**os.environ, **request["environment"]}, Path(request["output"])
            )
            running[started.pid] = started
            answer = {"process_id": started.pid}
        print(json.dumps(answer), flush=True)
    # Nothing of ours is open, and leaving the interpreter the long way takes seconds with torch in it.
    os._exit(0)


if __name__ == "__main__":
    main()
