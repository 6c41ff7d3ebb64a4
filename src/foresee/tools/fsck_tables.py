"""What a check reports, and the check of a table folder, which is never opened for writing.

A finding is `whole`, `damaged`, or a `note`: something a crash may leave behind and the next one to open the folder
puts right. `FsckReport` collects findings and closes with a sentence.

In: a folder with `layout.json`. Out: findings on the manifest, the sizes of the arrays, the checksums of all rows, and
the commits that a store could be opened at. The folder may be in use: each file is checked as it is found.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from foresee.arrays import Int64
from foresee.errors import ForeseeError, StoreError
from foresee.io.units import counted
from foresee.store.disk.base import NO_ROWS, ROWS_FILE, WRITTEN_FILE, open_array, row_dtype
from foresee.store.disk.checksums import CHECKSUMS_FILE, lost_checksum, row_checksums
from foresee.store.disk.chunks import check_chunks, damaged_bits, damaged_row, listed_rows
from foresee.store.disk.manifest import MANIFEST_FILE, Journal, Manifest, read_manifest
from foresee.store.disk.undo import read_undo, record_bytes, sealed_records, unwritten_before
from foresee.store.kernels import NO_CRC, clear_bits, set_bits

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


ROWS_AT_ONCE = 1 << 18


def check_tables(folder: Path, report: FsckReport, prefix: str = "") -> Manifest | None:
    """Adds what is to be said of a table folder; the manifest, if that can be read."""
    manifest: list[Manifest] = []

    def read() -> str:
        manifest.append(read_manifest(folder))
        layout = manifest[0].layout
        several = f"{counted(len(layout.tables), 'table')}, {counted(layout.num_rows, 'row')}"
        halves = "" if layout.dtype == "float32" else f", {layout.dtype} rounded {layout.rounding}"
        return f"{several} of {layout.row_bytes} bytes, {layout.optimizer}{halves}"

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
    prepared, layout = manifest.prepared, manifest.layout
    commits = [
        (
            f"commit of step {manifest.committed_step}",
            manifest.chunks,
            manifest.journal,
            "it is in the log, and foresee fold brings it into the arrays",
        ),
        (f"commit of step {manifest.previous_step}", manifest.previous_chunks, None, ""),
    ]
    if prepared is not None:
        decided = "its run decides whether it stands when it is resumed"
        commits.append((f"prepared commit of step {prepared.step}", prepared.chunks, prepared.journal, decided))
    for what, chunks, journal, note in commits:
        found = True
        if chunks is not None:
            look = partial(check_chunks, folder, layout, manifest.chunk_bytes, chunks)
            found = report.attempt(prefix + what, look)
        elif journal is not None:
            found = report.attempt(prefix + what, partial(_sealed, folder, journal, manifest))
        elif prepared is None or what.startswith("commit"):
            continue
        if found and note:
            report.add(prefix + what, "note", note)
    if (undo := manifest.undo) is not None:
        what = f"{prefix}way back to step {manifest.previous_step}"
        report.attempt(what, lambda: _records(undo.num_records, read_undo(folder, undo, layout), manifest))
    if manifest.going_back:
        report.add(prefix + "going back", "note", "it was interrupted, and is finished when it is next opened")
    steps = ", ".join(map(str, openable_steps(manifest)))
    report.add(prefix + "commits", "whole", f"can be opened at step {steps}")


def _sealed(folder: Path, journal: Journal, manifest: Manifest) -> str:
    return _records(journal.num_records, sealed_records(folder, journal, manifest.layout), manifest)


def _records(number: int, pieces: Iterable[object], manifest: Manifest) -> str:
    """Reading them checks them."""
    for _ in pieces:
        pass
    return f"{number * record_bytes(manifest.layout):,} bytes, checksum right"


def _arrays(folder: Path, manifest: Manifest) -> str:
    """Sizes of the arrays, versions that no commit has given, and rows whose checksum is another. Rows that will be
    written when somebody finishes what was interrupted may be half there."""
    layout = manifest.layout
    added, removed, gone = _unfinished(folder, manifest)
    hidden = _hidden(folder, manifest)
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
    num_written, num_unchecked, known = 0, 0, manifest.journal is None
    pending = np.unique(np.concatenate([added, removed, hidden])) if known else NO_ROWS
    crcs = None
    if manifest.all_checked or (folder / CHECKSUMS_FILE).exists():
        descriptor, begin = open_array(folder / CHECKSUMS_FILE, np.dtype("<u4"), layout.num_rows, os.O_RDONLY)
        os.close(descriptor)
        crcs = np.memmap(folder / CHECKSUMS_FILE, np.dtype("<u4"), "r", begin, (layout.num_rows,))
    if known and manifest.written_crc32 not in (None, zlib.crc32(_finished(bits, added, gone).data)):
        raise damaged_bits(folder / WRITTEN_FILE, layout, bits, crcs)
    for first in range(0, layout.num_rows, ROWS_AT_ONCE):
        some = bits[first // 8 : (first + ROWS_AT_ONCE + 7) // 8]
        written = first + np.flatnonzero(np.unpackbits(some, bitorder="little")[: layout.num_rows - first])
        num_written += len(written)
        written = np.setdiff1d(written, pending, assume_unique=True)
        versions = rows["version"][written]
        if known and len(versions) and (int(versions.min()) < 0 or int(versions.max()) > manifest.version_max):
            wrong = int(versions.max()) if int(versions.max()) > manifest.version_max else int(versions.min())
            raise StoreError(
                f"{folder / ROWS_FILE} has a row of version {wrong}, and no commit has more than "
                f"{manifest.version_max}; restore it from a copy"
            )
        if known and crcs is not None:
            num_unchecked += _check_rows(folder, manifest, written, rows[written], crcs[written])
    unchecked = f", {counted(num_unchecked, 'row')} of an older format without a checksum" if num_unchecked else ""
    return f"{num_written:,} of {layout.num_rows:,} rows written, versions up to {manifest.version_max}{unchecked}"


def _unfinished(folder: Path, manifest: Manifest) -> tuple[Int64, Int64, Int64]:
    """Rows that an interrupted fold will add, that going back will write, and of those the ones that it takes away."""
    if manifest.going_back and manifest.undo is not None:
        ids = [rows for rows, _ in read_undo(folder, manifest.undo, manifest.layout)]
        return NO_ROWS, np.concatenate([NO_ROWS, *ids]), unwritten_before(folder, manifest.undo, manifest.layout)
    if manifest.folding and manifest.chunks is not None:
        return listed_rows(folder, manifest.layout, manifest.chunk_bytes, manifest.chunks), NO_ROWS, NO_ROWS
    return NO_ROWS, NO_ROWS, NO_ROWS


def _hidden(folder: Path, manifest: Manifest) -> Int64:
    """Return the rows of the base that an interrupted fold may have left half written: they are read from the log."""
    if not manifest.half_folded or manifest.chunks is None:
        return NO_ROWS
    return listed_rows(folder, manifest.layout, manifest.chunk_bytes, manifest.chunks)


def _finished(bits: np.ndarray[Any, Any], added: Int64, gone: Int64) -> np.ndarray[Any, Any]:
    finished = np.array(bits)
    set_bits(finished, added)
    clear_bits(finished, gone)
    return finished


def _check_rows(
    folder: Path, manifest: Manifest, ids: Int64, rows: np.ndarray[Any, Any], crcs: np.ndarray[Any, Any]
) -> int:
    """Raise StoreError for the first row whose checksum is wrong or lost; return how many rows never had one."""
    unchecked = crcs == NO_CRC
    if manifest.all_checked and unchecked.any():
        raise lost_checksum(manifest.layout, int(ids[np.flatnonzero(unchecked)[0]]), folder / CHECKSUMS_FILE)
    words = np.ascontiguousarray(rows).view(np.float32).reshape(len(ids), manifest.layout.row_bytes // 4)
    found = np.empty((len(ids), 1), np.float32)
    row_checksums(ids, words, found)
    wrong = np.flatnonzero((found.view(np.uint32)[:, 0] != crcs) & ~unchecked)
    if len(wrong):
        raise damaged_row(manifest.layout, int(ids[wrong[0]]), folder / ROWS_FILE)
    return int(unchecked.sum())
