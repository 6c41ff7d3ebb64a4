"""Embeddings of a step by feature name, pooled or jagged, with the methods of TorchRec's tensors that models use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foresee.data.batch import Vectors
from foresee.data.jagged import MAX, MEAN, _places
from foresee.errors import UsageError


class JaggedEmbeddings:
    """A vector for each id of a feature: the methods of TorchRec's JaggedTensor that models use."""

    def __init__(self, values: Tensor, lengths: Tensor) -> None:
        self._values, self._lengths = values, lengths

    def values(self) -> Tensor:
        """[ids, width]: sample after sample."""
        return self._values

    def lengths(self) -> Tensor:
        """[samples]: how many ids each has."""
        return self._lengths

    def offsets(self) -> Tensor:
        """[samples + 1]: where the ids of each sample begin, and where the last end."""
        return torch.cat([self._lengths.new_zeros(1), torch.cumsum(self._lengths, 0)])

    def to_dense(self) -> list[Tensor]:
        """[ids, width] of each sample."""
        return list(torch.split(self._values, self._lengths.tolist()))

    def to_padded_dense(self, desired_length: int | None = None, padding_value: float = 0.0) -> Tensor:
        """The same as one tensor; gradients flow back to the ids that are in it.

        Args:
            desired_length: Positions of every sample; ids beyond are left out. None: those of the longest.
            padding_value: Where a sample has no id.

        Returns:
            [samples, positions, width].
        """
        lengths = self._lengths
        num_positions = int(lengths.max()) if desired_length is None else desired_length
        position = torch.arange(num_positions, device=lengths.device)
        there = position < lengths[:, None]
        index = torch.where(there, self.offsets()[:-1, None] + position, 0)
        if not len(self._values):
            return self._values.new_full((*index.shape, self._values.shape[1]), padding_value)
        return torch.where(there[:, :, None], self._values[index], padding_value)


class KeyedEmbeddings:
    """The methods of TorchRec's KeyedTensor that models use.

    Args:
        widths: Of each feature, by name, in their order.
        look_up: The vectors of a feature by its place: [samples, width] or more columns, or a `JaggedEmbeddings`.
    """

    def __init__(self, widths: Mapping[str, int], look_up: Callable[[int], Tensor | JaggedEmbeddings]) -> None:
        self._widths = dict(widths)
        self._positions = {name: position for position, name in enumerate(widths)}
        self._look_up = cache(look_up)

    def keys(self) -> list[str]:
        """Names of the features, in their order."""
        return list(self._widths)

    def length_per_key(self) -> list[int]:
        """Width of each feature."""
        return list(self._widths.values())

    def offset_per_key(self) -> list[int]:
        """Where each feature begins in `values()`, and where the last ends."""
        return list(accumulate(self._widths.values(), initial=0))

    def values(self) -> Tensor:
        """[samples, sum of all widths]: the pooled features side by side; sequences have another shape."""
        columns = [self._vectors(name) for name in self._widths]
        sequences = [name for name, it in zip(self._widths, columns, strict=True) if not isinstance(it, Tensor)]
        if sequences:
            raise UsageError(f"feature {sequences[0]!r} has a vector for each id; ask for it by its name")
        return torch.cat([it for it in columns if isinstance(it, Tensor)], dim=1)

    def __getitem__(self, name: str) -> Any:
        """[samples, width] of a pooled feature; of one that is not, a `JaggedEmbeddings`."""
        return self._vectors(name)

    def to_dict(self) -> dict[str, Any]:
        """All features by name."""
        return {name: self[name] for name in self._widths}

    def _vectors(self, name: str) -> Tensor | JaggedEmbeddings:
        if name not in self._positions:
            raise UsageError(f"there is no feature {name!r}; the features are {', '.join(self._widths)}")
        found, width = self._look_up(self._positions[name]), self._widths[name]
        if isinstance(found, Tensor):
            return found[:, :width]
        return JaggedEmbeddings(found.values()[:, :width], found.lengths())


def vectors_of(embeddings: Tensor, vectors: Vectors, num_features: int, position: int) -> JaggedEmbeddings:
    """The vectors of one feature, sample after sample."""
    if vectors.of_bag is None:
        column = embeddings[:, position]
        return JaggedEmbeddings(column, torch.ones(len(column), dtype=torch.int64, device=column.device))
    begins, sizes = vectors.of_bag[position:-1:num_features], np.diff(vectors.of_bag)[position::num_features]
    index = torch.from_numpy(_places(begins, sizes)).to(embeddings.device)
    return JaggedEmbeddings(embeddings.index_select(0, index), torch.from_numpy(sizes).to(embeddings.device))


def pooled(each: JaggedEmbeddings, how: str, weights: Tensor | None) -> Tensor:
    """[samples, width]: the sum, mean or maximum over the ids of each sample; zeros where it has none.

    Weights multiply sums and means, whose number of ids stays the divisor. The gradient of a maximum goes to one id.
    """
    values, lengths = each.values(), each.lengths()
    if weights is not None:
        values = values * weights[:, None]
    if how == MAX:
        most = each.to_padded_dense(max(1, int(lengths.max())), padding_value=-torch.inf).max(dim=1).values
        return torch.where(lengths[:, None] > 0, most, 0.0)
    sums = torch.segment_reduce(values, "sum", lengths=lengths, axis=0, unsafe=True)
    return sums / lengths.clamp(min=1)[:, None] if how == MEAN else sums
