"""Real server processes for tests, many of them and at once.

Importing everything takes seconds, so one warm process imports it once and forks a server whenever a line on its input
says so: each server is a process of its own, started in milliseconds. `Servers` ends every one it started and fails if
one would stay.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from foresee.store.layout import Layout, layout_from_dict, layout_to_dict
from foresee.store.remote import RemoteStore

sys.path.append(str(Path(__file__).parents[1]))  # the warm process runs this file as a script
from waiting import wait_until

WAIT_SECONDS = 30.0


@dataclass
class Server:
    """One server process."""

    process_id: int
    address: str
    log: Path

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process_id, number)
        if number == signal.SIGSTOP:
            wait_until(self._is_stopped, "the stop of all its threads")

    def _is_stopped(self) -> bool:
        """A thread on another core may go on for a moment."""
        threads = Path(f"/proc/{self.process_id}/task").glob("*/stat")
        return all(path.read_text().rpartition(")")[2].split()[0] in "TZX" for path in threads)

    def output(self) -> str:
        return self.log.read_text()


class Servers:
    """The warm process and what it forked. Use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._running: dict[int, Server] = {}
        command = [sys.executable, str(Path(__file__))]
        self._warm = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Servers:
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

    def start(self, layout: Layout, *, shard: int = 0, num_shards: int = 1, **options: Any) -> Server:
        self._count += 1
        port_file = self._folder / f"port-{self._count}"
        log = self._folder / f"server-{self._count}.log"
        request = {"layout": layout_to_dict(layout), "shard": shard, "num_shards": num_shards,
                   "port_file": str(port_file), "log": str(log), **options}  # fmt: skip
        process_id = int(self._ask(request)["process_id"])
        wait_until(port_file.exists, f"the start of server {self._count}")
        scheme = "grpc+tls" if options.get("certificate") else "grpc"
        server = Server(process_id, f"{scheme}://127.0.0.1:{port_file.read_text().strip()}", log)
        self._running[process_id] = server
        return server

    def start_all(self, layout: Layout, num_shards: int, folder: Path | None = None, **options: Any) -> list[Server]:
        return [
            self.start(
                layout, shard=shard, num_shards=num_shards, folder=folder and str(folder / f"shard-{shard}"), **options
            )
            for shard in range(num_shards)
        ]

    def end(self, server: Server, number: signal.Signals = signal.SIGKILL) -> int:
        """Sends a signal and returns how the process ended: its exit code, or minus a signal."""
        server.signal(number)
        return self.wait(server)

    def wait(self, server: Server) -> int:
        code = int(self._ask({"wait": server.process_id})["code"])
        del self._running[server.process_id]
        return code

    def end_all(self) -> None:
        for server in list(self._running.values()):
            self.end(server)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.write(json.dumps(request) + "\n")
        self._warm.stdin.flush()
        answer: dict[str, Any] = json.loads(self._warm.stdout.readline())
        return answer


class OwnedStore(RemoteStore):
    """A remote store that ends its servers when it is closed: for suites that make one store after another."""

    servers: Servers
    processes: list[Server]

    def close(self) -> None:
        if not self._closed:
            super().close()
            for process in self.processes:
                self.servers.end(process)


def open_owned(servers: Servers, layout: Layout, num_shards: int, folder: Path | None = None) -> OwnedStore:
    processes = servers.start_all(layout, num_shards, folder)
    store = OwnedStore([process.address for process in reversed(processes)], layout)
    store.servers, store.processes = servers, processes
    return store


def _serve(request: dict[str, Any]) -> None:
    """The life of a forked server."""
    from foresee.store.rpc.limits import Limits
    from foresee.store.rpc.security import Security
    from foresee.store.server.process import end_process, run_server
    from foresee.store.server.shard import Share, disk_shard, memory_shard

    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    layout = layout_from_dict(request["layout"])
    share = Share(request["shard"], request["num_shards"])
    folder = request.get("folder")
    shard = disk_shard(Path(folder), layout, share) if folder else memory_shard(layout, share)
    security = Security(
        certificate=request["certificate"].encode() if request.get("certificate") else None,
        key=request["key"].encode() if request.get("key") else None,
        token=request.get("token"),
    )
    limits = Limits(**request.get("limits", {}))
    end_process(
        run_server(
            [shard], host="127.0.0.1", port=0, security=security, limits=limits, port_file=Path(request["port_file"])
        )
    )


def _warm_up() -> None:
    """Kernels are loaded before the first fork, not in each server."""
    import numpy as np

    from foresee.store.contract import Rows
    from foresee.store.layout import Table
    from foresee.store.server.shard import Share, memory_shard

    layout = Layout(tables=(Table("t", 9),), width=2, state_width=1, optimizer="x")
    shard = memory_shard(layout, Share(1, 2))
    rows = Rows.empty(1, layout)
    shard.read(np.array([3]), rows)
    shard.write(np.array([3]), rows)


def main() -> None:
    _warm_up()
    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            status = os.waitpid(request["wait"], 0)[1]
            answer = {"code": os.waitstatus_to_exitcode(status)}
        else:
            child = os.fork()
            if not child:
                try:
                    _serve(request)
                finally:
                    os._exit(70)
            answer = {"process_id": child}
        print(json.dumps(answer), flush=True)
    # Nothing of ours is open, and leaving the interpreter the long way takes seconds with torch in it.
    os._exit(0)


if __name__ == "__main__":
    main()
