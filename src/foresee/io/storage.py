"""Files by URL: s3://, gs://, hdfs://, abfs:// and file:// through pyarrow.fs, every other scheme through fsspec.

In: a URL such as `s3://bucket/a`, `gs://bucket/a` or `abfs://container@account.dfs.core.windows.net/a`; options such as
`?endpoint_override=host:port&scheme=http` after it name another server. Credentials come from where the cloud's own
tools look for them. Out: a `Storage` with few verbs. Files are made under names that nobody used before, and what lists
them is published last, in one move: nobody sees half of anything, and nobody finds anything out by listing folders.

What the network breaks is tried again, with growing pauses, until `patience_seconds` are over; then it is a
StoreUnavailableError. What trying again would not change (no rights, no such bucket) is a StoreError at once.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import urlsplit

from foresee.errors import ConfigError, StoreError, StoreUnavailableError
from foresee.io import bounded_json
from foresee.io.file_systems import AZURE, GOOGLE, arrow_fs, open_system, reason

Result = TypeVar("Result")

PATIENCE_SECONDS = 60.0
RANGE_BYTES = 1 << 23
"""Read at once."""
MARK_BYTES = 16
PAUSES_SECONDS = (0.1, 0.3, 1.0, 3.0)
"""Before the second try, the third and so on; the last one is repeated."""
_FINAL = re.compile(
    r"access.?denied|forbidden|HTTP status 40[013]|NO_SUCH_BUCKET|bucket .* does not exist|InvalidAccessKey"
    r"|Signature_?Does_?Not_?Match|credentials|INVALID_ACCESS_KEY_ID|permission.?denied|MissingContentLength"
    r"|UNAUTHENTICATED|OAuth2 access token.*could not resolve|ContainerNotFound|AuthenticationFailed|Authorization[FP]",
    re.IGNORECASE,
)
_FETCH_IT = "to be read there it needs a size, and a server that gives parts of it (ranges); else copy it here"
_NETWORK_PACKAGES = ("aiohttp",)
"""Packages that raise network errors which are no OSError."""
_FLAT = ("s3", "gcs", "abfs")
"""File systems whose files are in buckets, and need no folder."""
_ATOMIC = ("s3", "gcs")
"""File systems in which a file appears whole when it is closed, in the place of an older one."""
_COPY_BYTES_MAX = 5 << 30  # S3 copies no larger file with one request


@dataclass(frozen=True, slots=True)
class Stored:
    """A file of a storage, as it has to be."""

    name: str
    num_bytes: int
    crc32: int

    @classmethod
    def parse(cls, content: dict[str, Any]) -> Stored:
        """Out of JSON; raises ValueError."""
        sizes = (bounded_json.whole(content, name, 0, bounded_json.LARGE_MAX) for name in ("num_bytes", "crc32"))
        return cls(bounded_json.file_name(content, "name"), *sizes)


def changed_words(where: str) -> str:
    """Of a file that is not what it was."""
    return f"{where} has changed while it was read; begin again when nobody writes it"


@dataclass(frozen=True)
class StoredFile:
    """A file of a storage that is there. Several threads may read it at once."""

    storage: Storage
    name: str
    num_bytes: int
    streams: list[Any]
    """Of pyarrow, that nobody uses now: a stream has one position, so each reader has its own."""
    turn: AbstractContextManager[Any] = field(default_factory=nullcontext)
    """Held by whoever reads."""

    def read(self, begin: int, num_bytes: int) -> bytes:
        """So many bytes from `begin` on."""
        content = bytearray(num_bytes)
        self.read_into(begin, memoryview(content))
        return bytes(content)

    def read_into(self, begin: int, content: memoryview) -> None:
        """As many bytes from `begin` on as there is room for."""
        self.storage.patiently(lambda: self.read_once(begin, content), self.name, "read")

    def read_once(self, begin: int, content: memoryview) -> None:
        """The same, without a second try."""
        if not content:
            return
        # Of an S3 connection that was cut pyarrow may say that all bytes came. They come in order: if the last ones
        # still are the random ones that were there before, they did not.
        mark = os.urandom(min(len(content), MARK_BYTES))
        content[-len(mark) :] = mark
        with self.turn:
            stream = self._free_stream()
            stream.seek(begin)
            if stream.readinto(content) != len(content) or content[-len(mark) :] == mark:
                raise ConnectionError(f"fewer than {len(content)} bytes came")
            self.streams.append(stream)

    def _free_stream(self) -> Any:
        with suppress(IndexError):
            return self.streams.pop()
        stream = self.storage.stream(self.name)
        if not stream.size():
            raise ConnectionError("two answers say two sizes")  # as in `Storage.opened`
        if stream.size() != self.num_bytes:
            raise StoreError(changed_words(self.storage.below(self.name).url.rstrip("/")))
        return stream


@dataclass(frozen=True)
class Storage:
    """A place below which files are."""

    system: Any
    """Of pyarrow.fs."""
    path: str
    url: str
    """For people: without options and credentials."""
    patience_seconds: float = PATIENCE_SECONDS
    gives_up: Callable[[], bool] = lambda: False
    """Asked before every new try."""

    @classmethod
    def open(cls, url: str) -> Storage:
        """Says in a sentence what is wrong with a URL; whether the place can be reached shows later."""
        parts = urlsplit(url)
        no_person = parts.scheme in AZURE or (parts.scheme in GOOGLE and parts.username == "anonymous")
        if parts.password is not None or (parts.username is not None and not no_person):
            raise ConfigError(
                f"the URL of {parts.scheme}://{parts.hostname}{parts.path} has credentials in it, which would be "
                "written down with the run; give them as the tools of the cloud do, such as AWS_ACCESS_KEY_ID"
            )
        shown = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
        try:
            system, path = open_system(url)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{shown} cannot be used ({reason(error)}); check the URL and its options") from error
        return cls(system, path.rstrip("/"), shown)

    def below(self, *names: str) -> Storage:
        """The place of this name inside."""
        return replace(self, path="/".join([self.path, *names]), url="/".join([self.url, *names]))

    def patient(self, seconds: float, gives_up: Callable[[], bool] = lambda: False) -> Storage:
        return replace(self, patience_seconds=seconds, gives_up=gives_up)

    def check_bucket(self) -> None:
        """Refuses a bucket that is not there, which one who only reads would take for an empty one."""
        bucket = self.path.partition("/")[0]
        if self.system.type_name in _FLAT:
            info = self.patiently(lambda: self.system.get_file_info(bucket), "", "looked at")
            if info.type == arrow_fs().FileType.NotFound:
                raise StoreError(f"{self.url}: there is no bucket {bucket!r}; make it, or check the URL")

    def get(self, name: str) -> bytes | None:
        """A small file; None if it is not there."""

        def read() -> bytes:
            stream = self.stream(name)
            content = bytearray(stream.size())
            StoredFile(self, name, len(content), [stream]).read_once(0, memoryview(content))
            if self.system.get_file_info(self._at(name)).size != len(content):
                raise ConnectionError("it was replaced meanwhile")
            return bytes(content)

        try:
            return self.patiently(read, name, "read")
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int | None:
        """In bytes; None if there is no such file."""
        info = self._look(name)
        if info.is_file and info.size is None:
            raise StoreError(f"{self._where(name)}: the server does not say how large it is; {_FETCH_IT}")
        return int(info.size) if info.is_file else None

    def pieces(self, name: str, *, num_bytes: int, piece_bytes: int = RANGE_BYTES) -> Iterator[bytes]:
        """A file of a known size, a range at a time."""
        for begin in range(0, num_bytes, piece_bytes):
            yield self.part(name, begin, min(piece_bytes, num_bytes - begin))

    def part(self, name: str, begin: int, num_bytes: int) -> bytes:
        """So many bytes of a file from `begin` on."""
        return self.opened(name).read(begin, num_bytes)

    def opened(self, name: str = "") -> StoredFile:
        """A file of which several parts will be read, by several threads if they like."""

        def act() -> StoredFile:
            stream = self.stream(name)
            if not stream.size() and self.size(name):
                raise ConnectionError("two answers say two sizes")  # as in `_look`
            # Behind fsspec two streams of one file may be one object with one position, as those of memory:// are.
            kind = self.system.type_name
            in_turn = kind.startswith("py::") and "http" not in kind
            return StoredFile(self, name, stream.size(), [stream], Lock() if in_turn else nullcontext())

        try:
            return self.patiently(act, name, "read")
        except FileNotFoundError:
            raise StoreError(f"{self._where(name)} is missing; restore it from a copy") from None

    def stream(self, name: str) -> Any:
        """A file as pyarrow opens it, without a second try."""
        return self.system.open_input_file(self._at(name))

    def fetch(self, name: str, target: Path) -> None:
        """Copies a file to this machine; it appears whole."""
        num_bytes = self.size(name)
        if num_bytes is None:
            raise StoreError(f"{self.url}/{name} is missing; restore it from a copy")
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f"{target.name}.draft")
        with open(draft, "wb") as stream:
            for piece in self.pieces(name, num_bytes=num_bytes):
                stream.write(piece)
        os.replace(draft, target)

    def put(self, name: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        """Make a file of a new name, which counts once something published names it: if `pieces` fails, a part of it
        may be there, because pyarrow cannot abort a stream."""

        def write() -> None:
            self._make_room(name)
            # Or else pyarrow packs what is called *.gz once more.
            with self.system.open_output_stream(self._at(name), compression=None) as stream:
                for piece in pieces():
                    stream.write(piece)

        try:
            self.patiently(write, name, "written")
        except FileNotFoundError:  # what some say of a bucket
            self.check_bucket()
            raise

    def store(self, name: str, pieces: Callable[[], Iterable[bytes]]) -> Stored:
        """The same, and what has to be known to read it again."""
        told = [0, 0]

        def counted() -> Iterator[bytes]:
            told[:] = [0, 0]
            for piece in pieces():
                told[:] = [told[0] + len(piece), zlib.crc32(piece, told[1])]
                yield piece

        self.put(name, counted)
        return Stored(name, told[0], told[1])

    def read(self, of: Stored) -> bytes:
        """A file that was stored, as it was."""
        content = b"".join(self.pieces(of.name, num_bytes=of.num_bytes))
        if zlib.crc32(content) != of.crc32:
            raise StoreError(
                f"{self.url}/{of.name} is damaged: it has another checksum than when it was written; restore it from a "
                "copy, or start anew"
            )
        return content

    def publish(self, name: str, content: bytes) -> None:
        """Replace a small file: whoever reads it has the old content or the new one."""
        (self.put if self.system.type_name in _ATOMIC else self.replace)(name, lambda: [content])

    def replace(self, name: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        """Replace a file of any size, which may fail to be read: then the old content stays."""
        if self.system.type_name == "abfs":
            self._replace_twice(name, pieces)
            return
        self.put(f"{name}.draft", pieces)
        draft, target = self._at(f"{name}.draft"), self._at(name)
        if self.system.type_name in _ATOMIC:
            if (self.size(f"{name}.draft") or 0) > _COPY_BYTES_MAX:
                self.put(name, pieces)
            else:
                self.patiently(lambda: self.system.copy_file(draft, target), name, "written")
            self.remove([f"{name}.draft"])
            return

        def move() -> None:
            try:
                self.system.move(draft, target)
            except OSError:  # some refuse to take the place of a file; `published` then finds the draft
                self.system.delete_file(target)
                self.system.move(draft, target)

        self.patiently(move, name, "written")

    def _replace_twice(self, name: str, pieces: Callable[[], Iterable[bytes]]) -> None:
        """Azure has no move, and a file that is written anew is empty until it is closed: so one of two is whole."""
        draft = f"{name}.draft"
        if self.size(name) == 0 and (kept := self.get(draft)):  # somebody was interrupted: this is the only whole one
            self.put(name, lambda: [kept])
        self.put(draft, pieces)
        self.put(name, pieces)
        self.remove([draft])

    def published(self, name: str) -> bytes | None:
        """What was published last; None: nothing was."""
        found = self.get(name)
        if found or self.system.type_name in _ATOMIC:
            return found
        return self.get(f"{name}.draft") or self.get(name)  # a draft that is gone by now has taken its place

    def remove(self, names: Iterable[str]) -> None:
        """Files that nothing names any more; those that are gone already are no matter."""
        for name in names:

            def delete(at: str = self._at(name)) -> None:
                try:
                    if self.system.type_name != "abfs" or self.system.get_file_info(at).is_file:
                        self.system.delete_file(at)  # of a file that is not there, Azure's takes seconds
                except FileNotFoundError:
                    pass

            self.patiently(delete, name, "removed")

    def names(self) -> list[str]:
        """Everything below, to clean up or to copy; never to find out what there is."""
        return list(self.sizes())

    def sizes(self) -> dict[str, int]:
        """The same, with the bytes of each."""
        selector = arrow_fs().FileSelector(self.path, allow_not_found=True, recursive=True)
        infos = self.patiently(lambda: self.system.get_file_info(selector), "", "listed")
        return {info.path[len(self.path) + 1 :]: int(info.size) for info in infos if info.is_file}

    def mark(self, name: str) -> list[int]:
        """Another one when the file has changed."""
        info = self._look(name)
        return [int(info.size or 0), int(info.mtime_ns or 0)]

    def _look(self, name: str) -> Any:
        """What the storage says of a file. Of an answer that was cut in its head pyarrow makes one without size or
        time: that has to be said twice."""

        def act() -> Any:
            found = again = self.system.get_file_info(self._at(name))
            if found.is_file and not (found.size and found.mtime_ns):
                again = self.system.get_file_info(self._at(name))
            if (again.size, again.mtime_ns) != (found.size, found.mtime_ns):
                raise ConnectionError("two answers say two sizes or times")
            return found

        return self.patiently(act, name, "looked at")

    def _at(self, name: str) -> str:
        """Without a name: the place itself, which may be a file."""
        return f"{self.path}/{name}" if name else self.path

    def _where(self, name: str) -> str:
        return f"{self.url}/{name}".rstrip("/")

    def _make_room(self, name: str) -> None:
        if self.system.type_name not in _FLAT:
            self.system.create_dir(self._at(name).rpartition("/")[0], recursive=True)

    def patiently(self, act: Callable[[], Result], name: str, done: str) -> Result:
        """Tries again for a while; `done` is what could not be done to the file of this name."""
        begun, tries = time.monotonic(), 0
        while True:
            try:
                return act()
            except FileNotFoundError:
                raise
            except (ValueError, NotImplementedError) as error:
                if not self.system.type_name.startswith("py::"):
                    raise
                raise StoreError(f"{self._where(name)} cannot be {done} ({reason(error)}); {_FETCH_IT}") from error
            except Exception as error:
                if not isinstance(error, OSError) and type(error).__module__.split(".")[0] not in _NETWORK_PACKAGES:
                    raise
                tries += 1
                where = self._where(name)
                if _FINAL.search(str(error)):
                    raise StoreError(f"{where} cannot be {done} ({reason(error)}); {_remedy(error)}") from error
                pause = PAUSES_SECONDS[min(tries, len(PAUSES_SECONDS)) - 1]
                if time.monotonic() + pause > begun + self.patience_seconds or self.gives_up():
                    raise StoreUnavailableError(
                        f"{where} could not be {done} within {time.monotonic() - begun:.0f} s ({reason(error)}); see "
                        "that the storage can be reached, then try again"
                    ) from error
                time.sleep(pause)


def _remedy(error: BaseException) -> str:
    if "MissingContentLength" in str(error):
        return "this server takes no checksums after the content: set AWS_REQUEST_CHECKSUM_CALCULATION=when_required"
    return "check the URL, its options and your credentials"
