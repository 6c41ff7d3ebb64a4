"""Objects with the names and methods of TorchRec's, so that what takes them by their shape is tested without it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor


class PoolingType(Enum):
    SUM = "SUM"
    MEAN = "MEAN"
    NONE = "NONE"


class DataType(Enum):
    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    INT8 = "INT8"


@dataclass
class EmbeddingConfig:
    """Sequences: it has no pooling."""

    num_embeddings: int
    embedding_dim: int
    name: str = ""
    feature_names: list[str] = field(default_factory=list)


@dataclass
class EmbeddingBagConfig:
    num_embeddings: int
    embedding_dim: int
    name: str = ""
    data_type: DataType = DataType.FP32
    feature_names: list[str] = field(default_factory=list)
    pooling: PoolingType = PoolingType.SUM


class KeyedJaggedTensor:
    def __init__(self, keys: list[str], values: Tensor, lengths: Tensor, weights: Tensor | None = None) -> None:
        self._keys, self._values, self._lengths, self._weights = keys, values, lengths, weights

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> Tensor:
        return self._values

    def lengths(self) -> Tensor:
        return self._lengths

    def offsets(self) -> Tensor:
        return torch.cat([torch.zeros(1, dtype=self._lengths.dtype), torch.cumsum(self._lengths, 0)])

    def variable_stride_per_key(self) -> bool:
        return False

    def weights_or_none(self) -> Tensor | None:
        return self._weights


class VariableStride(KeyedJaggedTensor):
    """As made with stride_per_key_per_rank: keys have other numbers of samples."""

    def variable_stride_per_key(self) -> bool:
        return True


@dataclass
class Batch:
    """As torchrec.datasets.utils.Batch."""

    dense_features: Tensor
    sparse_features: KeyedJaggedTensor
    labels: Tensor
