"""A record as one row of Arrow columns, and back.

In: a `Record`, or a batch that a file claims to be one. Out: arrays for Arrow, or a `Record` whose every length, slot,
row and position fits the header; anything else is a sentence. The checksum covers every number of a record, because
Arrow has none of its own.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foresee.errors import PlanError
from foresee.plan.record import NOT_KNOWN, Evict, Fetch, Header, Kind, Record, Transfers, refuse_compared

# Column names and Arrow types, in the order of the file. Names of two parts are a group and its field.
SCALARS = {"step": pa.int32(), "worker": pa.int32(), "not_before": pa.int32(), "digest": pa.int64()}
ARRAYS = {
    "samples": pa.int32(), "unique": pa.int32(), "inverse": pa.int32(),
    "fetch.row": pa.int64(), "fetch.slot": pa.int32(), "fetch.version": pa.int32(),
    "apply": pa.int32(),
    "evict.slot": pa.int32(), "evict.row": pa.int64(), "evict.version": pa.int32(),
    "recv.peer": pa.int32(), "recv.slot": pa.int32(), "recv.kind": pa.int32(), "recv.deadline": pa.int32(),
    "send.peer": pa.int32(), "send.slot": pa.int32(), "send.kind": pa.int32(), "send.deadline": pa.int32(),
    "drop": pa.int32(),
    "evict.next_use": pa.int32(),
}  # fmt: skip
CHECKSUM = "crc32"
NEXT_USE = "evict.next_use"
"""Empty where nobody knows; last, so that the checksums of records without it are those that they had."""


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


SCHEMA = pa.schema(
    [_required(name, kind) for name, kind in SCALARS.items()]
    + [_required(name, pa.list_(_required("item", kind))) for name, kind in ARRAYS.items()]
    + [_required(CHECKSUM, pa.uint32())]
)

FIRST_SCHEMA = SCHEMA.remove(SCHEMA.get_field_index(NEXT_USE))
"""Of format version 1."""
SCHEMAS = (SCHEMA, FIRST_SCHEMA)

Scalars = dict[str, int]
Arrays = dict[str, NDArray[Any]]


def batch_of(record: Record) -> pa.RecordBatch:
    """The record as a batch of one row. One that only compares has no columns here and is refused."""
    refuse_compared(record, "kept")
    if record.read_ahead:
        raise PlanError(f"step {record.step}: a plan with batches in flight cannot be kept; plan it while training")
    scalars = {name: int(getattr(record, name)) for name in SCALARS}
    arrays = {name: np.ascontiguousarray(_lookup(record, name)) for name in ARRAYS}
    columns = [pa.array([scalars[name]], kind) for name, kind in SCALARS.items()]
    columns += [_one_list(array, SCHEMA.field(name).type) for name, array in arrays.items()]
    return pa.record_batch([*columns, pa.array([checksum(scalars, arrays)], pa.uint32())], schema=SCHEMA)


def empty_batch() -> pa.RecordBatch:
    """A batch of no row."""
    return pa.record_batch([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA)


def record_of(batch: pa.RecordBatch, header: Header, step: int, worker: int) -> Record:
    """The record of this step and worker; raises PlanError, or an Arrow error, if it is anything else."""
    if not any(batch.schema.equals(schema) for schema in SCHEMAS) or batch.num_rows != 1:
        raise PlanError("its columns are not those of a record")
    batch.validate(full=True)
    if any(column.null_count for column in batch.columns):
        raise PlanError("it has values missing")
    scalars = {name: int(batch.column(name)[0].as_py()) for name in SCALARS}
    # Copies: the record must not depend on a file that may change, and kernels want arrays of their own.
    arrays = {name: np.array(batch.column(name).flatten()) for name in ARRAYS if name in batch.schema.names}
    if checksum(scalars, arrays) != batch.column(CHECKSUM)[0].as_py():
        raise PlanError("its checksum does not match")
    if (scalars["step"], scalars["worker"]) != (step, worker):
        raise PlanError(f"step {scalars['step']} of worker {scalars['worker']} stands in its place")
    arrays.setdefault(NEXT_USE, np.empty(0, np.int32))
    check_bounds(scalars, arrays, header)
    return _record(scalars, arrays)


def checksum(scalars: Scalars, arrays: Arrays) -> int:
    """CRC-32 of all numbers of a record, with the lengths between them; arrays in the order of ARRAYS."""
    running = zlib.crc32(struct.pack("<4q", *(scalars[name] for name in SCALARS)))
    for array in arrays.values():
        running = zlib.crc32(struct.pack("<q", len(array)), running)
        running = zlib.crc32(array.astype(array.dtype.newbyteorder("<"), copy=False).data, running)
    return running


def check_bounds(scalars: Scalars, arrays: Arrays, header: Header) -> None:
    """Holds every index of a record against what the header allows."""
    num_slots, num_unique = header.capacity_rows, len(arrays["unique"])
    for name, array in arrays.items():
        group, _, column = name.rpartition(".")
        if group and len(array) != len(arrays[f"{group}.slot"]) and (name != NEXT_USE or len(array)):
            raise PlanError(f"{name} has {len(array)} entries, {group}.slot has {len(arrays[f'{group}.slot'])}")
        if column in ("unique", "apply", "drop", "slot"):
            _within(name, array, num_slots)
        elif column == "row":
            _within(name, array, header.num_rows)
        elif column == "peer":
            _within(name, array, header.num_workers)
        elif column == "kind":
            _within(name, array, len(Kind))
        elif name == NEXT_USE and int(array.min(initial=0)) < NOT_KNOWN:
            raise PlanError(f"{name} holds {array.min()}, which is no step")
    _within("inverse", arrays["inverse"], num_unique)
    _within("samples", arrays["samples"], np.iinfo(np.int32).max)
    if not -1 <= scalars["not_before"] < scalars["step"]:
        raise PlanError(f"its fetch waits for step {scalars['not_before']}")


def _within(name: str, array: NDArray[Any], limit: int) -> None:
    if len(array) and (int(array.min()) < 0 or int(array.max()) >= limit):
        raise PlanError(f"{name} holds numbers from {array.min()} to {array.max()}, allowed are 0 to {limit - 1}")


def _one_list(array: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(array)], pa.int32()), pa.array(array), type=kind)


def _lookup(record: Record, name: str) -> NDArray[Any]:
    group, _, column = name.rpartition(".")
    array: NDArray[Any] = getattr(getattr(record, group) if group else record, column)
    return array


def _record(scalars: Scalars, arrays: Arrays) -> Record:
    def group(name: str) -> Arrays:
        return {key.partition(".")[2]: array for key, array in arrays.items() if key.startswith(f"{name}.")}

    return Record(
        step=scalars["step"],
        worker=scalars["worker"],
        not_before=scalars["not_before"],
        digest=scalars["digest"],
        samples=arrays["samples"],
        unique=arrays["unique"],
        inverse=arrays["inverse"],
        fetch=Fetch(**group("fetch")),
        apply=arrays["apply"],
        evict=Evict(**group("evict")),
        recv=Transfers(**group("recv")),
        send=Transfers(**group("send")),
        drop=arrays["drop"],
    )
