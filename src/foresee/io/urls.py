"""Places: a path of this machine, or a URL. A file at a URL is read there, or brought here; what is made here is sent.

In: what a person typed. Out: a `Place`, which is a Path, or a str if it is a URL; and for those who work with files, a
local path. A folder is sent file by file, with the file that makes it one (`marker`) published last and taken away
first, so nobody ever sees half of it; a file appears whole. What was brought is kept in the cache folder of this
machine and fetched again only if it has changed there.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeAlias, cast

from foresee.errors import ConfigError
from foresee.io.file_systems import is_url, parent_and_name
from foresee.io.readahead import StoredStream
from foresee.io.storage import RANGE_BYTES, Storage

Place: TypeAlias = Path | str

SEEN_FILE = ".seen.json"
SETTLED_SECONDS = 5.0
"""A file that is older is trusted to have another size or time when it changes."""


def place(given: str | Path) -> Place:
    """What a person typed."""
    return str(given) if is_url(given) else Path(given)


def below(folder: Path, given: str | Path) -> Place:
    """What stands in a file of this folder."""
    return str(given) if is_url(given) else folder / given


def absolute(given: Place) -> Place:
    """For another process, wherever it works."""
    return given.absolute() if isinstance(given, Path) else given


def shown(given: str | Path) -> str:
    """For people: without the options of a URL."""
    return str(given).partition("?")[0] if is_url(given) else str(given)


def joined(url: str, *names: str) -> str:
    """The URL of something below."""
    place, mark, options = url.partition("?")
    return "/".join([place.rstrip("/"), *names]) + mark + options


def name_of(given: Place) -> str:
    """The last part of it."""
    return given.name if isinstance(given, Path) else parent_and_name(given)[1]


def beside(given: Place, name: str) -> Place:
    """What has this name in the same folder."""
    return given.with_name(name) if isinstance(given, Path) else joined(parent_and_name(given)[0], name)


def opened(given: Place) -> IO[bytes]:
    """A file to read, at a URL in ranges that are fetched ahead; nothing of it is copied to the disk."""
    if isinstance(given, Path):
        return open(given, "rb")
    return cast("IO[bytes]", StoredStream(Storage.open(given).opened()))


def size_of(given: Place) -> int | None:
    """In bytes; None: there is no such file."""
    if isinstance(given, Path):
        return given.stat().st_size if given.exists() and not given.is_dir() else None
    storage = Storage.open(given)
    found = storage.size("")
    if found is None:
        storage.check_bucket()
    return found


def mark_of(given: Place) -> list[int]:
    """Size and time of a file: others when it has changed, or is gone."""
    if isinstance(given, Path):
        found = given.stat() if given.exists() else None
        return [0, 0] if found is None else [found.st_size, found.st_mtime_ns]
    return Storage.open(given).mark("")


def local_folder(url: str, kind: str) -> Path:
    """Where this machine keeps what belongs to a URL: below the variable FORESEE_CACHE, else in the user's cache."""
    place = url.partition("?")[0].rstrip("/")
    home = os.environ.get("FORESEE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "foresee")
    digest = hashlib.sha256(place.encode()).hexdigest()[:12]
    return Path(home).expanduser().absolute() / kind / f"{place.rpartition('/')[2]}-{digest}"


@contextmanager
def sent(target: Place, *, marker: str | None = None, replace: bool = False) -> Iterator[Path]:
    """A local path at which to make what belongs to `target`; it is there when the block ends without an error.

    A path is given as it is. For a URL it is a new path in the cache folder of this machine; `marker` is the file
    without which a folder counts as none.
    """
    if isinstance(target, Path):
        yield target
        return
    parent, name = parent_and_name(target)
    folder_there, beside = Storage.open(target), Storage.open(parent)
    beside.check_bucket()
    if not replace and (beside.size(name) or (marker and folder_there.size(marker))) is not None:
        raise ConfigError(f"{shown(target)} exists; give another target, or remove it yourself")
    home = local_folder(target, "sent").parent
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as folder:
        made = Path(folder, name)
        yield made
        if made.is_dir():
            _send_folder(folder_there, made, str(marker))
        else:
            beside.replace(name, lambda: pieces_of(made))


def _send_folder(storage: Storage, folder: Path, marker: str) -> None:
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    storage.remove([marker])
    for name in names:
        if name != marker:
            storage.put(name, lambda name=name: pieces_of(folder / name))  # type: ignore[misc]
    storage.remove(set(storage.names()) - set(names))
    storage.publish(marker, (folder / marker).read_bytes())


def pieces_of(path: Path) -> Iterator[bytes]:
    """A file, a piece at a time."""
    with open(path, "rb") as stream:
        while piece := stream.read(RANGE_BYTES):
            yield piece


def brought(source: Place, kind: str, *, marker: str | None = None, made_here: tuple[str, ...] = ()) -> Path:
    """A local path that has what is at `source`. `kind` names the part of the cache folder.

    What else lies there is removed, unless its name begins with one of `made_here`.
    """
    if isinstance(source, Path):
        return source
    target, storage = local_folder(source, kind), Storage.open(source)
    if marker is not None and storage.size(marker) is not None:
        names = storage.names()
        _bring(storage, target, [*(name for name in names if name != marker), marker])
        _forget_others(target, {*names, SEEN_FILE}, made_here)
        return target
    parent, name = parent_and_name(source)
    beside = Storage.open(parent)
    if beside.size(name) is None:
        beside.check_bucket()
        raise ConfigError(f"{shown(source)} is not there{f' or has no {marker}' if marker else ''}; check the URL")
    _bring(beside, target, [name])
    return target / name


def _bring(storage: Storage, target: Path, names: list[str]) -> None:
    """Files that are not here as they are there now."""
    seen = _seen(target)
    for name in names:
        mark = storage.mark(name)
        if seen.get(name) != mark or not (target / name).is_file():
            storage.fetch(name, target / name)
            # Times there count in seconds: what is that new may change again without showing it.
            seen[name] = mark if time.time() - mark[1] / 1e9 > SETTLED_SECONDS else []
            (target / SEEN_FILE).write_text(json.dumps(seen))


def _seen(target: Path) -> dict[str, list[int]]:
    with suppress(OSError, ValueError):
        found = json.loads((target / SEEN_FILE).read_bytes())
        if isinstance(found, dict):
            return found
    return {}


def _forget_others(target: Path, names: set[str], made_here: tuple[str, ...]) -> None:
    for path in sorted(target.rglob("*")):
        name = path.relative_to(target).as_posix()
        if path.is_file() and name not in names and not name.startswith(made_here):
            os.unlink(path)
