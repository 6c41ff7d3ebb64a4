"""Plain torch modules: (dense, embeddings) -> logits. They know nothing of where rows come from.

One model is one file and one line in `MODELS`. `Shape` says what a model needs to know of a log; see `contract`.
Models over sequences (DIN, SASRec, two towers) take one vector per id, which user-written loops provide: see
docs/sequences.md. Must not import anything else of foresee.
"""

from __future__ import annotations

from torch import nn

from .contract import LogShape, Model, Shape
from .dcn_v2 import DCNv2
from .deepfm import DeepFM
from .din import DIN
from .dlrm import DLRM
from .ncf import NCF
from .sasrec import SASRec, next_item_loss
from .two_tower import TwoTower, in_batch_loss
from .wide_and_deep import WideAndDeep

MODELS: dict[str, type[nn.Module]] = {
    "dlrm": DLRM,
    "deepfm": DeepFM,
    "wide_and_deep": WideAndDeep,
    "dcn_v2": DCNv2,
    "ncf": NCF,
}

__all__ = [
    "DIN",
    "DLRM",
    "MODELS",
    "NCF",
    "DCNv2",
    "DeepFM",
    "LogShape",
    "Model",
    "SASRec",
    "Shape",
    "TwoTower",
    "WideAndDeep",
    "in_batch_loss",
    "next_item_loss",
]
