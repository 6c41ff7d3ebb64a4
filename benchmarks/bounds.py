"""A server under ten times the load it is sized for: its memory against the bound it printed when it started.

`foresee serve` is started with rows in memory and limits for a load: so many connections, so many bytes in flight. Then
a process drives ten times that at it for some seconds: connections by the hundred that read, write and park reads, each
request as large as it may be; strangers that say nothing, half a call, or a message of a gigabyte. Beside them one good
client reads and writes as a trainer does. The figure is the server's peak memory, as the kernel counts it, over the
bound in the first line that the server printed; every request of the good client has to be answered.

Run: `.venv/bin/python benchmarks/bounds.py`. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from foresee.errors import ForeseeError
from foresee.store.contract import Rows
from foresee.store.layout import Layout, Table, write_layout
from foresee.store.remote import RemoteStore, protocol
from foresee.store.remote.link import Exchange, open_exchange
from foresee.store.remote.opening import ask_status
from foresee.store.remote.protocol import Opening
from foresee.store.rpc.endpoint import TRANSPORT_ERRORS, Endpoint, Watchdog, ask_once
from foresee.store.rpc.failures import BusyError

LAYOUT = Layout(tables=(Table("rows", 200_000),), width=62, state_width=1, optimizer="rowwise_adagrad")
CONNECTIONS = 64
BYTES_IN_FLIGHT = 64 << 20
TIMES = 10
REQUEST_ROWS = 16_384
PARK_SECONDS = 4.0
START_SECONDS = 60.0
RUN = "overload"
SERVE = "import typer; from foresee.tools.cli.serve import serve; typer.run(serve)"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the load lasts")
    parser.add_argument("--load", metavar="ADDRESS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load is not None:
        drive(arguments.load, arguments.seconds)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is ended, too
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(measure(Path(name), arguments.seconds)))


def measure(folder: Path, seconds: float) -> dict[str, float]:
    """Starts a server, drives load at it, and compares."""
    write_layout(folder / "layout.json", LAYOUT)
    command = [sys.executable, "-c", SERVE, "--layout", str(folder / "layout.json")]
    command += ["--port-file", str(folder / "port")]
    command += ["--connections-max", str(CONNECTIONS), "--bytes-in-flight-max", str(BYTES_IN_FLIGHT)]
    with open(folder / "log", "w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            address = _address(folder, server)
            bound = _printed_bound(folder / "log")
            print((folder / "log").read_text().splitlines()[0])
            good = GoodClient(address)
            load = subprocess.Popen([sys.executable, __file__, "--load", address, "--seconds", str(seconds)])
            answered, failed = good.work(load)
            if load.returncode != 0:
                raise SystemExit(f"the load ended with {load.returncode}")
            found = ask_status(address, timeout_seconds=20.0)
            peak = _peak_bytes(server.pid)
        finally:
            server.terminate()
            server.wait(30)
    print(
        f"{found['requests']:,} requests, {found['refused']:,} refused, {found['connections_cut']:,} connections cut; "
        f"peak {peak / 1e6:,.1f} MB of {bound / 1e6:,.1f} MB; the good client had {answered} answers, {failed} failures"
    )
    return {
        "peak_over_bound": round(peak / bound, 3), "peak_megabytes": round(peak / 1e6, 1),
        "bound_megabytes": round(bound / 1e6, 1), "good_answers": answered, "good_failures": failed,
        "refused": found["refused"], "connections_cut": found["connections_cut"],
    }  # fmt: skip


class GoodClient:
    """A trainer: a few thousand rows a step, read and written back."""

    def __init__(self, address: str) -> None:
        self._store = RemoteStore([address], deadline_seconds=60.0)
        self._rng = np.random.default_rng(0)
        self._version = 1_000_000
        self._step()

    def work(self, load: subprocess.Popen[bytes]) -> tuple[int, int]:
        """Steps until the load has ended: how many were answered, and how many were not."""
        answered = failed = 0
        while load.poll() is None:
            try:
                self._step()
                answered += 1
            except ForeseeError as error:
                print(f"not answered: {error}")
                failed += 1
        self._step()  # and it is well afterwards
        self._store.close()
        return answered, failed

    def _step(self) -> None:
        rows = self._rng.choice(LAYOUT.num_rows, 2000, replace=False).astype(np.int64)
        found = Rows.empty(len(rows), LAYOUT)
        self._store.read(rows, found)
        self._version += 1
        found.versions[:] = self._version
        self._store.write(rows, found)


def drive(address: str, seconds: float) -> None:
    """Ten times the connections, each with as much as one may ask for, and as many strangers."""
    end = time.monotonic() + seconds
    endpoint = Endpoint.parse(address, None, None)
    join = {"run": RUN, "worker": 0, "num_workers": 1, "first_step": 0}
    ask_once(endpoint, protocol.JOIN, join, time.monotonic() + 20.0)
    described = ask_once(endpoint, protocol.DESCRIBE, {}, time.monotonic() + 20.0)
    watchdog = Watchdog()
    kinds = [protocol.WRITE, protocol.GUARDED, protocol.READ]
    threads = [
        threading.Thread(target=_ask, args=(endpoint, described["incarnation"], kinds[it % 3], it, end, watchdog))
        for it in range(TIMES * CONNECTIONS)
    ]
    threads += [threading.Thread(target=_intrude, args=(address, it, end)) for it in range(CONNECTIONS)]
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join(max(0.1, end + 10.0 - time.monotonic()))
    watchdog.close()
    # Threads that are still inside a call of Flight go with the process.
    sys.stdout.flush()
    sys.exit(0)


def _ask(endpoint: Endpoint, incarnation: str, kind: str, number: int, end: float, watchdog: Watchdog) -> None:
    """One client that asks again and again, whatever it is told."""
    rng = np.random.default_rng(number)
    opening = Opening(kind=kind, incarnation=incarnation, run=RUN, worker=0)
    while time.monotonic() < end:
        with suppress(ForeseeError, BusyError, *TRANSPORT_ERRORS):
            deadline = min(end, time.monotonic() + 5.0)
            exchange = open_exchange(endpoint, opening, LAYOUT, deadline=deadline, watchdog=watchdog)
            try:
                with watchdog.watch(end + 2.0, exchange.cancel):
                    while time.monotonic() < end:
                        _request(exchange, kind, rng)
            finally:
                exchange.close()
        time.sleep(float(rng.uniform(0.05, 0.3)))


def _request(exchange: Exchange, kind: str, rng: np.random.Generator) -> None:
    rows = rng.choice(LAYOUT.num_rows, REQUEST_ROWS, replace=False).astype(np.int64)
    if kind == protocol.WRITE:
        source = Rows.empty(len(rows), LAYOUT)
        source.versions[:] = 1
        exchange.write(iter([(protocol.write_batch(exchange.schema, rows, source), True)]), None)
    elif kind == protocol.GUARDED:
        waiting = np.full(len(rows), 2_000_000_000, np.int32)
        exchange.read(rows, waiting, {"not_before": -1, "park_seconds": PARK_SECONDS}, lambda begin, chunk: None)
    else:
        exchange.read(rows, None, {}, lambda begin, chunk: None)


def _intrude(address: str, number: int, end: float) -> None:
    """A stranger: silent, half a call, or a flood."""
    host, _, port = address.partition("://")[2].rpartition(":")
    content = [b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", bytes(1 << 20)][number % 3]
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection((host, int(port)), 2.0) as connection:
            connection.sendall(content)
            connection.settimeout(2.0)
            while connection.recv(1 << 16):
                pass
        time.sleep(0.2)


def _address(folder: Path, server: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while not (folder / "port").exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the server did not start: {(folder / 'log').read_text()}")
        time.sleep(0.05)
    return f"grpc://127.0.0.1:{(folder / 'port').read_text().strip()}"


def _printed_bound(log: Path) -> float:
    """Bytes, out of the sentence for a person."""
    found = re.search(r"memory needed, at most: ([\d,.]+) MB", log.read_text())
    if found is None:
        raise SystemExit(f"the server printed no bound: {log.read_text()}")
    return 1e6 * float(found[1].replace(",", ""))


def _peak_bytes(process_id: int) -> int:
    text = Path(f"/proc/{process_id}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmHWM:")))


if __name__ == "__main__":
    main()
