"""`layout.json`: what a table folder holds, and its commits. The one file that decides.

In: a layout and the state of the commits. Out: JSON that a person can read, and back again, checked. Replacing this
file is what makes a commit stand, be prepared, or be given up. `journal` and `prepared` say which records of the
overlay count, `undo` which records lead back from the last commit to the one before. Everything else in the folder is
meaningless without it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foresee.errors import StoreError
from foresee.store.contract import Layout, Table

MANIFEST_FILE = "layout.json"
FORMAT_VERSION = 2
READABLE_VERSIONS = (1, 2)
"""Version 1 knew one commit at a time and one segment of the overlay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Sealed records of the overlay."""

    num_records: int
    crc32: int
    segment: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A commit that is sealed and not decided."""

    step: int
    version_max: int
    journal: Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """Records of `undo.bin`: what the rows of the last commit were before it."""

    num_records: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A table folder and its commits."""

    layout: Layout
    committed_step: int = 0
    version_max: int = 0
    """No committed row has a higher version."""
    journal: Journal | None = None
    """None: all rows of the last commit are in the base."""
    prepared: Prepared | None = None
    previous_step: int | None = None
    """The commit before, if the folder can go back to it: by not folding the journal while there is no `undo`, else by
    writing its records into the base."""
    previous_version_max: int = 0
    undo: Undo | None = None
    going_back: bool = False
    """The last commit was given up for the one before, and the records of `undo` may not be in the base yet."""


def to_json(manifest: Manifest) -> bytes:
    layout = manifest.layout
    content = {
        "format_version": FORMAT_VERSION,
        "tables": [{"name": table.name, "num_rows": table.num_rows} for table in layout.tables],
        "width": layout.width,
        "state_width": layout.state_width,
        "optimizer": layout.optimizer,
        "seed": layout.seed,
        "init_scale": layout.init_scale,
        "committed_step": manifest.committed_step,
        "version_max": manifest.version_max,
        "journal": None if manifest.journal is None else asdict(manifest.journal),
        "prepared": None if manifest.prepared is None else asdict(manifest.prepared),
        "previous_step": manifest.previous_step,
        "previous_version_max": manifest.previous_version_max,
        "undo": None if manifest.undo is None else asdict(manifest.undo),
        "going_back": manifest.going_back,
    }
    return (json.dumps(content, indent=2) + "\n").encode()


def read_manifest(folder: Path) -> Manifest:
    """Reads `layout.json`, or says in a sentence why this is not a table folder."""
    path = folder / MANIFEST_FILE
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(f"{folder} is not a table folder: it has no {MANIFEST_FILE}; create it first") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; check the folder's permissions") from error
    except ValueError as error:
        raise StoreError(f"{path} is not JSON ({error}); restore it from a copy") from error
    found = content.get("format_version") if isinstance(content, dict) else None
    if found not in READABLE_VERSIONS:
        raise StoreError(
            f"{path} has format version {found!r}, this program reads {FORMAT_VERSION}; "
            "use the version of Foresee that wrote the tables"
        )
    try:
        return _from_json(content)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} lacks or garbles a key ({error}); restore it from a copy") from error


def _from_json(content: dict[str, Any]) -> Manifest:
    layout = Layout(
        tables=tuple(Table(str(table["name"]), int(table["num_rows"])) for table in content["tables"]),
        width=int(content["width"]),
        state_width=int(content["state_width"]),
        optimizer=str(content["optimizer"]),
        seed=int(content["seed"]),
        init_scale=float(content["init_scale"]),
    )
    if content["format_version"] == 1:
        content = {**asdict(Manifest(layout=layout)), **content}
    prepared, undo, previous = content["prepared"], content["undo"], content["previous_step"]
    return Manifest(
        layout=layout,
        committed_step=int(content["committed_step"]),
        version_max=int(content["version_max"]),
        journal=_journal(content["journal"], layout),
        prepared=prepared and _prepared(prepared, layout),
        previous_step=None if previous is None else int(previous),
        previous_version_max=int(content["previous_version_max"]),
        undo=undo and Undo(num_records=_num_records(undo, layout), crc32=int(undo["crc32"])),
        going_back=bool(content["going_back"]),
    )


def _journal(content: dict[str, Any] | None, layout: Layout) -> Journal | None:
    if content is None:
        return None
    segment = int(content.get("segment", 0))
    if segment not in (0, 1):
        raise ValueError(f"segment {segment}")
    return Journal(num_records=_num_records(content, layout), crc32=int(content["crc32"]), segment=segment)


def _num_records(content: dict[str, Any], layout: Layout) -> int:
    num_records = int(content["num_records"])
    if not 0 <= num_records <= layout.num_rows:
        raise ValueError(f"num_records {num_records} of {layout.num_rows} rows")
    return num_records


def _prepared(content: dict[str, Any], layout: Layout) -> Prepared:
    journal = _journal(content["journal"], layout)
    if journal is None:
        raise ValueError("prepared without a journal")
    return Prepared(step=int(content["step"]), version_max=int(content["version_max"]), journal=journal)


def check_same_layout(folder: Path, found: Layout, wanted: Layout) -> None:
    """Raises a sentence that names both values, for the first thing in which two layouts differ."""
    remedy = "use the settings the tables were made with, or another folder"
    for name in ("width", "state_width", "optimizer", "seed", "init_scale"):
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
