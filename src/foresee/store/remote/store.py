"""The third store: rows on embedding servers, as if they were here.

In: the addresses of all servers of some tables. Out: the contract of a store, and its guarded forms for runs with
several trainers: `read_guarded` waits, at the servers, for exactly the write-backs it needs, and `write_step` says when
a step's write-backs are complete. Requests go to all servers at once, reads and writes on connections of their own.
Every wait has a deadline and every error names its server.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from foresee.arrays import Int32, Int64
from foresee.errors import ConfigError, ForeseeError, UsageError
from foresee.io.disk_stats import DiskFigures
from foresee.store.commits import Commit, Part
from foresee.store.contract import Rows, check_request
from foresee.store.layout import Layout
from foresee.store.remote import protocol
from foresee.store.remote.link import Deliver, Link
from foresee.store.remote.opening import about, check_agreement, open_server
from foresee.store.row_groups import open_groups
from foresee.store.rpc.endpoint import Endpoint, Watchdog, ask_once
from foresee.store.rpc.security import read_token
from foresee.store.sharding import scatter, split

COMMIT_SECONDS = 600.0
DISKS_EVERY_SECONDS = 0.25
DISKS_SECONDS = 2.0
"""After which a server that does not say what its disk does is left alone."""


class RemoteStore:
    """Rows on servers. Several threads may read at once; writes go one after the other."""

    requests_cost = True

    def __init__(
        self,
        addresses: Sequence[str],
        layout: Layout | None = None,
        *,
        worker: int | None = None,
        num_workers: int | None = None,
        run: str | None = None,
        width: int | None = None,
        first_step: int | None = None,
        opened: bool = False,
        token: str | None = None,
        tls_root_certificate: bytes | None = None,
        deadline_seconds: float = 60.0,
        reads_in_flight: int = 4,
    ) -> None:
        """Connects to all servers, in any order of addresses; with `layout`, only if it is theirs.

        `worker` and `num_workers` make this a trainer of a run, which the guarded forms need. `run` is one name for all
        trainers that are started together, and a new one each time; a single worker may leave it out. `first_step` is
        the step the run begins with: the committed one, if not given. `width`: of the rows, where the servers have rows
        of several; `remote_tables` opens all of them. `opened`: the run was begun by `open_run`, and
        if another has begun since, this trainer is too late. The token comes from FORESEE_TOKEN by default.
        """
        self._check_arguments(addresses, worker, num_workers, run)
        self._closed = False
        self._commit: Commit | None = None
        self._writing, self._deadline_seconds = threading.Lock(), deadline_seconds
        token = read_token(None) if token is None else token
        endpoints = [about(Endpoint.parse(it, token, tls_root_certificate), width) for it in addresses]
        deadline = time.monotonic() + deadline_seconds
        described = [(endpoint, ask_once(endpoint, protocol.DESCRIBE, {}, deadline)) for endpoint in endpoints]
        self._layout, self._committed_step = check_agreement(
            {endpoint.address: description for endpoint, description in described}, layout
        )
        self.run = run or (uuid.uuid4().hex if worker is not None else None)
        if worker is not None:
            join = {
                "run": self.run,
                "worker": worker,
                "num_workers": num_workers,
                "first_step": first_step,
                "opened": opened,
            }
            for endpoint in endpoints:
                ask_once(endpoint, protocol.JOIN, join, deadline)
        self._watchdog = Watchdog()
        described.sort(key=lambda pair: int(pair[1]["shard"]))
        self._links = [
            Link(
                endpoint,
                layout=self._layout,
                description=description,
                run=self.run,
                worker=worker,
                deadline_seconds=deadline_seconds,
                reads_in_flight=reads_in_flight,
                watchdog=self._watchdog,
            )
            for endpoint, description in described
        ]
        self._disks: list[DiskFigures] = []
        self._disks_at = 0.0
        self._asked: Future[None] | None = None
        self._threads = ThreadPoolExecutor(len(self._links) * (reads_in_flight + 1), "foresee-remote")

    @property
    def layout(self) -> Layout:
        return self._layout

    def disks(self) -> list[DiskFigures]:
        """What the servers' disks did, as they last said; asking again goes on meanwhile. Never waits."""
        idle = self._asked is None or self._asked.done()
        if idle and not self._closed and time.monotonic() - self._disks_at > DISKS_EVERY_SECONDS:
            self._asked = self._threads.submit(self._ask_disks)
        return self._disks

    def _ask_disks(self) -> None:
        deadline = time.monotonic() + DISKS_SECONDS
        with suppress(ForeseeError):
            answers = [ask_once(link.endpoint, protocol.STATUS, {}, deadline) for link in self._links]
            if all(answer.get("disk") for answer in answers):
                self._disks = [answer["disk"] for answer in answers]
        self._disks_at = time.monotonic()

    @property
    def committed_step(self) -> int:
        """As of when this store was opened, or of its own last commit."""
        return self._committed_step

    def read(self, rows: Int64, out: Rows) -> None:
        self._check_open()
        check_request(self._layout, rows, out)
        self._read_all(rows, out, lambda link, part, positions, receive_rows: link.read(part, receive_rows))

    def read_guarded(self, rows: Int64, versions: Int32, not_before: int, out: Rows) -> None:
        """Reads rows once they are what the plan expects; waits at the servers, up to the deadline.

        A row is ready when its stored version is the expected one, or, with UNKNOWN_VERSION, when every worker's
        write-backs up to step `not_before` are applied.
        """
        self._check_open()
        self._check_run("read_guarded")
        check_request(self._layout, rows, out)
        if len(versions) != len(rows) or versions.dtype != out.versions.dtype:
            raise UsageError(f"{len(rows)} rows need as many int32 versions, got {len(versions)} of {versions.dtype}")

        def read(link: Link, part: Int64, positions: Int64 | None, receive_rows: Deliver) -> None:
            expected = versions if positions is None else versions[positions]
            link.read_guarded(part, expected, not_before, receive_rows)

        self._read_all(rows, out, read)

    def write(self, rows: Int64, source: Rows) -> None:
        self._check_open()
        check_request(self._layout, rows, source)
        self._write_all(rows, source, step=None)

    def write_step(self, step: int, rows: Int64, source: Rows, next_use: Int32 | None = None) -> None:
        """Assigns this worker's write-backs of a step; then, at every server, the step counts as applied.

        Every step has to be handed over, in order, also one without rows.
        """
        self._check_open()
        self._check_run("write_step")
        check_request(self._layout, rows, source)
        self._write_all(rows, source, step=step, next_use=next_use)

    def commit(self, step: int) -> None:
        """Commits on all servers or on none: every one of them prepares before the first one settles."""
        if step == self._committed_step:
            # The same state again, with what was written since: no server can be at another step for it.
            self._check_open()
            self._on_all([partial(link.commit, step, COMMIT_SECONDS) for link in self._links])
            return
        self.prepare(step)
        self.settle(step)

    def prepare(self, step: int) -> None:
        """On return the step is durable on all servers, and the last commit still is, too."""
        self._check_open()
        if step < self._committed_step:
            raise UsageError(f"step {step} cannot be committed: step {self._committed_step} already is")
        self._commit = self._tell_all(
            Commit(run=self.run, step=step, on=self._committed_step, num_parts=len(self._links))
        )

    def settle(self, step: int) -> None:
        """The prepared step is the last commit on all servers. Call it when nothing can take it back any more."""
        self._check_open()
        if self._commit is None or self._commit.step != step or not self._commit.may_decide:
            raise UsageError(f"step {step} is not prepared; prepare it first")
        self._tell_all(self._commit.after_manifest())
        self._commit, self._committed_step = None, step

    @property
    def parts(self) -> tuple[Part, ...]:
        """What each server has; asks all of them."""
        self._check_open()
        ask = [partial(ask_once, link.endpoint, protocol.DESCRIBE, {}, self._deadline()) for link in self._links]
        return tuple(protocol.part_from_dict(description) for description in self._on_all(ask))

    def open_at(self, step: int) -> None:
        """Goes to a commit that all servers have; trainers that use them are given up, and so is what they wrote.

        Not for a trainer: its peers would not know. `open_run` opens all servers before any trainer joins.
        """
        self._check_open()
        if self.run is not None:
            raise UsageError(
                f"a trainer cannot take its servers to step {step}: others may be training; close it, and start the "
                "run again, which opens all servers at one commit"
            )
        run, parts = uuid.uuid4().hex, self.parts
        jobs = [
            partial(open_server, link.endpoint, part, run=run, step=step, started=part.started)
            for link, part in zip(self._links, parts, strict=True)
        ]
        self._on_all(jobs)
        self._commit, self._committed_step = None, step

    def _tell_all(self, commit: Commit) -> Commit:
        """Tells every server what it still has to be told, all at once, and waits for all answers."""
        messages = commit.outstanding()
        self._on_all([partial(self._links[part].tell, it, COMMIT_SECONDS) for part, it in messages.items()])
        for part, message in messages.items():
            commit = commit.consented(part, message)
        return commit

    def close(self) -> None:
        """Ends all connections; the servers go on and keep what was written."""
        if self._closed:
            return
        self._closed = True
        for link in self._links:
            link.close()
        self._threads.shutdown()
        self._watchdog.close()

    def _read_all(self, rows: Int64, out: Rows, read: Callable[[Link, Int64, Int64 | None, Deliver], None]) -> None:
        if not len(rows):
            return
        if len(self._links) == 1:
            read(self._links[0], rows, None, _place_into(out))
            return
        parts = split(rows, len(self._links))
        jobs = []
        for shard, link in enumerate(self._links):
            positions = parts.of(shard)
            if len(positions):
                jobs.append(partial(read, link, rows[positions], positions, _scatter_into(out, positions)))
        self._on_all(jobs)

    def _write_all(self, rows: Int64, source: Rows, *, step: int | None, next_use: Int32 | None = None) -> None:
        accepted = min(link.rows_per_request_max for link in self._links)
        chunk = min(protocol.chunk_rows(-(-len(rows) // len(self._links)), self._layout), accepted)
        with self._writing:
            if len(self._links) == 1:
                if len(rows) or step is not None:
                    batches = partial(_own_batches, rows=rows, source=source, next_use=next_use, chunk=chunk)
                    self._links[0].write(batches, step)
                return
            parts = split(rows, len(self._links))
            jobs = []
            for shard, link in enumerate(self._links):
                at = parts.of(shard)
                if len(at) or step is not None:
                    batches = partial(
                        _gathered_batches, rows=rows, source=source, next_use=next_use, positions=at, chunk=chunk
                    )
                    jobs.append(partial(link.write, batches, step))
            self._on_all(jobs)

    def _on_all(self, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
        """Runs jobs at once and waits for all of them, so that nobody touches the buffers afterwards."""
        if len(jobs) == 1:
            return [jobs[0]()]
        futures = [self._threads.submit(job) for job in jobs]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]

    def _deadline(self) -> float:
        return time.monotonic() + self._deadline_seconds

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this store is closed; open it again to use it")

    def _check_run(self, what: str) -> None:
        if self.run is None:
            raise UsageError(f"{what} is for the trainers of a run; open the store with worker= and num_workers=")

    @staticmethod
    def _check_arguments(
        addresses: Sequence[str], worker: int | None, num_workers: int | None, run: str | None
    ) -> None:
        if isinstance(addresses, str) or not addresses:
            raise ConfigError(f"servers are given as a list of addresses, got {addresses!r}")
        if (worker is None) != (num_workers is None):
            raise UsageError("a trainer of a run gives both worker= and num_workers=")
        if num_workers is not None and num_workers > 1 and run is None:
            raise UsageError(f"{num_workers} workers share one run; give all of them the same run= name")


def remote_tables(addresses: Sequence[str], layout: Layout, **settings: Any) -> Any:
    """The rows of all widths on these servers: a `RemoteStore`, or one for each row group."""

    def open_group(_: Path, group: Layout) -> RemoteStore:
        return RemoteStore(addresses, group, width=group.width if layout.widths else None, **settings)

    return open_groups(layout, Path(), open_group)


def _place_into(out: Rows) -> Deliver:
    """Chunks of the only server come in the caller's order."""

    def receive_rows(begin: int, chunk: Rows) -> None:
        end = begin + len(chunk)
        out.values[begin:end] = chunk.values
        out.state[begin:end] = chunk.state
        out.versions[begin:end] = chunk.versions

    return receive_rows


def _scatter_into(out: Rows, positions: Int64) -> Deliver:
    return lambda begin, chunk: scatter(chunk, positions[begin : begin + len(chunk)], out)


def _own_batches(
    schema: Any, rows: Int64, source: Rows, next_use: Int32 | None, chunk: int
) -> Iterator[tuple[Any, bool]]:
    """Batches that share the caller's memory, which stays as it is until the servers have answered."""
    for begin in range(0, max(1, len(rows)), chunk):
        end = begin + chunk
        uses = None if next_use is None else next_use[begin:end]
        yield protocol.write_batch(schema, rows[begin:end], source.part(slice(begin, end)), uses), end >= len(rows)


def _gathered_batches(
    schema: Any, rows: Int64, source: Rows, next_use: Int32 | None, positions: Int64, chunk: int
) -> Iterator[tuple[Any, bool]]:
    """Batches of one server's rows."""
    for begin in range(0, max(1, len(positions)), chunk):
        at = positions[begin : begin + chunk]
        uses = None if next_use is None else next_use[at]
        yield protocol.write_batch(schema, rows[at], source.part(at), uses), begin + chunk >= len(positions)
