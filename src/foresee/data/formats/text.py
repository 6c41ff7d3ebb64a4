"""Text files, plain or packed, as blocks of whole lines with their line numbers.

In: a path or URL. Out: blocks of a few megabytes of UTF-8 that end with a newline. Gzip, bzip2, xz and zstd are
recognised by their first bytes, not by the file's name; lines may end in \\n, \\r\\n or \\r. A stream that ends early
is an error and never a shorter log, and a file that is no text is refused before a cell is read.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

import pyarrow as pa

from foresee.data.source import open_raw
from foresee.errors import DataError
from foresee.io.urls import Place, shown

BLOCK_BYTES = 4 << 20
LINE_BYTES_MAX = 64 << 20

_PACKED: tuple[tuple[bytes, str, Callable[[Any], Any]], ...] = (
    (b"\x1f\x8b", "gzip", lambda raw: gzip.GzipFile(fileobj=raw)),
    (b"BZh", "bzip2", bz2.BZ2File),
    (b"\xfd7zXZ\x00", "xz", lzma.LZMAFile),
    (b"\x28\xb5\x2f\xfd", "zstd", lambda raw: _Zstd(raw)),
)
_NO_TEXT = (
    (b"PAR1", "a Parquet file, not text; use `foresee prepare parquet`"),
    (b"PK\x03\x04", "a zip archive; unpack it and name the file inside"),
    (b"ORC", "an ORC file, not text; convert it to Parquet or CSV"),
    (b"ARROW1", "an Arrow file, not text; convert it to Parquet or CSV"),
    (b"SQLite format 3\x00", "an SQLite file, not text; convert it to Parquet or CSV"),
    (b"\xff\xfe", "text in UTF-16; say so with --encoding utf-16"),
    (b"\xfe\xff", "text in UTF-16; say so with --encoding utf-16"),
)


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines."""

    first_line: int
    """Counted from 1."""
    data: bytes
    """Ends with a newline."""
    bytes_done: int
    """How much of the file, as it lies on disk, has been read."""


def line_blocks(path: Place, *, encoding: str = "utf-8", block_bytes: int = BLOCK_BYTES) -> Iterator[LineBlock]:
    """All lines of a file. A byte order mark is dropped."""
    line, rest, where = 1, b"", shown(path)
    with _open(path) as (stream, raw, packing):
        pieces = _pieces(stream, where, packing, block_bytes)
        for piece in _with_newlines(_as_utf8(pieces, encoding, where)):
            end = piece.rfind(b"\n") + 1
            if end == 0:
                rest += piece
                if len(rest) > LINE_BYTES_MAX:
                    raise DataError(
                        f"{where}:{line}: the line is longer than {LINE_BYTES_MAX >> 20} MiB; "
                        "check that this is a text file."
                    )
                continue
            data = rest + piece[:end]
            yield LineBlock(line, data, raw.tell())
            line += data.count(b"\n")
            rest = piece[end:]
        if rest:
            yield LineBlock(line, rest + b"\n", raw.tell())


@contextmanager
def _open(path: Place) -> Iterator[tuple[IO[bytes], IO[bytes], str]]:
    with open_raw(path) as raw:
        start = raw.read(8)
        raw.seek(0)
        for magic, packing, unpack in _PACKED:
            if start.startswith(magic):
                with unpack(raw) as stream:
                    yield cast("IO[bytes]", stream), raw, packing
                return
        yield raw, raw, ""


def _pieces(stream: IO[bytes], where: str, packing: str, num_bytes: int) -> Iterator[bytes]:
    newlines = returns = 0
    while True:
        piece, failure = _read_up_to(stream, num_bytes)
        newlines, returns = newlines + piece.count(b"\n"), returns + piece.count(b"\r")
        if failure is not None:
            raise _unreadable(failure, where, packing, newlines or returns) from None
        if not piece:
            return
        yield piece


def _read_up_to(stream: IO[bytes], num_bytes: int) -> tuple[bytes, Exception | None]:
    """Read up to a number of bytes. If the stream fails, return the bytes before the failure and the exception.

    `read1` of a packed stream returns everything unpacked before it raises; `read` discards it.
    """
    read: Callable[[int], bytes] = getattr(stream, "read1", stream.read)
    parts: list[bytes] = []
    try:
        while num_bytes and (part := read(num_bytes)):
            parts.append(part)
            num_bytes -= len(part)
    except (EOFError, zlib.error, lzma.LZMAError, pa.ArrowException, OSError) as error:
        return b"".join(parts), error
    return b"".join(parts), None


def _unreadable(failure: Exception, where: str, packing: str, num_lines: int) -> DataError:
    """Return the error for a stream that fails after a number of whole lines."""
    if not packing:
        return DataError(f"{where}: cannot be read ({failure}); check the disk or fetch it again.")
    early = isinstance(failure, EOFError) or "Truncated" in str(failure)
    reason = "ends early" if early else "is damaged"
    detail = "" if early else f" ({str(failure).splitlines()[0]})"
    return DataError(
        f"{where}:{max(1, num_lines)}: the {packing} file {reason} after this line{detail}, {num_lines:,} whole lines "
        "could be unpacked; fetch it again."
    )


class _Zstd(io.RawIOBase):
    """A zstd stream whose `read1` returns everything unpacked before it raises; Arrow's own reads discard it."""

    def __init__(self, raw: Any) -> None:
        self._stream = pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd")
        self._failure: Exception | None = None

    def read1(self, num_bytes: int) -> bytes:
        if self._failure is not None:
            raise self._failure
        buffer = bytearray(num_bytes)
        try:
            return bytes(memoryview(buffer)[: self._stream.readinto(buffer)])
        except (pa.ArrowException, OSError) as error:
            self._failure = error
            # Arrow does not say how much it has written into the buffer. Text has no zero bytes.
            return bytes(buffer.rstrip(b"\0")) or self.read1(num_bytes)


def _as_utf8(pieces: Iterator[bytes], encoding: str, where: str) -> Iterator[bytes]:
    """UTF-8 is checked where cells are cut out, line by line; other encodings here, piece by piece."""
    try:
        codec = codecs.lookup(encoding)
        decoder = codec.incrementaldecoder()
    except (LookupError, TypeError):
        raise DataError(
            f"{where}: the encoding {encoding!r} is not known; give one that Python has, such as --encoding latin-1."
        ) from None
    plain, line = codec.name == "utf-8", 1
    for number, piece in enumerate(pieces):
        if number == 0:
            _check_text(piece, where, plain=plain)
        if not plain:
            try:
                piece = decoder.decode(piece).encode()
            except (UnicodeError, ValueError) as error:
                raise DataError(
                    f"{where}:{line}: cannot be decoded as {encoding} at or after this line ({error}); "
                    "give another --encoding."
                ) from None
            line += piece.count(b"\n")
        yield piece.removeprefix(codecs.BOM_UTF8) if number == 0 else piece


def _check_text(piece: bytes, where: str, *, plain: bool) -> None:
    for magic, what in _NO_TEXT:
        if piece.startswith(magic) and (plain or "UTF-16" not in what):
            raise DataError(f"{where}: this is {what}.")
    if plain and b"\x00" in piece:
        line = piece.count(b"\n", 0, piece.index(b"\x00")) + 1
        raise DataError(
            f"{where}:{line}: expected text, found a zero byte; name a text file, or say with --encoding what it is in."
        )


def _with_newlines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Files whose lines end in \\r alone get \\n instead: those where the first piece has one and no \\n."""
    only_returns = False
    for number, piece in enumerate(pieces):
        if number == 0:
            only_returns = b"\n" not in piece and b"\r" in piece
        yield piece.replace(b"\r", b"\n") if only_returns else piece
