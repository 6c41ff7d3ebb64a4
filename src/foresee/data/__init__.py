"""Raw logs in, prepared click logs and batches out; also batches that a caller makes.

`prepare` turns a `Source` (one per raw format, `formats/`) into a folder that `ClickLog` opens; `ClickLog.batches`
gives a `BatchStream`. `Batches` makes a stream of a caller's own loader: ids to rows. `synthetic` and `tiny` make logs
with known structure.

Knows formats, not training: no torch, no tables, no plan. Everything read from outside is checked, and an error names
file and line.
"""

from foresee.data.batch import Batch, BatchStream
from foresee.data.click_log import ClickLog
from foresee.data.columns import Categorical, Columns, Dense, Label
from foresee.data.formats import FORMATS, Avazu, Criteo, Csv, Libfm, MovieLens, Parquet
from foresee.data.formats.delimited import Join, Layout
from foresee.data.prepare import PrepareReport, prepare
from foresee.data.schema import DenseFeature, Feature, LogLabel, Table, Vocabulary
from foresee.data.source import PrepareOptions, ReportProgress, Source
from foresee.data.stream import LogStream
from foresee.data.synthetic import criteo_table_sizes, synthetic, synthetic_rows, tiny

__all__ = [
    "FORMATS",
    "Avazu",
    "Batch",
    "BatchStream",
    "Categorical",
    "ClickLog",
    "Columns",
    "Criteo",
    "Csv",
    "Dense",
    "DenseFeature",
    "Feature",
    "Join",
    "Label",
    "Layout",
    "Libfm",
    "LogLabel",
    "LogStream",
    "MovieLens",
    "Parquet",
    "PrepareOptions",
    "PrepareReport",
    "ReportProgress",
    "Source",
    "Table",
    "Vocabulary",
    "criteo_table_sizes",
    "prepare",
    "synthetic",
    "synthetic_rows",
    "tiny",
]
