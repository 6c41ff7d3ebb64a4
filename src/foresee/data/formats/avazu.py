"""Avazu's click log: a CSV with a header, 21 anonymous categories and the hour.

The hour of day becomes a category of its own; `id` is left out, since every sample has another one. Hours are the
time to split by.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow.compute as pc

from foresee.data.columns import Categorical, Columns
from foresee.data.formats.delimited import Layout, delimited_chunks
from foresee.data.source import RawChunk, ReportBadLine, SplitMode
from foresee.io.urls import Place

# fmt: off
CATEGORIES = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id",
    "device_ip", "device_model", "device_type", "device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19", "C20",
    "C21",
)
# fmt: on
HOUR_OF_DAY = "hour_of_day"


@dataclass(frozen=True, slots=True, kw_only=True)
class Avazu:
    """Avazu click logs: CSV with a header, split by hour; there are no dense features.

    foresee prepare avazu train.gz --out data/avazu
    """

    name: ClassVar[str] = "avazu"
    default_split: ClassVar[SplitMode] = "time"

    files: tuple[Place, ...]

    @property
    def columns(self) -> Columns:
        names = (HOUR_OF_DAY, *CATEGORIES)
        return Columns(label="click", categorical=tuple(Categorical(name=name) for name in names), time="hour")

    def chunks(self, report: ReportBadLine) -> Iterator[RawChunk]:
        layout = Layout(separator=",", quoted=True, header=True)
        wanted = tuple(name for name in self.columns.names if name != HOUR_OF_DAY)
        for file in self.files:
            for chunk in delimited_chunks(file, layout, wanted, report):
                # 14102123: the 23rd hour of 21 October 2014
                hours = pc.utf8_slice_codeunits(chunk.cells["hour"], 6, 8)
                yield replace(chunk, cells={**chunk.cells, HOUR_OF_DAY: hours})
