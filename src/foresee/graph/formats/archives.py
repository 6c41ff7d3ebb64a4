"""Data sets as they are handed around: a folder or a tar archive with train, valid and test files of edges.

Only the files of an archive whose names say which split they are get unpacked, into a temporary folder and below their
own paths. Nothing is written outside that folder: a split file that is a link, or whose path leaves the archive, is an
error, and so are two split files of one name, because either may be the wrong one. Errors in lines name the archive and
the file in it.
"""

from __future__ import annotations

import lzma
import re
import shutil
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from foresee.data.source import BadLine, ReportBadLine
from foresee.errors import DataError
from foresee.graph.formats.source import UNPACKED_MAX_GB, EdgeChunk, NodeChunk, Unpacking
from foresee.graph.formats.tables import Tables
from foresee.io.urls import Place, name_of, opened, shown, size_of

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


def _unpack(archive: tarfile.TarFile, unpacking: Unpacking) -> None:
    """Write the split files of an archive below its folder."""
    where, found = unpacking.where, dict[str, str]()
    for member in archive:
        is_split = not member.isdir() and _SPLIT_FILE.match(PurePosixPath(member.name).name) is not None
        unpacking.count(member.name, member.size, written=is_split)
        if not is_split:
            continue
        path = _path_inside(member, where)
        if path.name in found:
            raise DataError(
                f"{where}: it has both {found[path.name]} and {member.name}, and which one is meant is not clear; "
                "unpack the archive and name the files of train, those of others with --valid-file and --test-file."
            )
        found[path.name] = member.name
        target = unpacking.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        assert content is not None, "it is a regular file"
        with content, open(target, "xb") as out:
            shutil.copyfileobj(content, out, 1 << 20)


def _path_inside(member: tarfile.TarInfo, where: str) -> PurePosixPath:
    """The path of a split file below the archive's folder."""
    path = PurePosixPath(member.name)
    if not member.isfile():
        raise DataError(
            f"{where}: {member.name} is a link or no regular file, which is not followed; unpack the archive and name "
            "the files."
        )
    if path.is_absolute() or ".." in path.parts:
        raise DataError(
            f"{where}: the path {member.name} leads out of the archive; unpack it yourself and name the files."
        )
    return path


@dataclass(frozen=True, slots=True)
class Archive:
    """A tar archive, unpacked; as `Tables`, with sentences that a person can follow."""

    tables: Tables
    unpacked: Path

    @staticmethod
    def open(path: Place, temporary: Path, settings: dict[str, Any], max_gb: int = UNPACKED_MAX_GB) -> Archive:
        folder = temporary / name_of(path)
        folder.mkdir()
        unpacking = Unpacking(shown(path), folder, max_gb)
        try:
            with opened(path) as stream, tarfile.open(fileobj=stream) as archive:
                _unpack(archive, unpacking)
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            raise DataError(f"{shown(path)}: the archive cannot be unpacked ({error}); fetch it again.") from None
        files = split_files((file for file in folder.rglob("*") if file.is_file()), shown(path))
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
