"""How one server is reached: its address, token and certificates; small questions, new connections, and deadlines.

In: an address such as grpc://127.0.0.1:4444 or grpc+tls://host:4444, or file:///path of a file that has one in it and
is looked at for every new connection, so that a server may move. Out: Flight clients and answers of actions; what the
other side refuses with is raised as it was there (`failures`), and a connection that stays broken is an
UnavailableError. Every question has a timeout. Flight's own timeouts are for whole calls, and some of ours stay open
for a run, so `Watchdog` ends what takes too long. A token never goes over a connection that others could read.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from foresee.errors import ConfigError, StoreError, StoreUnavailableError
from foresee.store.rpc.failures import raise_failure, to_json
from foresee.store.rpc.security import AUTHORIZATION, is_loopback

TRANSPORT_ERRORS = (flight.FlightError, pa.ArrowException, OSError)
"""What a broken connection looks like from here."""

FILE = "file://"

RETRIES_MAX = 3
PAUSE_SECONDS = 0.2

_OPTIONS = [
    # Each connection of ours is a connection of the system, so that reads do not queue behind writes.
    ("grpc.use_local_subchannel_pool", 1),
    # Rows come in megabytes: large frames, and a window that a request fits in, mean fewer wake-ups of both sides.
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.http2.lookahead_bytes", 1 << 24),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.min_reconnect_backoff_ms", 2000),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One server, before anything is sent to it."""

    given: str
    """An address, or the file that has it."""
    token: str | None = field(default=None, repr=False)
    tls_root_certificate: bytes | None = field(default=None, repr=False)
    about: tuple[tuple[str, int], ...] = ()
    """What every question says beside its content: which rows it is about, where a server has several kinds."""

    @classmethod
    def parse(cls, address: str, token: str | None, tls_root_certificate: bytes | None) -> Endpoint:
        given = address if address.startswith(FILE) else _checked(address)
        return cls(given=given, token=token, tls_root_certificate=tls_root_certificate)

    @property
    def address(self) -> str:
        """Where the server is now; the name of the file while that has no address."""
        try:
            return self._find()
        except (OSError, ConfigError):
            return self.given

    def client(self) -> Any:
        """A Flight client with a connection of its own, which it makes when it is first used. An OSError if there is a
        file to look the address up in, and it is not there yet."""
        return flight.FlightClient(self._find(), tls_root_certs=self.tls_root_certificate, generic_options=_OPTIONS)

    def _find(self) -> str:
        if not self.given.startswith(FILE):
            return self.given
        return _checked(Path(self.given.removeprefix(FILE)).read_text("utf-8", "replace").strip())

    def options(self, timeout_seconds: float | None = None) -> Any:
        headers = [] if self.token is None else [(AUTHORIZATION.encode(), f"Bearer {self.token}".encode())]
        return flight.FlightCallOptions(timeout=timeout_seconds, headers=headers)

    def ask(self, client: Any, action: str, content: dict[str, Any], deadline: float) -> dict[str, Any]:
        """The answer to an action. Raises what the server refused with, or one of TRANSPORT_ERRORS."""
        timeout_seconds = max(0.001, deadline - time.monotonic())
        body = to_json({**content, **dict(self.about)})
        results = client.do_action(flight.Action(action, body), self.options(timeout_seconds))
        answer: dict[str, Any] = json.loads(next(iter(results)).body.to_pybytes())
        raise_failure(answer, self.address)
        return answer

    def sentence(self, error: BaseException, what: str, waited_seconds: float) -> StoreError:
        """What a transport error means: a token is a person's mistake, anything else a server that is away."""
        if is_refused_token(error):
            return StoreError(f"server {self.address} refuses the token; give the one it was started with")
        if isinstance(error, (flight.FlightTimedOutError, flight.FlightCancelledError)):
            return StoreUnavailableError(
                f"server {self.address} did not answer {what} within {waited_seconds:.1f} s; "
                "see whether it hangs (foresee status) and resume from the last commit"
            )
        return StoreUnavailableError(
            f"server {self.address} cannot be reached for {what} ({cause_of(error)}); "
            "see whether it runs, start it again and resume from the last commit"
        )


def _checked(address: str) -> str:
    """The address as gRPC wants it, or a sentence."""
    parts = urlsplit(address if "://" in address else f"grpc://{address}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("grpc", "grpc+tls") or not parts.hostname or not port or parts.path not in ("", "/"):
        raise ConfigError(f"{address!r} is not the address of a server; write grpc://host:port or grpc+tls://…")
    if parts.scheme == "grpc" and not is_loopback(parts.hostname):
        raise ConfigError(f"{address} is another machine and rows would travel in the clear; use grpc+tls://")
    return f"{parts.scheme}://{parts.netloc}"


def cause_of(error: BaseException) -> str:
    """What a transport error says, without its inside."""
    return str(error).split(". gRPC client debug context")[0].split(". Detail:")[0]


def is_refused_token(error: BaseException) -> bool:
    return isinstance(error, (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError))


def ask_patiently(
    endpoint: Endpoint, action: str, content: dict[str, Any], timeout_seconds: float, what: str
) -> dict[str, Any]:
    """The answer to a question that may be asked more than once: again, after a pause, if the connection breaks."""
    begun, failures = time.monotonic(), 0
    while True:
        client = endpoint.client()
        try:
            return endpoint.ask(client, action, content, begun + timeout_seconds)
        except TRANSPORT_ERRORS as error:
            failures += 1
            waited = time.monotonic() - begun
            if failures > RETRIES_MAX or waited + PAUSE_SECONDS > timeout_seconds or is_refused_token(error):
                raise endpoint.sentence(error, what, waited) from error
        finally:
            client.close()
        time.sleep(PAUSE_SECONDS)


def ask_once(endpoint: Endpoint, action: str, content: dict[str, Any], deadline: float) -> dict[str, Any]:
    """The answer to one question on a connection of its own; errors are sentences."""
    client, begun = endpoint.client(), time.monotonic()
    try:
        return endpoint.ask(client, action, content, deadline)
    except TRANSPORT_ERRORS as error:
        raise endpoint.sentence(error, f"the question '{action}'", time.monotonic() - begun) from error
    finally:
        client.close()


@dataclass(slots=True)
class Watch:
    """One call under a deadline."""

    cancel: Callable[[], None]
    done: bool = False
    expired: bool = False


class Watchdog:
    """Ends calls that take too long, with one thread for all of them. It starts with the first watch; `close` ends it.

    Whoever is blocked in the call gets that call's error and finds `expired` set. A call that ends in time costs two
    short locks: the thread sleeps on until the deadline it last knew of, and is woken only for an earlier one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: list[tuple[float, int, Watch]] = []
        self._order = itertools.count()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def watch(self, deadline: float, cancel: Callable[[], None]) -> Iterator[Watch]:
        """Calls `cancel` if the block has not been left by `deadline` (time.monotonic)."""
        watch = Watch(cancel)
        with self._changed:
            heapq.heappush(self._watches, (deadline, next(self._order), watch))
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="foresee-watchdog", daemon=True)
                self._thread.start()
            elif deadline < self._wakes_at:
                self._changed.notify_all()
        try:
            yield watch
        finally:
            with self._changed:
                watch.done = True
                while self._watches and self._watches[0][2].done:
                    heapq.heappop(self._watches)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                self._wakes_at = self._watches[0][0] if self._watches else math.inf
                remaining = self._wakes_at - time.monotonic()
                if remaining <= 0:
                    watch = heapq.heappop(self._watches)[2]
                    if not watch.done:
                        # Set before the call: the blocked thread may run at once.
                        watch.expired = True
                        watch.cancel()
                else:
                    self._changed.wait(None if math.isinf(remaining) else remaining)
