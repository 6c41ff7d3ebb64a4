"""Raw graphs: `open_source` finds out what a path holds and gives it as a source of edges and nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foresee.errors import DataError
from foresee.graph.formats.archives import Archive, is_tar, split_files
from foresee.graph.formats.npz import Npz
from foresee.graph.formats.ogb import Ogb, is_ogb
from foresee.graph.formats.source import UNPACKED_MAX_GB, GraphSource
from foresee.graph.formats.tables import Tables
from foresee.io.urls import Place, name_of, shown


def open_source(files: tuple[Place, ...], temporary: Path, settings: dict[str, Any] | None = None) -> GraphSource:
    """The graph of a folder, an archive, an `.npz` file, or files of edges.

    Args:
        files: As a person names them.
        temporary: A folder for what has to be unpacked; it stays until the source is used no more.
        settings: Of `Tables`.
    """
    settings = dict(settings or {})
    max_gb = settings.pop("unpacked_max_gb", UNPACKED_MAX_GB)
    if not files:
        raise DataError("no file is named; name at least one.")
    path = files[0]
    one = len(files) == 1
    if one and isinstance(path, Path) and path.is_dir():
        if is_ogb(path):
            _refuse_settings(path, settings)
            return Ogb.open(path, temporary, max_gb)
        return Tables(**settings | split_files(path.iterdir(), path))
    if one and name_of(path).endswith(".npz"):
        _refuse_settings(path, settings)
        return Npz.open(path, temporary, max_gb)
    if one and is_tar(path):
        return Archive.open(path, temporary, settings, max_gb)
    return Tables(edge_files=files, **settings)


def _refuse_settings(path: Place, settings: dict[str, Any]) -> None:
    for name in settings:
        raise DataError(f"{shown(path)}: --{name.replace('_', '-')} is for files of lines or rows; leave it out.")


__all__ = ["GraphSource", "Tables", "open_source"]
