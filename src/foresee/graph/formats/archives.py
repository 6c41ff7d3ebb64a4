"""Data sets as they are handed around: a folder or a tar archive with train, valid and test files of edges.

An archive is unpacked into a temporary folder, only files whose names say which split they are, and none elsewhere;
sentences about its lines name the archive and the file in it.
"""

from __future__ import annotations

import re
import shutil
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foresee.base.places import Place, name_of, opened, shown, size_of
from foresee.data.source import BadLine, ReportBadLine
from foresee.errors import DataError
from foresee.graph.formats.source import EdgeChunk, NodeChunk
from foresee.graph.formats.tables import Tables

_SPLIT_FILE = re.compile(
    r"^(train|valid|val|dev|test)[^/]*\.(txt|tsv|csv|del|parquet)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE
)
_SPLITS = {
    "train": "edge_files",
    "valid": "valid_files",
    "val": "valid_files",
    "dev": "valid_files",
    "test": "test_files",
}


def split_files(files: Iterable[Path], where: str | Path) -> dict[str, tuple[Path, ...]]:
    """Files by the split that their names say, as `Tables` takes them."""
    found: dict[str, list[Path]] = {"edge_files": [], "valid_files": [], "test_files": []}
    for file in sorted(files):
        match = _SPLIT_FILE.match(file.name)
        if match is not None:
            found[_SPLITS[match[1].lower()]].append(file)
    if not found["edge_files"]:
        raise DataError(
            f"{where}: there is no file of train edges in it (such as train.txt or train.tsv.gz); name the files "
            "themselves."
        )
    return {name: tuple(paths) for name, paths in found.items()}


def is_tar(path: Place) -> bool:
    """By content: plain or packed."""
    if not size_of(path):
        return False  # whoever reads it says what is wrong
    with opened(path) as stream:
        return tarfile.is_tarfile(stream)


@dataclass(frozen=True, slots=True)
class Archive:
    """A tar archive, unpacked; as `Tables`, with sentences that a person can follow."""

    tables: Tables
    unpacked: Path

    @staticmethod
    def open(path: Place, temporary: Path, settings: dict[str, Any]) -> Archive:
        folder = temporary / name_of(path)
        folder.mkdir()
        try:
            with opened(path) as stream, tarfile.open(fileobj=stream) as archive:
                members = [it for it in archive if it.isfile() and _SPLIT_FILE.match(Path(it.name).name)]
                for member in members:
                    content = archive.extractfile(member)
                    assert content is not None
                    with content, open(folder / Path(member.name).name, "wb") as out:
                        shutil.copyfileobj(content, out, 1 << 20)
        except (tarfile.TarError, EOFError, OSError) as error:
            raise DataError(f"{shown(path)}: the archive cannot be unpacked ({error}); fetch it again.") from None
        files = split_files(folder.iterdir(), shown(path))
        return Archive(Tables(**settings | files), temporary)

    @property
    def name(self) -> str:
        return "archive"

    @property
    def files(self) -> tuple[Place, ...]:
        return tuple(map(self._inside, self.tables.files))

    def _inside(self, file: Place) -> Place:
        """As it is called in the archive, if it comes from there."""
        unpacked = isinstance(file, Path) and file.is_relative_to(self.unpacked)
        return file.relative_to(self.unpacked) if isinstance(file, Path) and unpacked else file

    @property
    def num_nodes(self) -> int | None:
        return self.tables.num_nodes

    @property
    def has_nodes(self) -> bool:
        return self.tables.has_nodes

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def edges(self, report: ReportBadLine) -> Iterator[EdgeChunk]:
        try:
            yield from self.tables.edges(self._within(report))
        except DataError as error:
            raise DataError(str(error).replace(f"{self.unpacked}/", "")) from None

    def nodes(self, report: ReportBadLine) -> Iterator[NodeChunk]:
        yield from self.tables.nodes(report)

    def _within(self, report: ReportBadLine) -> ReportBadLine:
        def told(bad: BadLine) -> None:
            report(replace(bad, file=self._inside(bad.file)))

        return told
