"""Folders and text files that appear whole or not at all.

`new_folder(out)` yields a temporary sibling to build in and renames it to `out` at the end; an error or a kill leaves
nothing under the final name. Folders of killed processes are recognized by their lock and removed by the next call.
`replace_text` and `write_whole` do the same for one text file; `files` has what must survive a crash of the machine.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from foresee.errors import DataError, InputError


@contextmanager
def new_folder(out: Path, *, replace: bool, marker: str) -> Iterator[Path]:
    """Build in the yielded folder; it becomes `out` at the end."""
    check_target(out, replace=replace, marker=marker)
    try:
        with hidden_folder(out, "partial") as building:
            building.chmod(0o755)  # mkdtemp's 0700 would lock colleagues out of the finished log
            yield building
            _move(building, out)
    except OSError as error:
        raise _sentence(error, out) from error


@contextmanager
def hidden_folder(out: Path, what: str) -> Iterator[Path]:
    """A folder beside `out` for one process, which is gone afterwards. Those that killed processes left go first."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for left in out.parent.glob(f".{out.name}.{what}-*"):
        _remove_if_left(left)
    # Locked before it has its name, so that whoever finds it unlocked knows that its process is gone.
    making = Path(tempfile.mkdtemp(prefix=f".{out.name}.making-", dir=out.parent))
    folder, lock = making.with_name(making.name.replace(".making-", f".{what}-")), os.open(making, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        os.rename(making, folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_if_left(folder: Path) -> None:
    with suppress(OSError):  # another process has it, or took it away just now
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def check_target(out: Path, *, replace: bool, marker: str) -> None:
    """Refuse a target that holds something, before any work is done; `marker` is the file of what may be replaced."""
    noun = f"prepared {marker.removesuffix('.json')}"
    if not out.exists():
        return
    if not out.is_dir():
        raise DataError(f"{out}: this is a file, and a {noun} is a folder; give another target.")
    if not any(out.iterdir()):
        return
    if not replace:
        raise DataError(f"{out}: the folder exists and is not empty; give another target or replace it with --replace.")
    if not (out / marker).is_file():
        raise DataError(
            f"{out}: the folder holds no {marker}, so it is not a {noun} and will not be "
            "replaced; give another target or remove it yourself."
        )


def replace_text(path: Path, text: str | Iterable[str]) -> None:
    """Write a text file, given whole or in pieces, so that it has the old content or the new one, never a part.

    Unlike `Files.publish` it does not wait for the disk. An error, also one of the pieces, leaves no draft.
    """
    draft = path.with_name(f".{path.name}.partial")
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.writelines([text] if isinstance(text, str) else text)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):  # a disk that cannot be written refuses this, too
            draft.unlink()
        raise


def write_whole(path: Path, text: str, what: str) -> None:
    """Write a text file that a person asked for, whole or not at all; `what` names it in the error."""
    try:
        replace_text(path, text)
    except OSError as error:
        raise InputError(f"{path}: {what} cannot be written ({error.strerror}); give another path") from None


def _move(building: Path, out: Path) -> None:
    if out.exists() and any(out.iterdir()):
        old = Path(tempfile.mkdtemp(prefix=f".{out.name}.replaced-", dir=out.parent))
        os.replace(out, old)
        try:
            os.replace(building, out)
        except OSError:
            os.replace(old, out)
            raise
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(building, out)
    folder = os.open(out.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _sentence(error: OSError, out: Path) -> DataError:
    if error.errno == errno.ENOSPC:
        return DataError(f"{out}: the disk is full and nothing was kept; free some space or give another target.")
    where = error.filename or out
    return DataError(f"{where}: {error.strerror or error}; nothing was kept, check the path and its permissions.")
