"""The libfm format: `label index:1 index:1 ...`, as Frappe and many factorisation-machine data sets have it.

With `fields`, every line has the same number of indices and the k-th belongs to the k-th field: one single-valued
feature each. With `bag`, all indices of a line are one multi-valued feature. Values other than 1 are refused: an id has
no weight here. Labels may be -1 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foresee.arrays import Int64
from foresee.data.columns import Categorical, Columns
from foresee.data.formats.text import LineBlock, line_blocks
from foresee.data.source import BadLine, RawChunk, ReportBadLine, SplitMode, check_files
from foresee.errors import DataError
from foresee.io.urls import Place, shown

_LABEL = "label"
_BAG = "indices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Libfm:
    """Text in libfm's format: label index:1 index:1 ...

    foresee prepare libfm frappe.train.libfm --out data/frappe
    """

    name: ClassVar[str] = "libfm"
    default_split: ClassVar[SplitMode] = "random"

    files: tuple[Place, ...]
    shape: Annotated[Literal["fields", "bag"], "One feature for each position, or all indices as one bag."] = "fields"
    field_names: Annotated[
        tuple[str, ...] | None,
        "One name for each field, with commas between. Without it: field1, field2, ... as many as the first line has.",
    ] = None
    pooling: Annotated[Literal["sum", "mean"], "How the vectors of the bag become one."] = "sum"

    @property
    def columns(self) -> Columns:
        if self.shape == "bag":
            return Columns(label=_LABEL, categorical=(Categorical(name=_BAG, pooling=self.pooling),))
        return Columns(label=_LABEL, categorical=tuple(Categorical(name=name) for name in self._names()))

    def chunks(self, report: ReportBadLine) -> Iterator[RawChunk]:
        names = self._names() if self.shape == "fields" else None
        for file in self.files:
            for block in line_blocks(file):
                yield _chunk(file, block, names, report)

    def _names(self) -> tuple[str, ...]:
        if self.field_names is not None:
            return self.field_names
        check_files(self.files)
        for block in line_blocks(self.files[0], block_bytes=1 << 16):
            num_fields = len(block.data.split(b"\n", 1)[0].split()) - 1
            if num_fields > 0:
                return tuple(f"field{i}" for i in range(1, num_fields + 1))
        raise DataError(f"{shown(self.files[0])}:1: expected a label and indices, found none; correct the line.")


def _chunk(file: Place, block: LineBlock, names: tuple[str, ...] | None, report: ReportBadLine) -> RawChunk:
    texts = block.data.decode("utf-8", "replace").split("\n")[:-1]
    lines = pc.utf8_trim_whitespace(pa.array(texts, pa.large_string()))
    tokens = pc.utf8_split_whitespace(lines)
    lengths = pc.list_value_length(tokens).to_numpy()
    firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    flat = tokens.flatten()
    is_label = np.zeros(len(flat), bool)
    blank = pc.equal(lines, "").to_numpy(zero_copy_only=False)
    is_label[firsts[~blank]] = True
    usable = pc.match_substring_regex(flat, r"^[0-9]+:1(\.0*)?$").to_numpy(zero_copy_only=False) | is_label
    owner = np.repeat(np.arange(len(lines)), lengths)
    num_wrong = np.bincount(owner[~usable], minlength=len(lines))
    bad = ~blank & ((num_wrong > 0) | (lengths < 2 if names is None else lengths != len(names) + 1))
    for index in np.flatnonzero(bad):
        report(BadLine(file, block.first_line + int(index), _reason(texts[index], names), texts[index].rstrip()))
    good = ~bad & ~blank
    chosen = flat.filter(pa.array(good[owner]))
    cells = _cells(chosen, lengths[good], names)
    numbers = block.first_line + np.flatnonzero(good)
    kept = [texts[index].rstrip() for index in np.flatnonzero(good)]
    return RawChunk(file, numbers, cells, kept.__getitem__, block.bytes_done)


def _cells(tokens: pa.Array, lengths: Int64, names: tuple[str, ...] | None) -> dict[str, pa.Array]:
    firsts = np.cumsum(lengths) - lengths
    labels = tokens.take(pa.array(firsts))
    labels = pc.if_else(pc.is_in(labels, value_set=pa.array(["-1", "-1.0"], labels.type)), "0", labels)
    labels = pc.if_else(pc.equal(labels, "+1"), "1", labels)
    indices = pc.replace_substring_regex(tokens, r":.*$", "")
    if names is not None:
        return {_LABEL: labels} | {name: indices.take(pa.array(firsts + 1 + i)) for i, name in enumerate(names)}
    inside = np.ones(len(tokens), bool)
    inside[firsts] = False
    ends = np.concatenate([[0], np.cumsum(lengths - 1)])
    return {_LABEL: labels, _BAG: pa.LargeListArray.from_arrays(pa.array(ends), indices.filter(pa.array(inside)))}


def _reason(text: str, names: tuple[str, ...] | None) -> str:
    tokens = text.split()
    for place, token in enumerate(tokens[1:], 1):
        index, _, value = token.partition(":")
        if not index.isascii() or not index.isdigit() or value.rstrip("0").rstrip(".") != "1":
            column = names[place - 1] if names is not None and place <= len(names) else _BAG
            return f"column {column}: expected index:1, found {token!r}; correct the line"
    if names is None:
        return f"expected a label and at least one index:1, found {text.strip()!r}; correct the line"
    return f"expected a label and {len(names)} indices, found {len(tokens)} cells; correct the line, use --shape bag"
