"""Text files, plain or gzip, as blocks of whole lines with their line numbers.

In: a path. Out: blocks of a few megabytes of UTF-8 that end with a newline. Gzip is recognised by its first bytes, not
by the file's name. A stream that ends early is an error and never a shorter log.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from foresee.errors import DataError

BLOCK_BYTES = 4 << 20
LINE_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines."""

    first_line: int
    """Counted from 1."""
    data: bytes
    """Ends with a newline."""
    bytes_done: int
    """How much of the file, as it lies on disk, has been read."""


def line_blocks(path: Path, *, encoding: str = "utf-8", block_bytes: int = BLOCK_BYTES) -> Iterator[LineBlock]:
    """All lines of a file. Line ends \\n and \\r\\n both do; a byte order mark is dropped."""
    line, rest, first = 1, b"", True
    with _open(path) as (stream, raw):
        while piece := _read(stream, path, line, block_bytes):
            if first and piece.startswith(b"\xef\xbb\xbf"):
                piece = piece[3:]
            first = False
            end = piece.rfind(b"\n") + 1
            if end == 0:
                rest += piece
                if len(rest) > LINE_BYTES_MAX:
                    raise DataError(
                        f"{path}:{line}: the line is longer than {LINE_BYTES_MAX >> 20} MiB; "
                        "check that this is a text file."
                    )
                continue
            data = _utf8(rest + piece[:end], encoding, path, line)
            yield LineBlock(line, data, raw.tell())
            line += data.count(b"\n")
            rest = piece[end:]
        if rest:
            yield LineBlock(line, _utf8(rest + b"\n", encoding, path, line), raw.tell())


@contextmanager
def _open(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    try:
        raw = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror}); check the path and its permissions.") from None
    with raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        yield (cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw), raw


def _read(stream: IO[bytes], path: Path, line: int, num_bytes: int) -> bytes:
    try:
        return stream.read(num_bytes)
    except EOFError:
        raise DataError(f"{path}:{line}: the gzip file ends early after this line; fetch it again.") from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}:{line}: the gzip file is damaged after this line ({error}); fetch it again.") from None


def _utf8(data: bytes, encoding: str, path: Path, line: int) -> bytes:
    if encoding.lower().replace("-", "") == "utf8":
        return data  # checked where cells are cut out, line by line
    try:
        return data.decode(encoding).encode()
    except (UnicodeDecodeError, LookupError) as error:
        raise DataError(f"{path}:{line}: cannot be decoded as {encoding} ({error}); give another encoding.") from None
