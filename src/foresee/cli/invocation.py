"""How this command was started, so that commands printed for a person can be pasted as they are."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def invocation() -> str:
    """`foresee` where a shell finds the one that runs; else its path, or `python -m foresee` if that is how it was."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{_as_typed(Path(sys.executable))} -m foresee"
    if started.name != "foresee" or not started.exists():
        return "foresee"
    found = shutil.which("foresee")
    if found is not None and os.path.samefile(found, started):
        return "foresee"
    return _as_typed(started)


def _as_typed(path: Path) -> str:
    """From the current folder where it is below it, as a person would type it; links are left as they are."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    found = shutil.which(path.name)
    if found is not None and Path(found) == absolute:
        return path.name
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))
