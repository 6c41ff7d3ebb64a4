"""Where the files of a prepared log are: a folder of this machine, or a URL that is read ahead of whoever decodes it.

In: names of files, and the row groups of a part that will be wanted, in order. Out: their bytes, as something that
pyarrow opens as Parquet. A log at a URL is never copied as a whole: exactly the bytes of the row groups that a batch
lies in are fetched, by a few threads (`ReadAhead`), while the ones before are decoded. A file that is missing or has
another size than the log says is refused in a sentence. Never writes.
"""

from __future__ import annotations

import mmap
import shutil
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from foresee.data.schema import Part
from foresee.errors import DataError
from foresee.io.readahead import ReadAhead
from foresee.io.storage import Storage, StoredFile
from foresee.io.urls import Place
from foresee.io.urls import place as as_place

OPEN_FILES_MAX = 16
FOOTERS_KEPT = 64
FOOTER_BYTES = 1 << 16
"""What is read of the end of a part, before it says how long its footer is."""
AHEAD_BYTES_MAX = 1 << 26
"""Of row groups that are on their way or wait to be decoded."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Some row groups of one part."""

    part: Part
    row_groups: tuple[int, ...]
    num_bytes: int
    """About."""


class LogFolder(Protocol):
    """The files of one log."""

    @property
    def place(self) -> Place:
        """For people."""
        ...

    def text(self, name: str) -> bytes | None:
        """A small file; None: it is not there."""
        ...

    def sizes(self) -> dict[str, int]:
        """Of all files, in bytes."""
        ...

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """These will be opened soon, in this order."""
        ...

    def parquet(self, wanted: Wanted) -> pq.ParquetFile:
        """A part, of which only these row groups will be read. Not for use by two threads at once."""
        ...

    def table(self, name: str) -> pa.Table:
        """A Parquet file as a whole."""
        ...

    def copy(self, name: str, target: Path) -> None:
        """A file as it is."""
        ...


class LocalFolder:
    """A folder of this machine. The system reads ahead by itself."""

    def __init__(self, path: Path) -> None:
        self.place: Path = path
        self._files: OrderedDict[str, pq.ParquetFile] = OrderedDict()

    def text(self, name: str) -> bytes | None:
        try:
            return (self.place / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def sizes(self) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in self.place.iterdir() if path.is_file()}

    def expect(self, wanted: Sequence[Wanted]) -> None:
        pass

    def parquet(self, wanted: Wanted) -> pq.ParquetFile:
        name = wanted.part.file
        if name in self._files:
            self._files.move_to_end(name)
            return self._files[name]
        if len(self._files) == OPEN_FILES_MAX:
            self._files.popitem(last=False)[1].close()
        self._files[name] = pq.ParquetFile(self.place / name)
        return self._files[name]

    def table(self, name: str) -> pa.Table:
        return pq.read_table(self.place / name)

    def copy(self, name: str, target: Path) -> None:
        shutil.copyfile(self.place / name, target)


class StoredFolder:
    """A log at a URL."""

    def __init__(self, url: str) -> None:
        # Threads that read ahead hold the parts and not this: when nobody wants the log any more, they give up.
        mine = weakref.ref(self)
        self._storage = Storage.open(url)
        parts = _StoredParts(self._storage.patient(self._storage.patience_seconds, lambda: mine() is None))
        self._ahead = ReadAhead(parts.fetch, lambda wanted: wanted.num_bytes, AHEAD_BYTES_MAX)

    @property
    def place(self) -> Place:
        return self._storage.url

    def text(self, name: str) -> bytes | None:
        content = self._storage.get(name)
        if content is None:
            self._storage.check_bucket()
        return content

    def sizes(self) -> dict[str, int]:
        return self._storage.sizes()

    def expect(self, wanted: Sequence[Wanted]) -> None:
        self._ahead.expect(wanted)

    def parquet(self, wanted: Wanted) -> pq.ParquetFile:
        metadata, content = self._ahead.take(wanted)
        # Without `pre_buffer`, which would read what lies between row groups, too.
        return pq.ParquetFile(pa.BufferReader(content), metadata=metadata, pre_buffer=False)

    def table(self, name: str) -> pa.Table:
        file = self._storage.opened(name)
        return pq.read_table(pa.BufferReader(b"".join(self._storage.pieces(name, num_bytes=file.num_bytes))))

    def copy(self, name: str, target: Path) -> None:
        self._storage.fetch(name, target)


class _StoredParts:
    """Parts at a URL, with the footers of some. For several threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self._lock = storage, Lock()
        self._footers: OrderedDict[str, tuple[StoredFile, pq.FileMetaData]] = OrderedDict()
        self._footer_bytes = FOOTER_BYTES

    def fetch(self, wanted: Wanted) -> tuple[pq.FileMetaData, pa.Buffer]:
        """The part as a file of which only the bytes of some row groups are there.

        The rest is address space that nobody touches and the system gives no memory for. So Arrow decodes bytes where
        they lie, without a call into Python for every column, which whoever trains would wait for.
        """
        file, metadata = self._footer(wanted.part)
        content = mmap.mmap(-1, file.num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for begin, end in byte_ranges(metadata, wanted.row_groups):
            file.read_into(begin, memoryview(content)[begin:end])
        return metadata, pa.py_buffer(content)

    def _footer(self, part: Part) -> tuple[StoredFile, pq.FileMetaData]:
        with self._lock:
            if part.file in self._footers:
                self._footers.move_to_end(part.file)
                return self._footers[part.file]
        file = self._storage.opened(part.file)
        if file.num_bytes != part.num_bytes:
            raise DataError(_other_size(f"{self._storage.url}/{part.file}", part, file.num_bytes))
        found = file, self._read_footer(file)
        with self._lock:
            self._footers[part.file] = found
            if len(self._footers) > FOOTERS_KEPT:
                self._footers.popitem(last=False)
        return found

    def _read_footer(self, file: StoredFile) -> pq.FileMetaData:
        tail_bytes = min(self._footer_bytes, file.num_bytes)
        tail = file.read(file.num_bytes - tail_bytes, tail_bytes)
        needed = int.from_bytes(tail[-8:-4], "little") + 8
        if tail_bytes < needed <= file.num_bytes:
            self._footer_bytes = needed + needed // 8  # those of other parts are about as long
            tail = file.read(file.num_bytes - needed, needed)
        return pq.read_metadata(pa.BufferReader(b"PAR1" + tail[-needed:]))


def folder_of(place: str | Path) -> LogFolder:
    """The folder or URL of a log."""
    found = as_place(place)
    return LocalFolder(found) if isinstance(found, Path) else StoredFolder(found)


def check_parts(folder: LogFolder, parts: Sequence[Part]) -> None:
    """Refuses a log of which a part is missing or has another size than when it was written."""
    sizes = folder.sizes()
    for part in parts:
        where = f"{folder.place}/{part.file}"
        if part.file not in sizes:
            raise DataError(f"{where}: this part of the log is missing; prepare the log again.")
        if sizes[part.file] != part.num_bytes:
            raise DataError(_other_size(where, part, sizes[part.file]))


def _other_size(where: str, part: Part, found: int) -> str:
    return f"{where}: expected {part.num_bytes} bytes, found {found}; the part is damaged, prepare the log again."


def byte_ranges(metadata: pq.FileMetaData, row_groups: Sequence[int]) -> list[tuple[int, int]]:
    """Where row groups (ascending) lie in their file; those that touch are one range."""
    ranges: list[tuple[int, int]] = []
    for number in row_groups:
        row_group = metadata.row_group(number)
        columns = [row_group.column(index) for index in range(row_group.num_columns)]
        begins = [min(filter(None, (it.dictionary_page_offset, it.data_page_offset))) for it in columns]
        begin = min(begins)
        end = max(at + it.total_compressed_size for at, it in zip(begins, columns, strict=True))
        if ranges and ranges[-1][1] == begin:
            begin = ranges.pop()[0]
        ranges.append((begin, end))
    return ranges
