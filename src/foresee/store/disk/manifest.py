"""`layout.json`: what a table folder holds, and its commits. The one file that decides.

In: a layout and the state of the commits. Out: JSON that a person can read, and back again, checked. Replacing this
file is what makes a commit stand, be prepared, or be given up. `chunks` of a commit name the list of the chunks of the
log that it has rows in; `undo` says which records lead back from a folded commit to the one before. Everything else in
the folder is meaningless without it, so it has a checksum of its own. Folders of versions 1 to 3 are still read:
1 and 2 had an overlay and no log, and in all three a row may lack a checksum.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foresee.errors import StoreError
from foresee.io import bounded_json
from foresee.store.layout import Layout, layout_from_dict, layout_to_dict

MANIFEST_FILE = "layout.json"
CHUNK_BYTES_MAX = 1 << 30
FORMAT_VERSION = 4
READABLE_VERSIONS = (1, 2, 3, 4)
"""Version 1 knew one commit at a time and one segment of the overlay; version 2 had no log; in version 3 rows of the
base and `layout.json` itself may have no checksum."""
LOG_VERSION = 3
CHECKED_VERSION = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """The list of the chunks in which a commit has rows: `chunks-N.bin`."""

    number: int
    num_chunks: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Sealed records of the overlay that folders had before the log; read, and never written."""

    num_records: int
    crc32: int
    segment: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A commit that is sealed and not decided."""

    step: int
    version_max: int
    chunks: Chunks | None = None
    """None: nothing is in the log."""
    journal: Journal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """Records of `undo.bin`: what the rows of the last commit were before it."""

    num_records: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A table folder and its commits."""

    layout: Layout
    format_version: int = FORMAT_VERSION
    """Stays what it was when the folder was made: rows that were written without a checksum still have none."""
    committed_step: int = 0
    version_max: int = 0
    """No committed row has a higher version."""
    base_version_max: int = 0
    """No row of the base has a higher version."""
    chunk_bytes: int = 0
    """Size of the chunks of the log; 0: there is none."""
    chunks: Chunks | None = None
    """None: all rows of the last commit are in the base."""
    folding: bool = False
    """The rows of the last commit are being written into the base."""
    half_folded: bool = False
    """A fold was interrupted: a row of the base that the log has, too, may be half written. Nobody reads it there."""
    journal: Journal | None = None
    """Only in folders of older formats."""
    prepared: Prepared | None = None
    previous_step: int | None = None
    """The commit before, if the folder can go back to it: by its own chunks while there is no `undo`, else by writing
    the records of that into the base."""
    previous_version_max: int = 0
    previous_chunks: Chunks | None = None
    undo: Undo | None = None
    going_back: bool = False
    """The last commit was given up for the one before, and the records of `undo` may not be in the base yet."""
    written_crc32: int | None = None
    """Of the bits of `written.npy`, as they are once `folding` or `going_back` is done; None: nobody knows."""

    @property
    def all_checked(self) -> bool:
        """Every row in the base has a checksum."""
        return self.format_version >= CHECKED_VERSION


def to_json(manifest: Manifest) -> bytes:
    content = {
        "format_version": manifest.format_version,
        **layout_to_dict(manifest.layout),
        "committed_step": manifest.committed_step,
        "version_max": manifest.version_max,
        "base_version_max": manifest.base_version_max,
        "chunk_bytes": manifest.chunk_bytes,
        "chunks": None if manifest.chunks is None else asdict(manifest.chunks),
        "folding": manifest.folding,
        "half_folded": manifest.half_folded,
        "prepared": None if manifest.prepared is None else _prepared_to_json(manifest.prepared),
        "previous_step": manifest.previous_step,
        "previous_version_max": manifest.previous_version_max,
        "previous_chunks": None if manifest.previous_chunks is None else asdict(manifest.previous_chunks),
        "undo": None if manifest.undo is None else asdict(manifest.undo),
        "going_back": manifest.going_back,
        "written_crc32": manifest.written_crc32,
    }
    content["crc32"] = _checksum(content)
    return (json.dumps(content, indent=2) + "\n").encode()


def _checksum(content: dict[str, Any]) -> int:
    """Of everything that is said, however it is laid out."""
    return zlib.crc32(json.dumps({**content, "crc32": None}, sort_keys=True).encode())


def _check_sum(path: Path, content: dict[str, Any]) -> None:
    said, expected = content.get("crc32"), _checksum(content)
    if said != expected:
        raise StoreError(
            f"{path} is damaged: it has checksum {repr(said)[:40]} where {expected} is expected; restore it from a copy"
        )


def _prepared_to_json(prepared: Prepared) -> dict[str, Any]:
    assert prepared.journal is None, "only read"
    return {name: value for name, value in asdict(prepared).items() if name != "journal"}


def read_manifest(folder: Path) -> Manifest:
    """Reads `layout.json`, or says in a sentence why this is not a table folder."""
    path = folder / MANIFEST_FILE
    try:
        content = bounded_json.parse(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"{folder} is not a table folder: it has no {MANIFEST_FILE}; create it first") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; check the folder's permissions") from error
    except ValueError as error:
        raise StoreError(f"{path} is not JSON ({error}); restore it from a copy") from error
    found = content.get("format_version") if isinstance(content, dict) else None
    if isinstance(content, dict) and ("crc32" in content or found == CHECKED_VERSION):  # older ones have none
        _check_sum(path, content)
    if found not in READABLE_VERSIONS:
        raise StoreError(
            f"{path} has format version {repr(found)[:40]}, this program reads {FORMAT_VERSION}; "
            "use the version of Foresee that wrote the tables"
        )
    try:
        return _from_json(content)
    except ValueError as error:
        raise StoreError(f"{path} lacks or garbles a key ({error}); restore it from a copy") from error


def _from_json(content: dict[str, Any]) -> Manifest:
    layout = layout_from_dict(content)
    if content["format_version"] < LOG_VERSION:
        before = {"base_version_max": content.get("version_max"), "previous_version_max": 0, "chunk_bytes": 0}
        content = {**before, **content}
    manifest = Manifest(
        layout=layout,
        format_version=max(content["format_version"], LOG_VERSION),
        committed_step=bounded_json.whole(content, "committed_step"),
        version_max=bounded_json.whole(content, "version_max"),
        base_version_max=bounded_json.whole(content, "base_version_max"),
        chunk_bytes=bounded_json.whole(content, "chunk_bytes", 0, CHUNK_BYTES_MAX),
        chunks=_chunks(content, "chunks"),
        previous_chunks=_chunks(content, "previous_chunks"),
        folding=content.get("folding") is True,
        half_folded=content.get("half_folded") is True,
        journal=None if content.get("journal") is None else _journal(content, layout),
        prepared=None if content.get("prepared") is None else _prepared(content, layout),
        previous_step=None if content.get("previous_step") is None else bounded_json.whole(content, "previous_step"),
        previous_version_max=bounded_json.whole(content, "previous_version_max"),
        undo=None if content.get("undo") is None else _undo(bounded_json.object_of(content, "undo"), layout),
        going_back=content.get("going_back") is True,
        written_crc32=None if content.get("written_crc32") is None else _crc32(content, "written_crc32"),
    )
    listed = (manifest.chunks, manifest.previous_chunks, manifest.prepared and manifest.prepared.chunks)
    if any(listed) and not manifest.chunk_bytes:
        raise ValueError("it has chunks of no size")
    if manifest.going_back and manifest.undo is None:
        raise ValueError("it goes back without an undo")
    prepared = None if manifest.prepared is None else manifest.prepared.step
    known = [step for step in (manifest.previous_step, manifest.committed_step, prepared) if step is not None]
    if known != sorted(set(known)):
        raise ValueError(f"its commits do not follow each other: {known}")
    return manifest


def _journal(content: dict[str, Any], layout: Layout) -> Journal:
    journal = bounded_json.object_of(content, "journal")
    segment = bounded_json.whole({"segment": 0, **journal}, "segment", 0, 1)
    return Journal(num_records=_num_records(journal, layout), crc32=_crc32(journal), segment=segment)


def _prepared(content: dict[str, Any], layout: Layout) -> Prepared:
    prepared = bounded_json.object_of(content, "prepared")
    return Prepared(
        step=bounded_json.whole(prepared, "step"),
        version_max=bounded_json.whole(prepared, "version_max"),
        chunks=_chunks(prepared, "chunks"),
        journal=None if prepared.get("journal") is None else _journal(prepared, layout),
    )


def _chunks(content: dict[str, Any], name: str) -> Chunks | None:
    if content.get(name) is None:
        return None
    chunks = bounded_json.object_of(content, name)
    return Chunks(
        number=bounded_json.whole(chunks, "number"),
        num_chunks=bounded_json.whole(chunks, "num_chunks", 0, 1 << 32),
        crc32=_crc32(chunks),
    )


def _undo(content: dict[str, Any], layout: Layout) -> Undo:
    return Undo(num_records=_num_records(content, layout), crc32=_crc32(content))


def _num_records(content: dict[str, Any], layout: Layout) -> int:
    return bounded_json.whole(content, "num_records", 0, layout.num_rows)


def _crc32(content: dict[str, Any], name: str = "crc32") -> int:
    return bounded_json.whole(content, name, 0, (1 << 32) - 1)


def check_same_layout(folder: Path, found: Layout, wanted: Layout) -> None:
    """Raises a sentence that names both values, for the first thing in which two layouts differ."""
    remedy = "use the settings the tables were made with, or another folder"
    for name in ("width", "dtype", "rounding", "state_width", "optimizer", "seed", "init_scale"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        if ours != theirs:
            raise StoreError(f"the tables in {folder} have {name} {ours!r}, this run wants {theirs!r}; {remedy}")
    if len(found.tables) != len(wanted.tables):
        raise StoreError(
            f"{folder} holds {len(found.tables)} tables, this run wants {len(wanted.tables)}; "
            "train with the log the tables were made for, or use another folder"
        )
    for have, want in zip(found.tables, wanted.tables, strict=True):
        if have != want:
            raise StoreError(
                f"{folder} holds table '{have.name}' with {have.num_rows} rows where this run wants '{want.name}' "
                f"with {want.num_rows}; train with the log the tables were made for, or use another folder"
            )
