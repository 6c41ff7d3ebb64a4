"""A saved plan: an Arrow stream of records that any Arrow reader opens, and a tail that shows it is whole.

In: a header and its records, in order. Out: a file, or the same header, counters and records again. One Arrow batch is
one (step, worker); the header stands as JSON in the schema's metadata, the counters in that of a closing batch without
rows, and the tail behind the end of the stream says where that batch lies. A file is written beside its name and
renamed when it is complete. Reading holds one record at a time.

A plan that comes straight from its planner gets a digest of all bytes before the closing batch and of the counters.
While it matches, the plan is the planner's; any other plan is proved while it is trained (`run.kept_plan`). The digest
protects against edits and programs that write plans, not against somebody who computes another one.

A plan may come from an unknown author, or from a damaged disk: every record has a checksum, and every slot, row and
position is held against the header (`plan_columns`), because a wrong one would reach memory that is not ours. Nothing
in a file is ever executed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from foresee.errors import PlanError
from foresee.io import bounded_json as json_fields
from foresee.plan.count import Counting
from foresee.plan.format.columns import FIRST_SCHEMA, SCHEMA, batch_of, empty_batch, record_of
from foresee.plan.record import FORMAT_VERSION, Counters, Header, Record

HEADER = b"foresee.plan"
COUNTERS = b"foresee.counters"
DIGEST = b"foresee.sha256"
CHECKSUM_SUFFIX = b".crc32"
TAIL = struct.Struct("<QI8s")  # where the closing batch begins, checksum of that number, mark
TAIL_MARK = b"FORESEE\n"
READ_BYTES = 4 << 20
_SCHEMAS = {1: FIRST_SCHEMA, FORMAT_VERSION: SCHEMA}
"""By format version."""
UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, EOFError, ArithmeticError, MemoryError)
"""What Arrow, JSON and struct raise on bytes that are not what they expect."""

Progress = Callable[[int, int], None]
"""Called as progress(records written, records in all)."""


def write_plan(
    path: str | Path, header: Header, records: Iterable[Record], progress: Progress | None = None, *,
    from_planner: bool = False,
) -> Counters:  # fmt: skip
    """Keep a whole plan in a file, which appears complete or not at all.

    Args:
        path: The file.
        header: What is planned.
        records: The records of all steps and workers, in order.
        progress: Called after each record.
        from_planner: The records come straight from the header's planner. Such a plan is not proved again when it is
            trained; never set it for records that were read or changed.

    Returns:
        What the plan moves.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}.partial-", delete=False) as file:
            temporary = Path(file.name)
            counters = _write(file, header, records, progress, from_planner)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # a temporary file is its maker's alone; a saved plan is for whoever may read the folder
        os.replace(temporary, path)
        return counters
    except OSError as error:
        raise PlanError(
            f"{path}: the plan cannot be written ({error.strerror or error}) and nothing was kept; "
            "free some space, or give another path"
        ) from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _write(
    file: IO[bytes], header: Header, records: Iterable[Record], progress: Progress | None, from_planner: bool
) -> Counters:
    total = header.num_steps * header.num_workers
    writer = PlanWriter(file, header, total, from_planner=from_planner)
    for record in records:
        writer.add(record)
        if progress is not None:
            progress(writer.num_records, total)
    return writer.end()


class PlanWriter:
    """Write records into a file that is open, one after another: of all workers, or of one (`plan_folder`)."""

    def __init__(self, file: IO[bytes], header: Header, total: int, *, from_planner: bool = False) -> None:
        """`total`: expected records. `from_planner`: see `write_plan`."""
        self._file, self._total, self._counting = _HashedFile(file), total, Counting()
        self._stream = pa.ipc.new_stream(self._file, SCHEMA.with_metadata(_signed(HEADER, header.to_dict())))
        self._from_planner = from_planner
        self.num_records = 0
        self.digest: str | None = None
        """Of a plan that comes from its planner, once it is written."""

    def add(self, record: Record) -> None:
        self._counting.add(record)
        self._stream.write_batch(batch_of(record))
        self.num_records += 1

    def end(self) -> Counters:
        """Close the stream, not the file."""
        if self.num_records != self._total:
            raise PlanError(
                f"the plan has {self.num_records} records, its header promises {self._total}; plan the whole stream"
            )
        closing, counters = self._file.tell(), self._counting.counters
        metadata = _signed(COUNTERS, asdict(counters))
        if self._from_planner:
            self._file.sha256.update(metadata[COUNTERS])
            self.digest = self._file.sha256.hexdigest()
            metadata[DIGEST] = self.digest.encode()
        self._stream.write_batch(empty_batch(), custom_metadata=metadata)
        self._stream.close()
        self._file.write(_tail(closing))
        return counters


class _HashedFile(io.RawIOBase):
    """A file that computes the digest of what is written to it. Arrow closes it; the file itself stays open."""

    def __init__(self, file: IO[bytes]) -> None:
        self._target, self.sha256 = file, hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self.sha256.update(content)
        return self._target.write(content)

    def tell(self) -> int:
        return self._target.tell()


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A saved plan that was found to be complete. Holds no file open between calls."""

    path: Path
    header: Header
    counters: Counters
    workers: range
    """Whose records are in it: all, or one where each has a file (`plan_folder`)."""
    digest: str | None
    """What its planner's program has signed it with; None: of another program, or of a release before digests."""

    @classmethod
    def open(cls, path: str | Path, *, worker: int | None = None) -> PlanFile:
        """Reads header and counters, wherever in the file they are; refuses a file that was cut or is damaged there."""
        path = Path(path)
        with _mapped(path) as source, _damage(path, "this is not a plan, or its beginning is damaged"):
            stream = pa.ipc.open_stream(source)
            header = _header_of(stream.schema)
        with _mapped(path) as source:
            workers = range(header.num_workers) if worker is None else range(worker, worker + 1)
            counters, digest = _closing_of(path, source, header, workers)
            return cls(path, header, counters, workers, digest)

    def records(self, first_step: int | None = None) -> Iterator[Record]:
        """The records from a step on, each checked as it is read."""
        header = self.header
        first = header.first_step if first_step is None else first_step
        with _mapped(self.path) as source:
            with _damage(self.path, "the beginning of the plan is damaged"):
                stream = pa.ipc.open_stream(source)
            for number in range(header.num_steps * len(self.workers)):
                step = header.first_step + number // len(self.workers)
                worker = self.workers[number % len(self.workers)]
                with _damage(self.path, f"the record of step {step}, worker {worker} is damaged"):
                    batch = stream.read_next_batch()
                    if step < first:
                        continue
                    record = record_of(batch, header, step, worker)
                yield record

    def is_as_planned(self) -> bool:
        """Compare the plan with its planner's digest; reads the whole file once."""
        if self.digest is None:
            return False
        found = hashlib.sha256()
        with _mapped(self.path) as source, _damage(self.path, "the plan cannot be read"):
            source.seek(source.size() - TAIL.size)
            missing, _, _ = TAIL.unpack(source.read())
            source.seek(0)
            while missing and (piece := source.read(min(missing, READ_BYTES))):
                found.update(piece)
                missing -= len(piece)
        found.update(_text_of(asdict(self.counters)))
        return found.hexdigest() == self.digest

    @property
    def num_bytes(self) -> int:
        """On disk."""
        return self.path.stat().st_size


def _closing_of(path: Path, source: pa.NativeFile, header: Header, workers: range) -> tuple[Counters, str | None]:
    """The counters and the digest of the closing batch, found through the tail."""
    try:
        source.seek(max(0, source.size() - TAIL.size))
        closing, _, _ = tail = TAIL.unpack(source.read())
        if TAIL.pack(*tail) != _tail(closing):
            raise ValueError
        source.seek(closing)
        # A stream is read from its schema on, so the schema is put before its last part.
        rest = pa.BufferReader(_SCHEMAS[header.format_version].serialize().to_pybytes() + source.read())
        last = pa.ipc.open_stream(rest).read_next_batch_with_custom_metadata()
        counters = counters_from_dict(_verified(COUNTERS, last.custom_metadata))
        if 0 in workers and counters.num_steps != header.num_steps:  # steps are counted with worker 0
            raise ValueError
        digest = last.custom_metadata.get(DIGEST)
        return counters, None if digest is None else digest.decode("ascii", "replace")
    except (struct.error, StopIteration, *UNREADABLE):
        raise PlanError(f"{path}: {_what_is_missing(source, header, len(workers))}; plan again") from None


def _what_is_missing(source: pa.NativeFile, header: Header, num_workers: int) -> str:
    num_records = 0
    try:
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        while stream.read_next_batch().num_rows == 1:
            num_records += 1
    except (StopIteration, *UNREADABLE):
        pass
    num_steps = num_records // num_workers
    if num_steps >= header.num_steps:
        return "the end of the plan is damaged"
    return f"the plan ends after step {num_steps} of {header.num_steps}"


def _tail(closing: int) -> bytes:
    return TAIL.pack(closing, zlib.crc32(struct.pack("<Q", closing)), TAIL_MARK)


def _text_of(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _signed(key: bytes, content: dict[str, Any]) -> dict[bytes, bytes]:
    text = _text_of(content)
    return {key: text, key + CHECKSUM_SUFFIX: str(zlib.crc32(text)).encode()}


def _verified(key: bytes, metadata: Any) -> dict[str, Any]:
    """The JSON object under a key of Arrow metadata, if it is as it was written."""
    text: bytes = metadata[key]
    if str(zlib.crc32(text)).encode() != metadata[key + CHECKSUM_SUFFIX]:
        raise ValueError("its checksum does not match")
    return json_fields.parse_object(text)


def _header_of(schema: pa.Schema) -> Header:
    content = _verified(HEADER, schema.metadata or {})
    version = content.get("format_version")
    if version not in _SCHEMAS:
        raise _OtherVersionError(
            f"the plan has format version {json_fields.shown(version)}, this program reads 1 and {FORMAT_VERSION}"
        )
    if not schema.equals(_SCHEMAS[version]):
        raise ValueError("its columns are not those of a plan")
    header = Header.from_dict(content)
    at_least_one = (header.num_workers, header.capacity_rows, header.num_rows)
    if min(at_least_one) < 1 or min(header.first_step, header.num_steps, header.fetch_ahead_steps) < 0:
        raise ValueError("its header has impossible sizes")
    return header


def counters_from_dict(content: dict[str, Any]) -> Counters:
    if content.keys() != {field.name for field in fields(Counters)}:
        raise ValueError(f"it has the fields {sorted(content)}")
    for name, value in content.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} is {value!r}")
    return Counters(**content)


class _OtherVersionError(PlanError):
    """Not damage: the file was written by another release."""


@contextmanager
def _mapped(path: Path) -> Iterator[pa.NativeFile]:
    try:
        source = pa.memory_map(str(path), "r")
    except (OSError, pa.ArrowException) as error:
        what = "there is no such file" if isinstance(error, FileNotFoundError) else f"it cannot be read ({error})"
        raise PlanError(f"{path}: {what}; make a plan with `foresee plan RUN.yaml --out {path.name}`") from None
    with source:
        yield source


@contextmanager
def _damage(path: Path, what: str) -> Iterator[None]:
    """Turns whatever reading raises into one sentence."""
    try:
        yield
    except _OtherVersionError as error:
        raise PlanError(f"{path}: {error}; plan again, or use the release that wrote it") from None
    except PlanError as error:
        raise PlanError(f"{path}: {what}: {error}; plan again") from None
    except (StopIteration, *UNREADABLE):
        raise PlanError(f"{path}: {what}; plan again") from None
