"""Raw logs in, prepared click logs and batches out. Knows formats, not training."""

from foresee.data.batch import Batch, BatchStream
from foresee.data.click_log import ClickLog
from foresee.data.schema import DenseFeature, Feature, Table, Vocabulary
from foresee.data.stream import LogStream
from foresee.data.synthetic import criteo_table_sizes, synthetic, synthetic_rows
from foresee.data.tiny import tiny

__all__ = [
    "Batch",
    "BatchStream",
    "ClickLog",
    "DenseFeature",
    "Feature",
    "LogStream",
    "Table",
    "Vocabulary",
    "criteo_table_sizes",
    "synthetic",
    "synthetic_rows",
    "tiny",
]
