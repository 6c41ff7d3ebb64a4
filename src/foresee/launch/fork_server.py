"""Parts of a run that start in milliseconds: one warm process has imported everything and forks them.

Importing torch and compiling kernels takes seconds, and a part that was killed should be back at once. In: commands of
`foresee`, as lines of JSON on the warm process's input. Out: processes, each with its own signals, output and exit
code, that end with the warm process, which ends with the launcher (`io.machine`). If the warm process is gone,
`ForkServer` starts another.

Warming up trains a toy in memory and in a temporary folder. No thread outlives it, so that a fork is a whole process
(libraries with threads of their own, such as Arrow, start them anew). Nothing depends on this but time.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foresee.data.click_log import ClickLog
from foresee.data.synthetic import tiny
from foresee.engine.exchange.mesh import Finish, Lane
from foresee.engine.exchange.peers import PeerExchange
from foresee.engine.header import make_header
from foresee.engine.optimizers import OPTIMIZERS, Optimizer
from foresee.engine.planned_step import planned_records
from foresee.engine.run import Run
from foresee.engine.tables import Tables, layout_for
from foresee.io.machine import LAUNCHER_VARIABLE, end_with_launcher, scratch_folder
from foresee.run.group import Alone
from foresee.run.loop import train_steps
from foresee.store.contract import Rows
from foresee.store.layout import Layout
from foresee.store.memory import MemoryStore
from foresee.store.server.shard import Share, disk_shard, memory_shard
from foresee.store.sharding import scatter, split

MODULES = (
    "foresee.tools.cli.commands", "foresee.tools.cli.train", "foresee.tools.cli.serve",
    "foresee.run.worker", "foresee.run.stop",
    "foresee.launch.planner_process", "foresee.run.evaluation", "foresee.store.server.process",
    "foresee.models",
)  # fmt: skip


class _OwnMesh:
    """One worker that sends everything to itself: the exchange's kernels without a network."""

    rank, num_workers = 0, 1

    def start(self, lane: Lane, sent: Tensor, sizes: list[int], expected: list[int]) -> Finish:
        return lambda: sent


class _OneWeight(torch.nn.Module):
    """A model so small that torch starts no threads for it: a process that has any cannot be forked safely."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(1, 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.last(embeddings.sum((1, 2))[:, None])[:, 0]
        return logits


def warm_up(optimizers: Sequence[str]) -> None:
    """Call it in a process that will fork, before it does; with the names of the row optimisers it will need."""
    for name in MODULES:
        importlib.import_module(name)
    torch.manual_seed(0)
    with scratch_folder() as folder:
        log = tiny(folder / "log", num_samples=64)
        for name in optimizers:
            optimizer = OPTIMIZERS[name](lr=0.1)
            layout = layout_for(log, 4, optimizer, 0, 0.1)
            _train(log, optimizer, layout)
            _serve(folder / optimizer.name, layout)
        stream = log.batches(batch_size=8)
        for _ in planned_records(
            stream, make_header(stream, planner="lookahead", cache_rows=80, num_workers=2, placement="location_aware")
        ):
            pass


def _train(log: ClickLog, optimizer: Optimizer, layout: Layout) -> None:
    stream, tables = log.batches(batch_size=8), Tables(MemoryStore(layout), optimizer)
    header = make_header(stream, planner="lookahead", cache_rows=80)
    exchange = PeerExchange(layout, _OwnMesh())
    run = Run(stream, tables, header, log.pooling, exchange=exchange, commit_at_end=False)
    model = _OneWeight()
    adam = torch.optim.Adam(model.parameters())  # imports much more than one would think
    train_steps(run, adam, Alone(model), [])
    exchange.close()


def _serve(folder: Path, layout: Layout) -> None:
    at = np.array([3, 5])
    rows = Rows.empty(2, layout)
    for shard in (disk_shard(folder, layout, Share(1, 2)), memory_shard(layout, Share(1, 2))):
        for step in (1, 2):
            shard.read(at, rows)
            shard.write(at, rows)
            shard.read(at, rows)
            shard.commit(step)
        shard.close()
    scatter(rows, split(at, 1).of(0), rows)


KILLED_CODE = -int(signal.SIGKILL)


class ForkServer:
    """The warm process, as the launcher sees it. Use it as a context manager."""

    def __init__(self, environment: Mapping[str, str], optimizers: Sequence[str]) -> None:
        """`environment` is that of the warm process: what libraries read when they are loaded has to be in it."""
        self._environment = {**environment, LAUNCHER_VARIABLE: str(os.getpid())}
        self._optimizers = list(optimizers)
        self._warm = self._start_warm()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *exception: object) -> None:
        """The launcher has ended all parts by now; the warm process has nothing to say and may still be importing."""
        self._warm.kill()
        self._warm.wait()
        for stream in (self._warm.stdin, self._warm.stdout):
            with suppress(OSError):
                assert stream is not None
                stream.close()

    def start(self, command: Sequence[str], environment: dict[str, str], output: Path) -> Forked:
        """`foresee` with these arguments; returns when the process is there."""
        request = {"arguments": list(command), "environment": environment, "output": str(output)}
        answer = self._ask(request)
        if answer is None:
            self._warm.kill()
            self._warm.wait()
            self._warm = self._start_warm()
            answer = self._ask(request)
        if answer is None:
            raise RuntimeError("the warm process of this run ended as soon as it was started; see its error output")
        return Forked(self, self._warm.pid, int(answer["pid"]))

    def poll(self, warm: int, pid: int) -> int | None:
        """How a process ended; None while it runs. Those of a warm process that is gone went with it."""
        answer = self._ask({"poll": pid}) if warm == self._warm.pid else None
        if answer is None:
            return KILLED_CODE
        return None if answer["code"] is None else int(answer["code"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any] | None:
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        try:
            self._warm.stdin.write(json.dumps(request) + "\n")
            self._warm.stdin.flush()
            line = self._warm.stdout.readline()
        except (OSError, ValueError):
            return None
        answer: dict[str, Any] | None = json.loads(line) if line else None
        return answer

    def _start_warm(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "foresee.launch.fork_server", *self._optimizers]
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment, process_group=0
        )


@dataclass
class Forked:
    """A part, with the face that the launcher needs."""

    _server: ForkServer
    _warm: int
    pid: int
    _code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._server.poll(self._warm, self.pid)
        return self._code

    def send_signal(self, number: int) -> None:
        """Nothing to one that is known to have ended: its number may be another process's by now."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def become(arguments: Sequence[str], environment: Mapping[str, str], output: Path) -> None:
    """The life of a forked part. Never returns."""
    code = 70
    try:
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ.clear()
        os.environ.update(environment)
        code = _run_command(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _run_command(arguments: Sequence[str]) -> int:
    import importlib

    from foresee.io import failpoints

    failpoints.arm("train")
    sys.argv = ["foresee", *arguments]
    try:
        importlib.import_module("foresee.tools.cli").main()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
        return 1
    return 0


class _Children:
    """What the warm process has forked."""

    def __init__(self) -> None:
        self._codes: dict[int, int | None] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if "poll" in request:
            return {"code": self._poll(int(request["poll"]))}
        environment = {**request["environment"], LAUNCHER_VARIABLE: str(os.getpid())}
        child = os.fork()
        if not child:
            become(request["arguments"], environment, Path(request["output"]))
        self._codes[child] = None
        return {"pid": child}

    def _poll(self, pid: int) -> int | None:
        if self._codes.get(pid) is None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._codes[pid] = os.waitstatus_to_exitcode(status)
        return self._codes[pid]

    def end(self) -> None:
        """Whatever still runs is killed, and waited for."""
        for pid in [pid for pid in self._codes if self._poll(pid) is None]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            while self._poll(pid) is None:
                time.sleep(0.01)


def main() -> None:
    """The warm process: imports, then forks whatever it is asked for until its input ends."""
    end_with_launcher()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm_up(sys.argv[1:])
    children = _Children()
    for line in sys.stdin:
        print(json.dumps(children.answer(json.loads(line))), flush=True)
    children.end()
    # Nothing of ours is open, and leaving the interpreter the long way takes seconds with torch in it.
    os._exit(0)


if __name__ == "__main__":
    main()
