"""`layout.json`: what a table folder holds, and its last commit. The one file that decides.

In: a layout and the state of the last commit. Out: JSON that a person can read, and back again, checked. Replacing this
file is the commit: `journal` says that the overlay holds so many records that belong to the commit and may not be in
the base yet. Everything else in the folder is meaningless without it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foresee.errors import StoreError
from foresee.store.contract import Layout, Table

MANIFEST_FILE = "layout.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Records of the overlay that belong to the last commit."""

    num_records: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A table folder as of its last commit."""

    layout: Layout
    committed_step: int = 0
    version_max: int = 0
    """No committed row has a higher version."""
    journal: Journal | None = None
    """None: all rows of the commit are in the base."""


def to_json(manifest: Manifest) -> bytes:
    layout, journal = manifest.layout, manifest.journal
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
        "journal": None if journal is None else {"num_records": journal.num_records, "crc32": journal.crc32},
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
    if found != FORMAT_VERSION:
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
    journal = content["journal"]
    return Manifest(
        layout=layout,
        committed_step=int(content["committed_step"]),
        version_max=int(content["version_max"]),
        journal=journal and Journal(num_records=int(journal["num_records"]), crc32=int(journal["crc32"])),
    )


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
