"""A folder that appears whole or not at all.

`new_folder(out)` gives a temporary sibling to build in. Leaving the block normally moves it to `out` in one rename;
leaving it with an error, even an interrupt, removes it and leaves `out` as it was. An existing target is refused
unless it is empty, or a prepared log that the person asked to replace: we never delete what we did not make.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foresee.errors import DataError

DESCRIPTION_FILE = "log.json"


@contextmanager
def new_folder(out: Path, *, replace: bool) -> Iterator[Path]:
    """Build in the yielded folder; it becomes `out` at the end."""
    check_target(out, replace=replace)
    building: Path | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{out.name}.partial-", dir=out.parent))
        building.chmod(0o755)  # mkdtemp's 0700 would lock colleagues out of the finished log
        yield building
        _move(building, out)
    except OSError as error:
        raise _sentence(error, out) from error
    finally:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)


def check_target(out: Path, *, replace: bool) -> None:
    """Refuse a target that holds something, before any work is done."""
    if not out.exists():
        return
    if not out.is_dir():
        raise DataError(f"{out}: this is a file, and a prepared log is a folder; give another target.")
    if not any(out.iterdir()):
        return
    if not replace:
        raise DataError(f"{out}: the folder exists and is not empty; give another target or replace it with --replace.")
    if not (out / DESCRIPTION_FILE).is_file():
        raise DataError(
            f"{out}: the folder holds no {DESCRIPTION_FILE}, so it is not a prepared log and will not be "
            "replaced; give another target or remove it yourself."
        )


def write_text_durably(path: Path, text: str) -> None:
    """Write a small file so that it is either absent or complete, even after a crash."""
    temporary = path.with_name(path.name + ".partial")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


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
