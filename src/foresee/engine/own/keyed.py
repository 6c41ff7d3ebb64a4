"""Embeddings by the name of their feature, as TorchRec's `KeyedTensor` gives them.

In: embeddings [samples, features, width] and the name and width of each feature. Out: a tensor [samples, width] for
each name. All are views: what a model makes of them sends its gradient back to the embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from foresee.errors import UsageError


class KeyedEmbeddings:
    """The methods of TorchRec's KeyedTensor that models use."""

    def __init__(self, features: Sequence[tuple[str, int]], embeddings: Tensor) -> None:
        if embeddings.dim() != 3 or embeddings.shape[1] != len(features):
            raise UsageError(
                f"embeddings have shape {tuple(embeddings.shape)}; there are {len(features)} features: give "
                "step.embeddings of the same bags, [samples, features, width]"
            )
        self._features = dict(features)
        self._positions = {name: position for position, (name, _) in enumerate(features)}
        self._embeddings = embeddings

    def keys(self) -> list[str]:
        """Names of the features, in their order."""
        return list(self._features)

    def length_per_key(self) -> list[int]:
        """Width of each feature."""
        return list(self._features.values())

    def offset_per_key(self) -> list[int]:
        """Where each feature begins in `values()`, and where the last ends."""
        return list(accumulate(self._features.values(), initial=0))

    def values(self) -> Tensor:
        """[samples, sum of all widths]: the features side by side."""
        samples, num_features, width = self._embeddings.shape
        if all(dim == width for dim in self._features.values()):
            return self._embeddings.reshape(samples, num_features * width)
        return torch.cat([self[name] for name in self._features], dim=1)

    def __getitem__(self, name: str) -> Tensor:
        """[samples, width] of one feature."""
        if name not in self._positions:
            raise UsageError(f"there is no feature {name!r}; the features are {', '.join(self._features)}")
        return self._embeddings[:, self._positions[name], : self._features[name]]

    def to_dict(self) -> dict[str, Tensor]:
        """All features by name."""
        return {name: self[name] for name in self._features}
