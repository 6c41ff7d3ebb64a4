"""What a client sent, taken apart and checked before anything acts on it.

In: bytes and Arrow batches off a wire. Out: plain values of the right kind and range, or a StoreError in a sentence;
never another exception, whatever the bytes are. Ids are held against the tables later, by the store. How many bytes
rows take on the wire and in memory, which `store.rpc.limits` bounds without knowing rows, is counted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from foresee.arrays import Int32, Int64
from foresee.errors import StoreError
from foresee.io import bounded_json
from foresee.plan.record import NOT_KNOWN
from foresee.store.commits import OpenAt, Prepare, Settle
from foresee.store.contract import Rows
from foresee.store.layout import WIDTH_MAX, Layout
from foresee.store.remote import protocol
from foresee.store.remote.protocol import Opening
from foresee.store.rpc.connection_limiter import Rules
from foresee.store.rpc.limits import ACTION_BYTES_MAX, Limits

RUN_CHARACTERS_MAX = 256
WORKERS_MAX = 1 << 16
STARTED_MAX = 1 << 53
"""Milliseconds."""
PARK_SECONDS_MAX = 86_400.0
VERSION_MAX = bounded_json.SMALL_MAX - 1
"""One less than fits: shards count versions from one higher."""
ID_BYTES = 12
"""Of a row id and the version expected of it."""
_REMEDY = "use a client of this version"


def connection_rules(limits: Limits, *layouts: Layout) -> Rules:
    """What connections may take: clients of ours send ids in one message, and rows in pieces."""
    largest = ID_BYTES * limits.rows_per_request_max
    for layout in layouts:
        rows_of_a_write = protocol.chunk_rows(limits.rows_per_request_max, layout)
        largest = max(largest, rows_of_a_write * (layout.row_bytes + ID_BYTES))
    return limits.rules(message_bytes_max=largest + (1 << 16))


def read_bytes(num_rows: int, layout: Layout) -> int:
    """Held while a read is served: the ids as they came and as a copy, a piece of the reply, and, while a part of it
    is parked, that part once more."""
    piece = min(num_rows, protocol.chunk_rows(num_rows, layout))
    return 2 * ID_BYTES * num_rows + 2 * piece * layout.row_bytes


def write_bytes(message_bytes: int) -> int:
    """Held while rows are assigned: the message, and a copy that is ours."""
    return 2 * message_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """A worker of a run."""

    run: str
    worker: int
    num_workers: int
    first_step: int | None
    opened: bool
    """The run was begun by `open_at`, and this worker belongs to no other."""


def parse_content(body: bytes) -> dict[str, Any]:
    """The JSON object of a question or a header; nothing stands for an empty one."""
    with _refused("this content"):
        if len(body) > ACTION_BYTES_MAX:
            raise ValueError(f"it has {len(body):,} bytes, more than {ACTION_BYTES_MAX:,}")
        return bounded_json.parse_object(body or b"{}")


def parse_opening(command: bytes | None) -> Opening:
    """Who opens a connection."""
    content = parse_content(command or b"")
    with _refused("this opening"):
        kind = bounded_json.text_of(content, "kind")
        if kind not in (protocol.READ, protocol.GUARDED, protocol.WRITE):
            raise ValueError("its kind is none of read, guarded and write")
        return Opening(
            kind=kind,
            incarnation=bounded_json.text_of(content, "incarnation", RUN_CHARACTERS_MAX),
            run=_run(content),
            worker=None if content.get("worker") is None else bounded_json.whole(content, "worker", 0, WORKERS_MAX - 1),
            width=_width(content),
        )


def parse_width(content: dict[str, Any]) -> int | None:
    """Which rows a question is about, where there are rows of several widths."""
    with _refused("this question"):
        return _width(content)


def _width(content: dict[str, Any]) -> int | None:
    return None if content.get(protocol.WIDTH) is None else bounded_json.whole(content, protocol.WIDTH, 1, WIDTH_MAX)


def parse_joining(content: dict[str, Any]) -> Joining:
    with _refused("this joining"):
        num_workers = bounded_json.whole(content, "num_workers", 1, WORKERS_MAX)
        return Joining(
            run=bounded_json.text_of(content, "run", RUN_CHARACTERS_MAX),
            worker=bounded_json.whole(content, "worker", -WORKERS_MAX, WORKERS_MAX),
            num_workers=num_workers,
            first_step=None if content.get("first_step") is None else bounded_json.whole(content, "first_step"),
            opened=content.get("opened") is True,
        )


def parse_open_at(content: dict[str, Any]) -> tuple[OpenAt, int]:
    """At which commit a run begins, and how many workers it has."""
    with _refused("this opening of a run"):
        message = OpenAt(
            run=bounded_json.text_of(content, "run", RUN_CHARACTERS_MAX),
            incarnation=bounded_json.text_of(content, "incarnation", RUN_CHARACTERS_MAX),
            epoch=bounded_json.whole(content, "epoch"),
            step=bounded_json.whole(content, "step"),
            started=bounded_json.whole(content, "started", high=STARTED_MAX),
        )
        return message, bounded_json.whole(content, "num_workers", 1, WORKERS_MAX)


def parse_prepare(content: dict[str, Any]) -> Prepare:
    with _refused("this commit"):
        return Prepare(
            run=_run(content), step=bounded_json.whole(content, "step"), on=bounded_json.whole(content, "on")
        )


def parse_settle(content: dict[str, Any]) -> Settle:
    with _refused("this commit"):
        return Settle(run=_run(content), step=bounded_json.whole(content, "step"))


def parse_commit(content: dict[str, Any]) -> tuple[int, str | None]:
    """The step to commit, and the run it is for."""
    with _refused("this commit"):
        return bounded_json.whole(content, "step"), _run(content)


def parse_guard(header: dict[str, Any]) -> tuple[int, float]:
    """The step a guarded read waits for, and how many seconds it may."""
    with _refused("this guarded read"):
        park_seconds = bounded_json.number(header, "park_seconds", -PARK_SECONDS_MAX, PARK_SECONDS_MAX)
        return bounded_json.whole(header, "not_before", -1), park_seconds


def parse_write_header(header: dict[str, Any]) -> tuple[bool, int | None]:
    """Whether a piece is the last of a write, and the step it belongs to."""
    with _refused("this write"):
        if not isinstance(header.get("last"), bool):
            raise ValueError("last is neither true nor false")
        return header["last"], None if header.get("step") is None else bounded_json.whole(header, "step")


def ids_of(batch: Any, kind: str, layout: Layout) -> tuple[Int64, Int32 | None]:
    """Row ids of a read, and the versions expected of them; copies, since kernels want arrays of their own."""
    check_batch(batch, protocol.request_schema(kind, layout))
    with _refused("this read"):
        rows, versions = protocol.batch_ids(batch)
        return np.array(rows), None if versions is None else np.array(versions)


def rows_of(batch: Any, layout: Layout) -> tuple[Int64, Rows, Int32 | None]:
    """Ids and rows of a piece of a write, and their next uses if it has them; copies, since the message goes."""
    with _refused("this write"):
        hinted = "next_use" in batch.schema.names
    check_batch(batch, protocol.request_schema(protocol.WRITE, layout, next_use=hinted))
    with _refused("this write"):
        rows, _ = protocol.batch_ids(batch.select([0]))
        source = protocol.batch_rows(batch, layout, first_column=1 + hinted)
        own = Rows(np.array(source.values), np.array(source.state), np.array(source.versions))
        next_use = np.array(protocol.batch_next_use(batch)) if hinted else None
    if next_use is not None and int(next_use.min(initial=0)) < NOT_KNOWN:
        raise StoreError(f"a write says that a row is used next in step {int(next_use.min())}; {_REMEDY}")
    if len(own.versions) and int(own.versions.max()) > VERSION_MAX:
        raise StoreError(f"a write gives a row version {int(own.versions.max())}, more than {VERSION_MAX}; {_REMEDY}")
    ascending = np.sort(rows)
    if (ascending[1:] == ascending[:-1]).any():
        raise StoreError(f"a write of {len(rows)} rows has one of them twice, and only one can count; {_REMEDY}")
    return np.array(rows), own, next_use


def check_batch(batch: Any, schema: Any) -> None:
    """Columns as agreed, every value there, and buffers as long as they say."""
    with _refused("this request"):  # even the names of columns may be no text
        if not batch.schema.equals(schema):
            found = ", ".join(f"{field.name} {field.type}" for field in batch.schema)[:200]
            raise StoreError(f"a request has the columns {found or 'of nothing'}, not those of these tables; {_REMEDY}")
        batch.validate()
        if any(column.null_count for column in batch.columns):
            raise ValueError("values are missing")


def _run(content: dict[str, Any]) -> str | None:
    return None if content.get("run") is None else bounded_json.text_of(content, "run", RUN_CHARACTERS_MAX)


@contextmanager
def _refused(what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, OverflowError, pa.ArrowException, MemoryError) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{what} cannot be understood: {reason}; {_REMEDY}") from None
