"""What a check reports, and the check of a table folder, which is never opened for writing.

A finding is `whole`, `damaged`, or a `note`: something a crash may leave behind and the next one to open the folder
puts right. `FsckReport` collects findings and closes with a sentence.

In: a folder with `layout.json`. Out: findings on the manifest, the sizes of the arrays, the checksums of sealed
records, and the commits that a store could be opened at. The folder may be in use: each file is checked as it is found.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from foresee.base.terminal import counted
from foresee.errors import ForeseeError, StoreError
from foresee.store.contract import Layout
from foresee.store.disk.base import ROWS_FILE, WRITTEN_FILE, open_array, row_dtype
from foresee.store.disk.journal import OVERLAY_FILE
from foresee.store.disk.manifest import MANIFEST_FILE, Journal, Manifest, read_manifest
from foresee.store.disk.overlay import HEADER_WORDS
from foresee.store.disk.undo import UNDO_FILE

State = Literal["whole", "damaged", "note"]
TEXT_CHARACTERS_MAX = 600


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: State
    text: str


@dataclass(slots=True)
class FsckReport:
    """Everything that was found in one place."""

    kind: str
    """Such as "a table folder"."""
    where: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return all(finding.state != "damaged" for finding in self.findings)

    @property
    def sentence(self) -> str:
        """What a person takes away."""
        damaged = [finding for finding in self.findings if finding.state == "damaged"]
        if damaged:
            more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            return f"{self.where} is {self.kind} with damage: {damaged[0].what}{more}; restore it from a copy."
        notes = [finding for finding in self.findings if finding.state == "note"]
        return f"{self.where} is {self.kind} and whole{'; ' + notes[0].text if notes else ''}."

    def add(self, what: str, state: State, text: str) -> None:
        self.findings.append(Finding(what, state, text[:TEXT_CHARACTERS_MAX]))

    def attempt(self, what: str, look: Callable[[], str]) -> bool:
        """Adds what looking says, or the error it ends with; True if there was none."""
        try:
            self.add(what, "whole", look())
        except ForeseeError as error:
            self.add(what, "damaged", str(error))
        except (OSError, MemoryError) as error:
            self.add(what, "damaged", f"it cannot be read ({error})")
        else:
            return True
        return False


CHUNK_BYTES = 1 << 24
ROWS_AT_ONCE = 1 << 18


def check_tables(folder: Path, report: FsckReport, prefix: str = "") -> Manifest | None:
    """Adds what is to be said of a table folder; the manifest, if that can be read."""
    manifest: list[Manifest] = []

    def read() -> str:
        manifest.append(read_manifest(folder))
        layout = manifest[0].layout
        several = f"{counted(len(layout.tables), 'table')}, {counted(layout.num_rows, 'row')}"
        return f"{several} of {layout.row_bytes} bytes, {layout.optimizer}"

    if not report.attempt(prefix + MANIFEST_FILE, read):
        return None
    found = manifest[0]
    report.attempt(prefix + ROWS_FILE, lambda: _arrays(folder, found))
    _check_commits(folder, found, report, prefix)
    return found


def openable_steps(manifest: Manifest) -> list[int]:
    """Steps that a store of this folder can be opened at."""
    prepared = None if manifest.prepared is None else manifest.prepared.step
    steps = (manifest.previous_step, manifest.committed_step, prepared)
    return sorted(step for step in steps if step is not None)


def _check_commits(folder: Path, manifest: Manifest, report: FsckReport, prefix: str) -> None:
    record_bytes = 4 * HEADER_WORDS + manifest.layout.row_bytes
    if manifest.journal is not None:
        what = f"{prefix}commit of step {manifest.committed_step}"
        if report.attempt(what, lambda: _journal(folder, manifest.layout, manifest.journal, record_bytes)):
            report.add(what, "note", "it was interrupted after it was sealed, and is finished when it is next opened")
    if manifest.prepared is not None:
        prepared = manifest.prepared
        what = f"{prefix}prepared commit of step {prepared.step}"
        if report.attempt(what, lambda: _journal(folder, manifest.layout, prepared.journal, record_bytes)):
            report.add(what, "note", "its run decides whether it stands when it is resumed")
    if manifest.undo is not None:
        undo = manifest.undo
        what = f"{prefix}way back to step {manifest.previous_step}"
        report.attempt(what, lambda: _checked(folder / UNDO_FILE, 0, undo.num_records * record_bytes, undo.crc32))
    if manifest.going_back:
        report.add(prefix + "going back", "note", "it was interrupted, and is finished when it is next opened")
    steps = ", ".join(map(str, openable_steps(manifest)))
    report.add(prefix + "commits", "whole", f"can be opened at step {steps}")


def _journal(folder: Path, layout: Layout, journal: Journal | None, record_bytes: int) -> str:
    assert journal is not None
    begin = journal.segment * layout.num_rows * record_bytes
    return _checked(folder / OVERLAY_FILE, begin, journal.num_records * record_bytes, journal.crc32)


def _checked(path: Path, begin: int, num_bytes: int, expected: int) -> str:
    """The checksum of a piece of a file holds; raises if not."""
    crc, left = 0, num_bytes
    with open(path, "rb") as file:
        file.seek(begin)
        while left and (piece := file.read(min(CHUNK_BYTES, left))):
            crc, left = zlib.crc32(piece, crc), left - len(piece)
    if left:
        raise StoreError(f"{path} is cut off: {left:,} of {num_bytes:,} bytes are missing; restore it from a copy")
    if crc != expected:
        raise StoreError(f"{path} is damaged: its checksum is {crc:08x}, not {expected:08x}; restore it from a copy")
    return f"{num_bytes:,} bytes, checksum {crc:08x}"


def _arrays(folder: Path, manifest: Manifest) -> str:
    """Sizes of both arrays, and versions that no commit has given: all that can be told without checksums."""
    layout = manifest.layout
    for name, dtype, length in (
        (ROWS_FILE, row_dtype(layout), layout.num_rows),
        (WRITTEN_FILE, np.dtype("u1"), (layout.num_rows + 7) // 8),
    ):
        descriptor, begin = open_array(folder / name, dtype, length, os.O_RDONLY)
        os.close(descriptor)
        if name == ROWS_FILE:
            rows = np.memmap(folder / name, dtype, "r", begin, (length,))
        else:
            bits = np.memmap(folder / name, dtype, "r", begin, (length,))
    num_written, settled = 0, manifest.journal is None and not manifest.going_back
    for first in range(0, layout.num_rows, ROWS_AT_ONCE):
        some = bits[first // 8 : (first + ROWS_AT_ONCE + 7) // 8]
        written = np.flatnonzero(np.unpackbits(some, bitorder="little")[: layout.num_rows - first])
        num_written += len(written)
        versions = rows["version"][first + written]
        if settled and len(versions) and (int(versions.min()) < 0 or int(versions.max()) > manifest.version_max):
            wrong = int(versions.max()) if int(versions.max()) > manifest.version_max else int(versions.min())
            raise StoreError(
                f"{folder / ROWS_FILE} has a row of version {wrong}, and no commit has more than "
                f"{manifest.version_max}; restore it from a copy"
            )
    return f"{num_written:,} of {layout.num_rows:,} rows written, versions up to {manifest.version_max}"
