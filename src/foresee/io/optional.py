"""Packages that only some commands need: imported when they are first used, and named with their pip line if missing.

In: a module's name. Out: something that stands for the module. `pip install foresee` brings none of them, so importing
one of ours never imports theirs. `need` is for commands that would find out only after their work.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from foresee.errors import ConfigError

EXTRAS = {
    "plotly": ("report", "HTML pages"),
    "scipy": ("cluster", "the cluster policies allox and shockwave_highs"),
    "ray": ("ray", "runs on a Ray cluster"),
    "cryptography": ("ray", "runs on several machines"),
    "faiss": ("faiss", "indexes of neighbours"),
}
"""For each package the extra that brings it, and what needs it."""


def need(package: str) -> None:
    """Refuses with a sentence if the package is not installed."""
    extra, what = EXTRAS[package]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise  # it is there, and misses something of its own
        raise ConfigError(
            f"{package} is not installed, and {what} need it; run: pip install 'foresee[{extra}]' "
            f"(in a checkout: pip install '.[{extra}]')"
        ) from None


def drawable(path: Path | None) -> Path | None:
    """For options that name a page: refuses it before anything is computed that could not be drawn."""
    if path is not None and path.suffix != ".csv":
        need("plotly")
    return path


class OptionalModule:
    """A module of an extra, imported at the first look into it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        need(self._name.partition(".")[0])
        return getattr(importlib.import_module(self._name), attribute)
