"""Criteo's click logs (Kaggle and Terabyte): label, 13 integers I1..I13, 26 categories C1..C26, tabs, no header.

Empty cells are normal: an empty number counts as 0, an empty category gets the unknown row. Numbers become ln(1 + x)
as is usual for this log. Lines are in time order, so the last ones are held out unless asked otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from foresee.data.columns import Categorical, Columns, Dense, Transform
from foresee.data.formats.delimited import Layout, delimited_chunks
from foresee.data.source import RawChunk, ReportBadLine, SplitMode
from foresee.io.urls import Place

NUM_DENSE = 13
NUM_CATEGORICAL = 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteo:
    """Criteo click logs (Kaggle, Terabyte): label, 13 numbers, 26 categories, tabs, no header.

    foresee prepare criteo day_0.gz day_1.gz --out data/criteo --min-count 10
    """

    name: ClassVar[str] = "criteo"
    default_split: ClassVar[SplitMode] = "order"

    files: tuple[Place, ...]
    dense_transform: Annotated[Transform, "What becomes of the 13 numbers; log1p takes negative ones for 0."] = "log1p"

    @property
    def columns(self) -> Columns:
        return Columns(
            label="label",
            dense=tuple(
                Dense(name=f"I{i}", transform=self.dense_transform, missing=0.0) for i in range(1, NUM_DENSE + 1)
            ),
            categorical=tuple(Categorical(name=f"C{i}") for i in range(1, NUM_CATEGORICAL + 1)),
        )

    def chunks(self, report: ReportBadLine) -> Iterator[RawChunk]:
        names = self.columns.names
        for file in self.files:
            yield from delimited_chunks(file, Layout(separator="\t", names=names), names, report)
