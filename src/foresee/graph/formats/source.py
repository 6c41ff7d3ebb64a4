"""What a raw graph must offer: chunks of edges, and if it has them chunks of nodes with labels, splits and features.

Nodes have names (text), or they are whole numbers below a known `num_nodes`. A source can be read as often as it is
asked, finds the same every time, and knows nothing of what becomes of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from foresee.arrays import Bool, Float32, Int64
from foresee.data.cells import as_strings, to_mask
from foresee.data.source import BadLine, RawChunk, ReportBadLine
from foresee.errors import DataError
from foresee.io.urls import Place

DRAWN = -1
"""The split of an edge or node that is to be drawn."""
NOWHERE = -2
"""The split of a node that is in none."""
BLOCK_BYTES = 4 << 20
"""Some nodes with their features take about so much."""
GB = 1_000_000_000
UNPACKED_MAX_GB = 100
MEMBERS_MAX = 100_000
"""Of an archive."""


def rows_at_once(num_features: int) -> int:
    """How many nodes are handled together."""
    return max(1, min(1 << 16, BLOCK_BYTES // (4 * num_features + 32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeChunk:
    """Some edges of one split."""

    split: int
    """0 train, 1 valid, 2 test, or `DRAWN`."""
    heads: Any  # [edges]: large_string array of names, or Int64
    tails: Any
    relations: Any = None  # likewise, or None
    weights: Float32 | None = None
    done: tuple[int, int] = (0, 0)
    """How much of how much has been read."""

    def __len__(self) -> int:
        return len(self.heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChunk:
    """Some nodes: those after the ones before where nodes are numbers, else by name."""

    num: int
    names: Any = None  # large_string array, or None
    labels: Any = None  # large_string array ("" for none), Int64 (below 0 for none), or None
    splits: Int64 | None = None
    features: Float32 | None = None  # [num, features]


class GraphSource(Protocol):
    """A raw graph, as `foresee graph prepare` reads it."""

    @property
    def name(self) -> str:
        """The format's name."""
        ...

    @property
    def files(self) -> tuple[Place, ...]:
        """Every file that is read."""
        ...

    @property
    def num_nodes(self) -> int | None:
        """Nodes are the numbers below this; None: they have names."""
        ...

    @property
    def has_nodes(self) -> bool:
        """Is there more to say of nodes than their edges?"""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the person about what was not read."""
        ...

    def edges(self, report: ReportBadLine) -> Iterator[EdgeChunk]:
        """All edges, those of train first."""
        ...

    def nodes(self, report: ReportBadLine) -> Iterator[NodeChunk]:
        """All that is known of nodes."""
        ...


def report_rows(raw: RawChunk, wrong: Bool, reason: str, report: ReportBadLine) -> None:
    """Reports the rows of a chunk that are wrong."""
    for index in np.flatnonzero(wrong):
        report(BadLine(raw.file, int(raw.lines[index]), reason, raw.text(int(index))))


def whole_numbers(cells: pa.Array) -> tuple[Int64, Bool]:
    """(values, wrong) of cells that ought to be whole numbers from 0 up; values are 0 where they are not."""
    if pa.types.is_integer(cells.type):
        values = cells.cast(pa.int64(), safe=False).fill_null(-1).to_numpy(zero_copy_only=False)
        return np.maximum(values, 0), values < 0
    texts = as_strings(cells)
    usable = to_mask(pa.compute.match_substring_regex(texts, "^[0-9]{1,18}$"))
    values = pa.compute.if_else(pa.array(usable), texts, "0").cast(pa.int64()).to_numpy(zero_copy_only=False)
    return values, ~usable


@dataclass(slots=True)
class Unpacking:
    """Counts the members of one archive and refuses the first that exceeds a limit.

    A few kilobytes of gzip can claim terabytes. Sizes stand in the headers of an archive, and neither tar nor zip gives
    more than it declares, so a member that exceeds a limit is refused before a byte of it is written.

    Attributes:
        where: The archive, for error messages.
        folder: Where members are written.
        max_gb: How much all members together may take.
    """

    where: str
    folder: Path
    max_gb: int = UNPACKED_MAX_GB
    num_bytes: int = 0
    num_members: int = 0

    def count(self, name: str, num_bytes: int, *, written: bool = True) -> None:
        """Count a member before it is unpacked; `written`: to the disk, not only passed over."""
        self.num_members += 1
        self.num_bytes += num_bytes
        if self.num_members > MEMBERS_MAX:
            raise DataError(
                f"{self.where}: the archive has more than {MEMBERS_MAX:,} members; unpack it and name the files."
            )
        if self.num_bytes > self.max_gb * GB:
            raise DataError(
                f"{self.where}: with {name} the archive unpacks to {self.num_bytes / GB:,.1f} GB, the limit is "
                f"{self.max_gb:,} GB; if it is really that large, raise the limit with --unpacked-max-gb."
            )
        free = shutil.disk_usage(self.folder).free
        if written and num_bytes > free:
            raise DataError(
                f"{self.where}: {name} unpacks to {num_bytes / GB:,.1f} GB, and the disk of {self.folder.parent} has "
                f"{free / GB:,.1f} GB free; make room, or give --out on another disk."
            )
