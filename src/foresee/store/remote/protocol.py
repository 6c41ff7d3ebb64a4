"""What travels between a remote store and an embedding server: Arrow batches with a small JSON header each.

A connection is one Flight exchange that stays open. Its descriptor says who opens it (`Opening`) and the server answers
with one header. Then requests and replies alternate:

    read, guarded   one batch of row ids (guarded: and expected versions)  →  batches of rows, in the order asked
    write           batches of rows, the last one marked                   →  one header: all of them are applied

A server that lays rows out by their next use says so when it describes itself (`takes_next_use`); writes to it have one
column more.

Values and optimiser state are fixed-size binary columns, so a chunk of rows is three contiguous pieces of memory that
numpy and Arrow share without a copy. A failure is a header of its own (`store.rpc.failures`): the connection goes
on. Nothing here is ever executed or unpickled.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foresee.arrays import Int32, Int64
from foresee.plan.record import NOT_KNOWN
from foresee.store.commits import Part
from foresee.store.contract import Rows
from foresee.store.layout import Layout
from foresee.store.rpc.failures import to_json

PROTOCOL_VERSION = 2
CHUNKS = 6
CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 1 << 19, 1 << 22
"""A request travels in about six chunks: while one is on its way the next is gathered. More of them would overlap a
little better and cost more wake-ups of both processes than that is worth."""

READ, GUARDED, WRITE = "read", "guarded", "write"

DESCRIBE, JOIN, COMMIT, STATUS = "describe", "join", "commit", "status"
OPEN_AT, PREPARE, SETTLE = "open_at", "prepare", "settle"
"""Flight actions: JSON in, JSON out."""
WIDTH = "width"
"""Of the rows that a question is about, where a server has rows of several widths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Who opens a connection, and for what."""

    kind: str
    incarnation: str
    """The server process that the client knows: another one has lost what was not committed."""
    run: str | None = None
    worker: int | None = None
    width: int | None = None
    """Of the rows, where a server has several."""

    def to_bytes(self) -> bytes:
        return to_json(asdict(self))

    @classmethod
    def from_bytes(cls, content: bytes) -> Opening:
        return cls(**json.loads(content))


def part_to_dict(part: Part) -> dict[str, Any]:
    """What a server says of its commits."""
    return {
        "committed_step": part.committed,
        "previous_step": part.previous,
        "prepared_step": part.prepared,
        "incarnation": part.incarnation,
        "epoch": part.epoch,
        "stored_steps": sorted(part.stored),
    }


def part_from_dict(content: dict[str, Any]) -> Part:
    """Raises KeyError, TypeError or ValueError for what is not one."""
    previous, prepared = content["previous_step"], content["prepared_step"]
    return Part(
        committed=int(content["committed_step"]),
        previous=None if previous is None else int(previous),
        prepared=None if prepared is None else int(prepared),
        incarnation=str(content["incarnation"]),
        epoch=int(content["epoch"]),
        stored=frozenset(int(step) for step in content.get("stored_steps", ())),
    )


def chunk_rows(num_rows: int, layout: Layout) -> int:
    """Rows of one chunk of a request."""
    fewest, most = CHUNK_BYTES_MIN // layout.row_bytes, CHUNK_BYTES_MAX // layout.row_bytes
    return max(1, min(max(-(-num_rows // CHUNKS), fewest), most))


def request_schema(kind: str, layout: Layout, *, next_use: bool = False) -> Any:
    """The columns of a request; `next_use`: of a write that says when its rows are used next."""
    row = pa.field("row", pa.int64(), nullable=False)
    if kind == READ:
        return pa.schema([row])
    if kind == GUARDED:
        return pa.schema([row, pa.field("version", pa.int32(), nullable=False)])
    hint = [pa.field("next_use", pa.int32(), nullable=False)] if next_use else []
    return pa.schema([row, *hint, *rows_schema(layout)])


def rows_schema(layout: Layout) -> Any:
    """A chunk of rows. A state of width zero has no column."""
    fields = [("values", pa.binary(4 * layout.value_words))]
    if layout.state_width:
        fields.append(("state", pa.binary(4 * layout.state_width)))
    fields.append(("version", pa.int32()))
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])


def ids_batch(schema: Any, rows: Int64, versions: Int32 | None) -> Any:
    """A read request; the batch shares the memory of the arrays."""
    columns = [_column(pa.int64(), rows)]
    if versions is not None:
        columns.append(_column(pa.int32(), versions))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def write_batch(schema: Any, rows: Int64, source: Rows, next_use: Int32 | None = None) -> Any:
    """Rows to assign, with their next uses if the schema has them; the batch shares the memory of the arrays."""
    columns = [_column(pa.int64(), rows)]
    if schema.names[1] == "next_use":
        unknown = np.full(len(rows), NOT_KNOWN, np.int32)
        columns.append(_column(pa.int32(), unknown if next_use is None else next_use))
    columns.append(_column(pa.binary(4 * source.values.shape[1]), source.values))
    if source.state.shape[1]:
        columns.append(_column(pa.binary(4 * source.state.shape[1]), source.state))
    columns.append(_column(pa.int32(), source.versions))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def empty_chunk(schema: Any, num_rows: int, layout: Layout) -> tuple[Any, Rows]:
    """A chunk to be filled through its rows, then sent as it is; `schema` is the layout's `rows_schema`.

    Its memory comes out of Arrow's pool, which hands the same pages out again: fresh ones would cost a fault each.
    """
    values, values_buffer = _memory(np.float32, num_rows, layout.value_words)
    state, state_buffer = _memory(np.float32, num_rows, layout.state_width)
    versions, versions_buffer = _memory(np.int32, num_rows, 1)
    buffers = (values_buffer, state_buffer, versions_buffer) if layout.state_width else (values_buffer, versions_buffer)
    kinds = zip(schema.types, buffers, strict=True)
    columns = [pa.Array.from_buffers(kind, num_rows, [None, buffer]) for kind, buffer in kinds]
    return pa.RecordBatch.from_arrays(columns, schema=schema), Rows(values, state, versions.reshape(num_rows))


def _memory(dtype: Any, num_rows: int, width: int) -> tuple[NDArray[Any], Any]:
    """An array, and the buffer that it is a view of."""
    buffer = pa.allocate_buffer(4 * num_rows * width)
    return np.frombuffer(buffer, dtype).reshape(num_rows, width), buffer


def batch_ids(batch: Any) -> tuple[Int64, Int32 | None]:
    """Row ids of a read request, and the expected versions if it has them."""
    versions = _array(batch.column(1), np.int32) if batch.num_columns > 1 else None
    return _array(batch.column(0), np.int64), versions


def batch_next_use(batch: Any) -> Int32 | None:
    """The next uses of a chunk of a write, if it has them."""
    return _array(batch.column(1), np.int32) if batch.schema.names[1] == "next_use" else None


def batch_rows(batch: Any, layout: Layout, first_column: int = 0) -> Rows:
    """The rows of a chunk, as views of its memory."""
    values = _array(batch.column(first_column), np.float32).reshape(batch.num_rows, layout.value_words)
    if layout.state_width:
        state = _array(batch.column(first_column + 1), np.float32).reshape(batch.num_rows, layout.state_width)
    else:
        state = np.empty((batch.num_rows, 0), np.float32)
    return Rows(values, state, _array(batch.column(batch.num_columns - 1), np.int32))


def _column(kind: Any, array: NDArray[Any]) -> Any:
    return pa.Array.from_buffers(kind, len(array), [None, pa.py_buffer(array)])


def _array(column: Any, dtype: Any) -> NDArray[Any]:
    """The memory of a column without missing entries."""
    item_bytes = column.type.bit_width // 8
    if not len(column):
        return np.empty(0, dtype)
    words = item_bytes // np.dtype(dtype).itemsize
    return np.frombuffer(column.buffers()[1], dtype, len(column) * words, column.offset * item_bytes)
