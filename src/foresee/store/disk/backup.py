"""Commits of one table folder in a storage: what is new of each is copied there, and a lost folder is made from it.

In: a folder whose last commit can be opened, and a `Storage`. Out: packs (pieces of `log.bin` and of the base, one
after the other), one listing that says where each piece belongs, and `commits.json`, which names both for the last two
commits. That file is published last, so a commit is there whole or not at all. A chunk of the log is written once, so
it is copied once; packs of which less than half is still needed are given up by copying the rest of them again.

`copy.json` in the folder says which commit there has the very chunks of this folder. Without it everything is copied.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from foresee.arrays import Int64
from foresee.errors import StoreError
from foresee.io import bounded_json as json_fields
from foresee.io import failpoints
from foresee.io.failpoints import failpoint
from foresee.io.files import Files
from foresee.io.storage import Storage, Stored
from foresee.io.uploads import Needless
from foresee.store.disk.base import BLOCK_BYTES, ROWS_FILE, WRITTEN_FILE
from foresee.store.disk.checksums import CHECKSUMS_FILE
from foresee.store.disk.chunks import LOG_FILE, Shape, read_directory, write_directory
from foresee.store.disk.folder import create_folder
from foresee.store.disk.manifest import MANIFEST_FILE, Manifest, check_same_layout, read_manifest, to_json
from foresee.store.disk.undo import OVERLAY_FILE, UNDO_FILE
from foresee.store.layout import Layout

POINTER = "commits.json"
COPY_FILE = "copy.json"
LOADING_FILE = "loading"
FORMAT_VERSION = 1
KEPT = 2
PACK_BYTES = 1 << 25
"""A pack is closed when it has so many bytes; also what a copy takes of memory, about."""
AGAIN_BYTES_MAX = 1 << 28
"""Of packs that are given up with one commit."""
_PIECE_BYTES = 1 << 22
_LOADS_AT_ONCE = 4
_FILES = (LOG_FILE, ROWS_FILE, CHECKSUMS_FILE, WRITTEN_FILE)
_FILE, _OFFSET, _LENGTH, _SEQUENCE, _ROWS, _PACK, _PLACE = range(7)
"""Columns of a listing: which file, where in it and how long, of a chunk its sequence number and rows; which pack, and
where in that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A commit in the storage."""

    step: int
    manifest: str
    """`layout.json` of a folder that has this commit and no other."""
    listing: Stored
    packs: tuple[Stored, ...]

    @property
    def names(self) -> set[str]:
        """All files that belong to it."""
        return {self.listing.name, *(pack.name for pack in self.packs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The last commit of a folder, as long as it can be opened there."""

    step: int
    before: int | None
    """The commit before it."""
    manifest: str
    pieces: Int64
    """A listing that says nothing of packs yet."""
    base: tuple[int, ...]
    """When the files of the base were last written."""


def snapshot(folder: Path, manifest: Manifest) -> Snapshot:
    """What the last commit of a folder consists of. It has to stay openable until it is copied."""
    alone = replace(
        manifest, prepared=None, previous_step=None, previous_version_max=0, previous_chunks=None, undo=None
    )
    shape = Shape.of(manifest.layout, manifest.chunk_bytes)
    entries = read_directory(folder, manifest.chunks)
    chunks = np.zeros((len(entries), 7), np.int64)
    chunks[:, _OFFSET] = entries[:, 0] * shape.chunk_bytes
    chunks[:, _SEQUENCE], chunks[:, _ROWS] = entries[:, 1], entries[:, 2]
    used = shape.header_bytes + entries[:, 2] * shape.record_bytes
    chunks[:, _LENGTH] = -(-used // BLOCK_BYTES) * BLOCK_BYTES
    base = [piece for number, name in enumerate(_FILES) if number for piece in _data_of(folder / name, number)]
    pieces = np.concatenate([chunks, np.array(base, np.int64).reshape(-1, 7)])
    return Snapshot(
        step=manifest.committed_step,
        before=manifest.previous_step,
        manifest=to_json(alone).decode(),
        pieces=pieces,
        base=base_mark(folder),
    )


def base_mark(folder: Path) -> tuple[int, ...]:
    """Another one whenever the base has changed."""
    return tuple((folder / name).stat().st_mtime_ns for name in _FILES[1:])


def _data_of(path: Path, number: int) -> Iterator[list[int]]:
    """The pieces of a sparse file that are no holes."""
    with open(path, "rb") as stream:
        end, at = os.fstat(stream.fileno()).st_size, 0
        while at < end:
            try:
                begin = os.lseek(stream.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole to its end
                    return
                raise
            at = os.lseek(stream.fileno(), begin, os.SEEK_HOLE)
            for offset in range(begin, at, _PIECE_BYTES):
                yield [number, offset, min(_PIECE_BYTES, at - offset), 0, 0, 0, 0]


class FolderCopies:
    """The copies of one folder's commits. One process at a time makes them."""

    def __init__(self, storage: Storage, folder: Path) -> None:
        self.storage, self.folder = storage, folder
        self.copies = read_copies(storage)
        """Oldest first."""
        self._known: tuple[Copy, Int64, tuple[int, ...]] | None = None
        """One whose chunks are those of this folder, with its listing and when the base was written."""
        self._trust_folder()

    @property
    def steps(self) -> frozenset[int]:
        return frozenset(copy.step for copy in self.copies)

    def _trust_folder(self) -> None:
        """What `copy.json` says, if the commit that it names is the one that is here."""
        try:
            content = json_fields.parse_object((self.folder / COPY_FILE).read_bytes())
            name, url = json_fields.text_of(content, "listing"), json_fields.text_of(content, "storage")
            base = tuple(int(it) for it in content["base"])
            manifest = read_manifest(self.folder)
        except (OSError, ValueError, KeyError, TypeError, StoreError):
            return
        here = {manifest.committed_step: manifest.chunks, manifest.previous_step: manifest.previous_chunks}
        for copy in self.copies:
            there = json.loads(copy.manifest)["chunks"]
            chunks = here.get(copy.step)
            if (url, name) == (self.storage.url, copy.listing.name) and (chunks and asdict(chunks)) == there:
                self._known = copy, self._listing(copy), base

    def distrust_folder(self) -> None:
        """Chunks of this folder may get a second meaning: nobody may take them for those that were copied."""
        (self.folder / COPY_FILE).unlink(missing_ok=True)

    def copy(self, of: Snapshot, still_here: Callable[[], bool]) -> None:
        """Copies what is not there yet, and publishes the commit. `still_here`: it can still be opened."""
        if not still_here():
            raise Needless
        stored, kept, places = self._take_over(of)
        listing = of.pieces.copy()
        listing[:, _PLACE] = places
        name, made = f"step-{of.step:09d}-{uuid.uuid4().hex[:12]}", list[str]()
        try:
            for number, rows in enumerate(_in_packs(listing, np.flatnonzero(kept < 0))):
                pack = self.storage.store(f"{name}-{number}.pack", partial(_read_all, self.folder, listing[rows]))
                made.append(pack.name)
                kept[rows] = len(stored)
                listing[rows, _PLACE] = np.cumsum(listing[rows, _LENGTH]) - listing[rows, _LENGTH]
                stored.append(pack)
                failpoint(failpoints.PACK_COPIED)
                if not still_here():
                    raise Needless
            listing[:, _PACK] = kept
            content = listing.tobytes()
            made.append(f"{name}.listing")
            of_listing = self.storage.store(made[-1], lambda: [content])
        except BaseException:
            with suppress(StoreError):
                self.storage.patient(0.0).remove(made)
            raise
        copy = Copy(step=of.step, manifest=of.manifest, listing=of_listing, packs=tuple(stored))
        self._publish(copy, of, listing)

    def _publish(self, copy: Copy, of: Snapshot, listing: Int64) -> None:
        before = copy.step - 1 if of.before is None else of.before
        older = [it for it in self.copies if it.step <= min(before, copy.step - 1)]
        copies = [*older[1 - KEPT :], copy]
        content = {"format_version": FORMAT_VERSION, "commits": [asdict(it) for it in copies]}
        failpoint(failpoints.COPYING)
        self.storage.publish(POINTER, json.dumps(content).encode())
        failpoint(failpoints.COPIED)
        old = {name for it in self.copies for name in it.names} - {name for it in copies for name in it.names}
        self.copies, self._known = copies, (copy, listing, of.base)
        self._remember(copy, of.base)
        self.storage.remove(sorted(old))

    def _remember(self, copy: Copy, base: tuple[int, ...]) -> None:
        content = {"storage": self.storage.url, "listing": copy.listing.name, "base": list(base)}
        Files().publish(self.folder / COPY_FILE, json.dumps(content).encode())

    def _take_over(self, of: Snapshot) -> tuple[list[Stored], Int64, Int64]:
        """Packs that stay; and for each piece of the commit in which of them it is, or -1, and where in that."""
        in_pack, places = np.full(len(of.pieces), -1, np.int64), np.zeros(len(of.pieces), np.int64)
        if self._known is None:
            return [], in_pack, places
        copy, known, base = self._known
        if base != of.base:
            known = known[known[:, _FILE] == 0]
        known = known[np.argsort(_keys(known))]
        keys, wanted = _keys(known), _keys(of.pieces)
        at = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        found = np.flatnonzero(keys[at] == wanted) if len(keys) else np.empty(0, np.int64)
        packs, lengths = known[at[found], _PACK], of.pieces[found, _LENGTH]
        live = np.bincount(packs, lengths, minlength=len(copy.packs))
        kept, again = list[Stored](), 0
        for number in np.argsort(live).tolist():
            pack = copy.packs[number]
            if 2 * live[number] < pack.num_bytes and again + live[number] <= AGAIN_BYTES_MAX:
                again += int(live[number])
                continue
            inside = packs == number
            in_pack[found[inside]], places[found[inside]] = len(kept), known[at[found[inside]], _PLACE]
            kept.append(pack)
        return kept, in_pack, places

    def clean(self) -> None:
        """Removes what a process that ended in the middle of a copy has left."""
        named = {POINTER, f"{POINTER}.draft"} | {name for copy in self.copies for name in copy.names}
        self.storage.remove([name for name in self.storage.names() if name not in named and "/" not in name])

    def load(self, step: int, layout: Layout) -> None:
        """Makes the folder anew, at a commit of the storage. Nobody has it open."""
        copy = next(it for it in self.copies if it.step == step)
        listing = self._listing(copy)
        folder, files = self.folder, Files()
        folder.mkdir(parents=True, exist_ok=True)
        files.publish(folder / LOADING_FILE, b"")
        empty_folder(folder)
        create_folder(folder, layout, files)
        _make_log(folder, listing)
        with ThreadPoolExecutor(_LOADS_AT_ONCE) as pool:
            list(pool.map(lambda number: self._load_pack(copy, listing, number), range(len(copy.packs))))
        files.publish(folder / MANIFEST_FILE, copy.manifest.encode())
        manifest = read_manifest(folder)
        check_same_layout(folder, manifest.layout, layout)
        if manifest.chunks is not None:
            write_directory(folder, manifest.chunks.number, _entries(listing, manifest), files)
        for name in _FILES:
            with open(folder / name, "rb") as stream:
                files.sync(stream.fileno())
        self._known = copy, listing, base_mark(folder)
        self._remember(copy, self._known[2])
        (folder / LOADING_FILE).unlink()
        files.sync_folder(folder)

    def _load_pack(self, copy: Copy, listing: Int64, number: int) -> None:
        content = self.storage.read(copy.packs[number])
        with _writable(self.folder) as descriptors:
            for piece in listing[listing[:, _PACK] == number].tolist():
                part = memoryview(content)[piece[_PLACE] : piece[_PLACE] + piece[_LENGTH]]
                os.pwrite(descriptors[piece[_FILE]], part, piece[_OFFSET])

    def _listing(self, copy: Copy) -> Int64:
        return np.frombuffer(self.storage.read(copy.listing), np.int64).reshape(-1, 7)


def read_copies(storage: Storage) -> list[Copy]:
    """What `commits.json` of a storage names."""
    content = storage.published(POINTER)
    if content is None:
        return []
    try:
        found = json_fields.parse_object(content)
        if found.get("format_version") != FORMAT_VERSION:
            raise ValueError(f"format version {json_fields.shown(found.get('format_version'))}")
        return [_copy_of(it) for it in json_fields.objects(found, "commits")]
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{storage.url}/{POINTER} is damaged, or of another release ({error}); restore it from a copy"
        ) from error


def _copy_of(content: dict[str, Any]) -> Copy:
    return Copy(
        step=json_fields.whole(content, "step"),
        manifest=json_fields.text_of(content, "manifest", 1 << 24),
        listing=Stored.parse(json_fields.object_of(content, "listing")),
        packs=tuple(Stored.parse(it) for it in json_fields.objects(content, "packs")),
    )


def empty_folder(folder: Path) -> None:
    """Takes the tables away, `layout.json` first."""
    names = [MANIFEST_FILE, *_FILES, UNDO_FILE, OVERLAY_FILE, COPY_FILE]
    for path in [*(folder / name for name in names), *folder.glob("chunks-*")]:
        path.unlink(missing_ok=True)


def _keys(listing: Int64) -> Int64:
    """The same for the same piece: a chunk is written once under its sequence number."""
    keys: Int64 = listing[:, _FILE] << 61 | listing[:, _SEQUENCE] << 33 | listing[:, _OFFSET] // BLOCK_BYTES
    return keys


def _in_packs(listing: Int64, rows: Int64) -> Iterator[Int64]:
    """Pieces that go into one pack, in the order in which they lie on the disk."""
    rows = rows[np.lexsort((listing[rows, _OFFSET], listing[rows, _FILE]))]
    if len(rows):
        number = (np.cumsum(listing[rows, _LENGTH]) - 1) // PACK_BYTES
        yield from np.split(rows, np.flatnonzero(np.diff(number)) + 1)


def _read_all(folder: Path, pieces: Int64) -> Iterator[bytes]:
    for number in np.unique(pieces[:, _FILE]).tolist():
        with open(folder / _FILES[number], "rb", buffering=0) as stream:
            for piece in pieces[pieces[:, _FILE] == number].tolist():
                content = os.pread(stream.fileno(), piece[_LENGTH], piece[_OFFSET])
                yield content.ljust(piece[_LENGTH], b"\0")  # the last chunk of a file may be cut to its rows


def _make_log(folder: Path, listing: Int64) -> None:
    """Space for all chunks, now: a later write must not run out of it."""
    ends = (listing[:, _OFFSET] + listing[:, _LENGTH])[listing[:, _FILE] == 0]
    with open(folder / LOG_FILE, "wb") as stream:
        if len(ends):
            os.posix_fallocate(stream.fileno(), 0, int(ends.max()))


def _entries(listing: Int64, manifest: Manifest) -> Int64:
    chunks = listing[listing[:, _FILE] == 0]
    places = chunks[:, _OFFSET] // Shape.of(manifest.layout, manifest.chunk_bytes).chunk_bytes
    return np.ascontiguousarray(np.stack([places, chunks[:, _SEQUENCE], chunks[:, _ROWS]], axis=1))


@contextmanager
def _writable(folder: Path) -> Iterator[list[int]]:
    """Descriptors of all files of a folder."""
    with ExitStack() as opened:
        yield [opened.enter_context(open(folder / name, "r+b")).fileno() for name in _FILES]
