"""Mutants of what reaches the disk, and in which order: syncs left out, seals and decisions written too early."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import judges
import numpy as np
from mutants import Mutant, Patch

from foresee.io.files import Files
from foresee.run import checkpoint
from foresee.store.disk import base, chunks, index, log, manifest, undo
from foresee.store.disk.base import Base
from foresee.store.disk.chunks import ChunkFile
from foresee.store.disk.journal import CommitJournal
from foresee.store.disk.log import RowLog
from foresee.store.disk.manifest import MANIFEST_FILE, Undo, to_json
from foresee.store.disk.undo import UNDO_FILE
from foresee.store.kernels import take_rows
from foresee.testing.fake_disk import CrashDisk

_sync, _recover, _fold, _assign = CrashDisk.sync, CommitJournal.recover, CommitJournal._fold, index._assign


def _no_sync_of(name: str) -> Patch:
    """The code as if it did not sync one file or folder."""

    def sync(self: CrashDisk, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if not path.name.startswith(name):
            _sync(self, descriptor)

    return lambda: [mock.patch.object(CrashDisk, "sync", sync)]


def _publish(self: Files, path: Path, content: bytes) -> None:
    """In place: a crash finds half of it."""
    with open(path, "wb") as stream:
        stream.write(content)
        stream.flush()
        self.sync(stream.fileno())
    self.sync_folder(path.parent)


def _without_digests(folder: Path, step: int) -> list[str]:
    """A checkpoint counts as whole as soon as its state is there."""
    there = (checkpoint.folder_of(folder, step) / checkpoint.STATE_FILE).exists()
    return [] if there else ["missing"]


def _fold_and_say_so_first(self: CommitJournal) -> None:
    sealed = self.manifest
    self._files.publish(
        self._folder / MANIFEST_FILE, to_json(replace(sealed, chunks=None, previous_chunks=None, folding=False))
    )
    _fold(self)


def _begin_without_a_way_back(self: CommitJournal) -> None:
    """The way back is promised, but nothing was kept for it."""
    undo = Undo(num_records=0, crc32=0)
    (self._folder / UNDO_FILE).write_bytes(b"")
    self._publish(replace(self.manifest, undo=undo, folding=True))


def _begin_without_saying_so(self: CommitJournal) -> None:
    """The base changes while the commit before is still promised by its chunks."""


def _recover_and_give_up(self: CommitJournal) -> None:
    """What was prepared when the power went is given up."""
    _recover(self)
    if self.manifest.prepared is not None:
        self.discard()


def _recover_without_folding(self: CommitJournal) -> None:
    """A fold that was interrupted counts as done."""
    if self.manifest.folding:
        self._publish(replace(self.manifest, chunks=None, previous_chunks=None, folding=False))
    _recover(self)


def _recover_and_begin_again(self: CommitJournal) -> None:
    """The way back is written again, from a base that has begun to change."""
    again = self.manifest.folding
    if again:
        self.manifest = replace(self.manifest, undo=None, folding=False, written_crc32=None)
    _recover(self)
    if again:
        self.fold()


def _nothing_wrong(words: Any, at: Any, picks: Any, rows: Any, crcs: Any, all_checked: bool, *rest: Any) -> Any:
    """As if no row had a checksum."""
    return take_rows(words, at, picks, rows, np.zeros(len(rows), np.uint32), False, *rest)


def _reclaim_what_commits_need(self: RowLog) -> None:
    """A chunk whose rows were written anew is free at once."""
    self._free = np.flatnonzero(self.index.live[: len(self._chunks)] == 0)


def _list_in_any_order(entries: Any) -> Any:
    return np.ascontiguousarray(entries[::-1])


def _append_only(rows: Any, *rest: Any) -> Any:
    """A row that is written again while it is in memory leaves its older self there."""
    index, capacity = rest[6], len(rest[7])
    places = (index[rows] & 0xFFFFFFFF) - 1
    index[rows[(places >= 0) & (places < capacity)]] = 0
    return _assign(rows, *rest)


def _seal_promoted(self: CommitJournal, step: int, version_max: int) -> None:
    """Preparing takes the last commit's place at once, and there is no way back."""
    self.seal_decided(step, version_max)
    self._publish(replace(self.manifest, previous_step=None, previous_chunks=None))


def _disk(name: str, rule: str, patch: Any) -> Mutant:
    return Mutant(name=name, rule=rule, judge=judges.disk, patch=patch)


def _chunks(name: str, rule: str, patch: Any) -> Mutant:
    return Mutant(name=name, rule=rule, judge=judges.kept_chunks, patch=patch)


def _bits(name: str, rule: str, patch: Any) -> Mutant:
    return Mutant(name=name, rule=rule, judge=judges.flipped_bits, patch=patch)


def _patched(target: Any, name: str, new: Any) -> Patch:
    return lambda: [mock.patch.object(target, name, new)]


DISK_MUTANTS = [
    Mutant(
        name="nothing synced", rule="A sync asks the operating system for it.", judge=judges.synced,
        patch=_patched(Files, "sync", lambda files, descriptor: None),
    ),
    _disk("log not synced", "Chunks are on the disk before a manifest counts them.", _no_sync_of("log.bin")),
    _disk("list not synced", "So is the list of them.", _no_sync_of("chunks-")),
    _chunks(
        "chunks used too early", "A chunk is not written while a commit that can be opened lists it.",
        _patched(RowLog, "_reclaim", _reclaim_what_commits_need),
    ),
    _chunks(
        "chunks out of order", "Of two chunks with a row the later one counts.",
        _patched(log, "as_sequence", _list_in_any_order),
    ),
    _chunks(
        "a row twice in memory", "A row is in memory once, so what is flushed is the newest.",
        _patched(index, "_assign", _append_only),
    ),
    _disk(
        "rows not synced", "Folded rows are on the disk before their journal is given up.",
        _no_sync_of("rows.npy"),
    ),
    _disk("bits not synced", "So are the bits that say which rows are there.", _no_sync_of("written.npy")),
    _disk("base not synced", "A fold ends with a sync of the base.", _patched(Base, "sync", lambda base: None)),
    _disk(
        "chunks not synced", "A seal begins with a sync of the log.",
        _patched(ChunkFile, "sync", lambda file: None),
    ),
    _disk("layout draft not synced", "A file is synced before it takes a name.", _no_sync_of("layout.json.draft")),
    _disk("folder not synced", "A new name is durable when its folder is synced.", _no_sync_of("server-0")),
    _disk("undo not synced", "The way back is on the disk before the base changes.", _no_sync_of("undo.bin.draft")),
    _disk("weights not synced", "Every file of a checkpoint is synced before its manifest.", _no_sync_of("model.")),
    _disk("state not synced", "So is the state of the optimiser.", _no_sync_of("state.json")),
    _disk("decision not synced", "The manifest is synced before it takes its name.", _no_sync_of("manifest.json")),
    _disk("step folder not synced", "The names in a checkpoint are durable.", _no_sync_of("step-")),
    _disk("checkpoint folder not synced", "So is the checkpoint's own name.", _no_sync_of("checkpoints")),
    _disk(
        "manifests written in place", "A small file is replaced, never overwritten.",
        _patched(Files, "publish", _publish),
    ),
    _disk(
        "prepared is committed", "A prepared commit can still be given up.",
        _patched(CommitJournal, "seal", _seal_promoted),
    ),
    _disk(
        "checkpoints not verified", "A checkpoint counts when its manifest is whole.",
        _patched(checkpoint, "problems", _without_digests),
    ),
    _disk(
        "folded before it is", "Chunks are given up after their rows are in the base.",
        _patched(CommitJournal, "_fold", _fold_and_say_so_first),
    ),
    _disk(
        "no way back", "Old rows are kept before the base changes.",
        _patched(CommitJournal, "_begin_fold", _begin_without_a_way_back),
    ),
    _disk(
        "fold not announced", "A folder says that it is being folded before its base changes.",
        _patched(CommitJournal, "_begin_fold", _begin_without_saying_so),
    ),
    _disk(
        "prepared forgotten at start", "What was prepared stays until it is decided.",
        _patched(CommitJournal, "recover", _recover_and_give_up),
    ),
    _disk(
        "fold forgotten at start", "Opening finishes the fold that was interrupted.",
        _patched(CommitJournal, "recover", _recover_without_folding),
    ),
    _disk(
        "way back written twice", "The way back is never written from a base that has begun to change.",
        _patched(CommitJournal, "recover", _recover_and_begin_again),
    ),
    _bits(
        "rows of the log unchecked", "A row of the log is looked at when it is read.",
        _patched(chunks, "take_rows", _nothing_wrong),
    ),
    _bits(
        "rows of the base unchecked", "So is one of the base.",
        _patched(base, "take_rows", _nothing_wrong),
    ),
    _bits(
        "headers unchecked", "Ids of a chunk are looked at before they are believed.",
        _patched(chunks, "_is_header", lambda *header: True),
    ),
    _bits(
        "bits unchecked", "Which rows are in the base is looked at before it is believed.",
        _patched(Base, "check_bits", lambda *bits, **more: None),
    ),
    _bits(
        "layout unchecked", "layout.json is looked at before it is believed.",
        _patched(manifest, "_check_sum", lambda path, content: None),
    ),
    _bits(
        "way back unchecked", "The way back is looked at before it is taken.",
        _patched(undo, "zlib", SimpleNamespace(crc32=lambda *content: 0)),
    ),
]  # fmt: skip
