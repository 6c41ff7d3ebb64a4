"""Rows over a wire: the remote store through an embedding server, against raw blocking TCP.

50,000 distinct rows of 256 bytes (62 values, one of optimiser state, the version), drawn at random out of 500,000, are
asked for by id and read into the caller's arrays. Both servers are processes of their own on loopback with the same
rows in the same kind of store, and gather with the same kernel. The TCP server does nothing else: it reads the ids,
gathers all rows into one set of arrays and sends them; its client receives straight into the caller's arrays. Ours is
`RemoteStore.read` through `foresee serve` as users run it: Arrow Flight, chunks, limits, counters, deadlines.

Sides take turns, and so does who goes first; the figure is the median of the ratios of each round. Answers are compared
to the last bit in every round. Run: `.venv/bin/python benchmarks/wire.py`. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Int64
from foresee.store.contract import Rows, Store
from foresee.store.layout import Layout, Table, write_layout
from foresee.store.memory import MemoryStore
from foresee.store.remote import RemoteStore

LAYOUT = Layout(tables=(Table("rows", 500_000),), width=62, state_width=1, optimizer="rowwise_adagrad")
NUM_ROWS = 50_000
NUM_REQUESTS = 4
"""Different requests; a turn of a side is all of them, one after the other, as a trainer asks step by step."""
FILL_ROWS = 50_000
START_SECONDS = 30.0

SERVE = "import typer; from foresee.tools.cli.serve import serve; typer.run(serve)"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=150, help="rounds of both sides")
    parser.add_argument("--seconds", type=float, default=20.0, help="stop after this time, whatever the rounds")
    parser.add_argument("--tcp-server", type=Path, metavar="PORTFILE", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tcp_server is not None:
        serve_tcp(arguments.tcp_server)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers are ended, too
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        write_layout(folder / "layout.json", LAYOUT)
        options = [
            "--layout",
            str(folder / "layout.json"),
            "--port-file",
            str(folder / "ours"),
            "--parent",
            str(os.getpid()),
        ]
        ours = [sys.executable, "-c", SERVE, *options]
        theirs = [sys.executable, __file__, "--tcp-server", str(folder / "tcp")]
        flight_port = stack.enter_context(running(ours, folder / "ours"))
        tcp_port = stack.enter_context(running(theirs, folder / "tcp"))
        store = RemoteStore([f"grpc://127.0.0.1:{flight_port}"], LAYOUT)
        stack.callback(store.close)
        fill(store)
        tcp = TcpClient(tcp_port)
        stack.callback(tcp.close)
        compare(store, tcp, arguments.rounds, arguments.seconds)


def compare(store: Store, tcp: TcpClient, num_rounds: int, seconds_max: float) -> None:
    """Times both sides in turns and prints the figures."""
    rng = np.random.default_rng(2)
    requests = [np.sort(rng.choice(LAYOUT.num_rows, NUM_ROWS, replace=False)) for _ in range(NUM_REQUESTS)]
    requests = [rng.permutation(rows) for rows in requests]
    outs = {"flight": empty_rows(), "tcp": empty_rows()}
    reads: dict[str, Callable[[Int64, Rows], None]] = {"flight": store.read, "tcp": tcp.read}
    seconds: dict[str, list[float]] = {"flight": [], "tcp": []}
    begun = time.perf_counter()
    for number in range(-3, num_rounds):
        order = ("flight", "tcp") if number % 2 else ("tcp", "flight")
        for side in order:
            start = time.perf_counter()
            for rows in requests:
                reads[side](rows, outs[side])
            if number >= 0:
                seconds[side].append((time.perf_counter() - start) / NUM_REQUESTS)
        check_same(outs["flight"], outs["tcp"])
        if time.perf_counter() - begun > seconds_max:
            break
    print_figures(seconds)


def print_figures(seconds: dict[str, list[float]]) -> None:
    num_bytes = NUM_ROWS * LAYOUT.row_bytes
    for side, rounds in seconds.items():
        middle, low = statistics.median(rounds), min(rounds)
        print(f"{side:<7} {1e3 * middle:6.2f} ms (best {1e3 * low:.2f}), {num_bytes / middle / 1e9:.2f} GB/s")
    ratios = [a / b for a, b in zip(seconds["flight"], seconds["tcp"], strict=True)]
    quarter, middle, three_quarters = statistics.quantiles(ratios, n=4)
    print(f"ratio   {middle:.3f} (quartiles {quarter:.3f} and {three_quarters:.3f}) in {len(ratios)} rounds")
    print(
        json.dumps(
            {
                "flight_over_tcp": round(statistics.median(ratios), 3),
                "flight_ms": round(1e3 * statistics.median(seconds["flight"]), 2),
                "tcp_ms": round(1e3 * statistics.median(seconds["tcp"]), 2),
                "rounds": len(ratios),
            }
        )
    )


class TcpClient:
    """Sends ids and receives rows straight into the caller's arrays."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read(self, rows: Int64, out: Rows) -> None:
        self._socket.sendall(rows.data.cast("B"))
        for array in (out.values, out.state, out.versions):
            receive_into(self._socket, array)

    def close(self) -> None:
        self._socket.close()


def serve_tcp(port_file: Path) -> None:
    """One client, one request at a time, until it closes."""
    store = MemoryStore(LAYOUT)
    fill(store)
    rows, out = np.empty(NUM_ROWS, np.int64), empty_rows()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        draft = port_file.with_suffix(".draft")
        draft.write_text(str(listener.getsockname()[1]))
        draft.rename(port_file)
        connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while receive_into(connection, rows):
            store.read(rows, out)
            for array in (out.values, out.state, out.versions):
                connection.sendall(array.data.cast("B"))


def receive_into(connection: socket.socket, array: NDArray[np.generic]) -> bool:
    """Fills an array; False if the other side has closed."""
    piece = array.data.cast("B")
    while piece:
        num_bytes = connection.recv_into(piece)
        if not num_bytes:
            return False
        piece = piece[num_bytes:]
    return True


def fill(store: Store) -> None:
    """The same rows in every store."""
    rng = np.random.default_rng(1)
    for begin in range(0, LAYOUT.num_rows, FILL_ROWS):
        rows = np.arange(begin, begin + FILL_ROWS)
        values = rng.random((len(rows), LAYOUT.width), np.float32)
        state = rng.random((len(rows), LAYOUT.state_width), np.float32)
        store.write(rows, Rows(values, state, np.full(len(rows), 1, np.int32)))


def empty_rows() -> Rows:
    """Arrays whose pages are there: neither side pays for that."""
    out = Rows.empty(NUM_ROWS, LAYOUT)
    for array in (out.values, out.state, out.versions):
        array.fill(0)
    return out


def check_same(ours: Rows, theirs: Rows) -> None:
    same = [np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in ("values", "state", "versions")]
    if not all(same):
        sys.exit("the two sides gave different rows")


@contextmanager
def running(command: list[str], port_file: Path) -> Iterator[int]:
    """A server process, ended at the end; gives its port."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not port_file.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"a server did not start: {' '.join(command)}")
            time.sleep(0.02)
        yield int(port_file.read_text())
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
