"""A table folder: made whole, had for oneself, and looked at with numpy.

In: a folder and a layout. Out: a folder that is complete or not there at all, and a lock that ends with its process.
Space is checked for what is certain to be needed and no more: the arrays are sparse, and a run may never touch most
rows of a table that would not fit. `open_table` gives one table as a read-only memory map with the fields value, state
and version, as of the last commit; it is refused while rows are in the log. Values of two bytes are given as float32,
in memory of their own. Rows that were never written read as zeros there: only a store knows their initial values
(`DiskStore.initialise_all` writes them).

Closing a folder may fold its log, which writes each row once more, in blocks of 4096 bytes: that may take longer than
the run that wrote the rows, so a person is told. The log is as durable as `rows.npy`; only numpy cannot read it.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from foresee.errors import StoreError
from foresee.io.files import Files
from foresee.store.disk.base import (
    BLOCK_BYTES,
    ROWS_FILE,
    WRITTEN_FILE,
    create_base,
    open_array,
    row_dtype,
)
from foresee.store.disk.checksums import CHECKSUMS_FILE
from foresee.store.disk.manifest import MANIFEST_FILE, Manifest, read_manifest, to_json
from foresee.store.layout import Layout
from foresee.store.row_groups import groups_of

LOCK_FILE = "lock"
_LEFTOVER_BYTES_MAX = 1 << 16


def create_folder(folder: Path, layout: Layout, files: Files) -> None:
    """Makes all files of a table folder, `layout.json` last: without it nothing counts. On failure nothing stays."""
    if layout.num_rows <= 0 or any(table.num_rows < 0 for table in layout.tables):
        raise StoreError(f"{folder}: these tables have {layout.num_rows} rows; give at least one table with rows")
    with ExitStack() as undo:
        try:
            if not folder.exists():
                folder.mkdir(parents=True)
                undo.callback(_remove_if_empty, folder)
            _check_no_rows(folder)
            _check_room(folder, layout, files)
            undo.callback(_remove_files, folder)
            create_base(folder, layout, files)
            bits = zlib.crc32(bytes((layout.num_rows + 7) // 8))
            files.publish(folder / MANIFEST_FILE, to_json(Manifest(layout=layout, written_crc32=bits)))
            files.sync_folder(folder.parent)
        except OSError as error:
            raise StoreError(
                f"tables cannot be created in {folder}: {error.strerror}; they take "
                f"{layout.num_rows * layout.row_bytes:,} bytes when every row is written; choose a folder on a disk "
                "that takes files of this size"
            ) from error
        undo.pop_all()


def _remove_files(folder: Path) -> None:
    for name in (MANIFEST_FILE, ROWS_FILE, WRITTEN_FILE, CHECKSUMS_FILE):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _check_room(folder: Path, layout: Layout, files: Files) -> None:
    needed, free = layout.num_rows // 8 + 4 * BLOCK_BYTES, files.free_bytes(folder)
    if needed > free:
        raise StoreError(f"{folder}: new tables need {needed:,} bytes, the disk has {free:,} left; free some space")


def _check_no_rows(folder: Path) -> None:
    """An interrupted `create` leaves an empty rows.npy, which may go; one with rows in it may be somebody's."""
    rows = folder / ROWS_FILE
    if rows.exists() and rows.stat().st_blocks * 512 > _LEFTOVER_BYTES_MAX:
        raise StoreError(f"{rows} holds data but no {MANIFEST_FILE} is beside it; move it away or use another folder")


def lock_folder(folder: Path) -> int:
    """Two processes writing one folder would destroy it; the lock goes with the process, however it ends."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}; check the folder's permissions") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise in_use(folder) from None
    return descriptor


def in_use(folder: Path) -> StoreError:
    """Return the error for a folder whose lock is held, by this process or by another."""
    if _is_open_here(folder / LOCK_FILE):
        return StoreError(
            f"{folder} is in use by this process, which opened these tables before; close them first, with "
            "tables.close() or at the end of a with statement"
        )
    return StoreError(f"{folder} is in use by another process; wait for it to end or stop it")


def _is_open_here(file: Path) -> bool:
    """Whether this process has the file open. Called only after its own attempt to lock it was closed."""
    with suppress(OSError):
        wanted = os.stat(file)
        for name in os.listdir("/dev/fd"):
            with suppress(OSError, ValueError):
                if os.path.samestat(os.fstat(int(name)), wanted):
                    return True
    return False


def _of_table(path: Path, name: str) -> tuple[Manifest, Path]:
    """The folder that has a table: of tables of several widths, that of its width."""
    folders = sorted(found.parent for found in path.glob(f"width-*/{MANIFEST_FILE}")) or [path]
    manifests = [(read_manifest(folder), folder) for folder in folders]
    has_it = (pair for pair in manifests if any(table.name == name for table in pair[0].layout.tables))
    return next(has_it, manifests[0])


def open_table(path: str | Path, name: str) -> NDArray[Any]:
    """The rows of one table, e.g. open_table("tables", "user")["value"]: [rows, width]."""
    manifest, path = _of_table(Path(path), name)
    sizes = {table.name: table.num_rows for table in manifest.layout.tables}
    if name not in sizes:
        raise StoreError(f"{path} has no table '{name}'; it has {', '.join(sizes)}")
    if manifest.journal is not None or manifest.chunks is not None or manifest.going_back:
        raise StoreError(f"the last commit of {path} is not yet in its arrays; bring it there with foresee fold {path}")
    file, dtype = Path(path) / ROWS_FILE, row_dtype(manifest.layout)
    try:
        descriptor, begin = open_array(file, dtype, manifest.layout.num_rows, os.O_RDONLY)
        os.close(descriptor)
        rows: np.memmap[Any, np.dtype[Any]] = np.memmap(file, dtype, "r", begin, (manifest.layout.num_rows,))
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({error.strerror}); check the folder's permissions") from error
    offset = manifest.layout.offset_of(name)
    found = rows[offset : offset + sizes[name]]
    return found if manifest.layout.dtype == "float32" else _as_float32(found, manifest.layout)


def _as_float32(rows: NDArray[Any], layout: Layout) -> NDArray[Any]:
    out = np.empty(len(rows), row_dtype(replace(layout, dtype="float32")))
    words = np.ascontiguousarray(rows).view(np.float32).reshape(len(rows), layout.row_bytes // 4)
    out["value"] = layout.unpack(words[:, : layout.value_words])
    out["state"], out["version"] = rows["state"], rows["version"]
    return out


FoldAtEnd = Literal["auto", "always", "never"]
"""Whether closing a folder brings its last commit into `rows.npy`; auto: if the log has at most FOLD_BYTES_MAX."""
FOLD_BYTES_MAX = 1 << 28
PATIENCE_SECONDS, LINE_SECONDS = 1.0, 10.0
"""A fold that takes longer is announced, and its progress is printed so often."""


@runtime_checkable
class FoldsAtEnd(Protocol):
    """A store that may fold its log when it is closed."""

    fold_at_end: FoldAtEnd
    fold_progress: Callable[[int, int], None] | None

    @property
    def kept_log_bytes(self) -> int:
        """Return the size of the log if `close` leaves it because it is large, else 0."""
        ...


class FoldLines:
    """Prints the progress of a fold that takes longer than a moment; called with rows done and rows in all."""

    def __init__(
        self, folder: Path, say: Callable[[str], None] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._say, self._clock = folder, say or tell, clock
        self._due: float | None = None

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        self._due = now + PATIENCE_SECONDS if self._due is None else self._due
        if now >= self._due:
            self._due = now + LINE_SECONDS
            self._say(
                f"{done:,} of {total:,} rows of the log are in {self._folder}/rows.npy, which numpy reads; "
                'Tables.on_disk(fold="never") leaves this to foresee fold'
            )


def kept_log_words(store: Any, folder: Path) -> str | None:
    """Say what stays in the log when a store is closed, because the log is large; None if nothing does."""
    num_bytes = sum(group.kept_log_bytes for group in groups_of(store) if isinstance(group, FoldsAtEnd))
    if not num_bytes:
        return None
    return (
        f"{num_bytes / 1e9:,.1f} GB of rows stay in the log of {folder}, where training, evaluation and export read "
        f"them; to write them to rows.npy, for numpy: foresee fold {folder}"
    )


def tell(text: str) -> None:
    print(f"foresee: {text}", file=sys.stderr, flush=True)
