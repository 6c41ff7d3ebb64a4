"""Wide & Deep (Cheng et al., 2016): a linear model and an MLP, trained together.

In: dense [samples, dense features], embeddings [samples, features, dim + 1]. Out: logits [samples]. The wide part's
weight of an id is the last column of its row; the deep part reads the other `dim` columns and the dense features.
Embeddings of several widths are read one after another, each as wide as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from foresee.models.layers import FirstOrder, Shares, checked_widths, cut, flat, mlp

from .contract import Dims, Shape, Vectors, check_input, checked_outputs, checked_shape, feature_dims


class WideAndDeep(nn.Module):
    """`deep` are hidden widths: the deep part always ends in the outputs."""

    def __init__(self, shape: Shape, dim: Dims, *, deep: Sequence[int] = (512, 256), num_outputs: int = 1) -> None:
        super().__init__()
        self.shape = checked_shape(shape, dim)
        self.dim = dim
        self.wide = FirstOrder(shape.num_dense)
        width_in = shape.num_dense + sum(feature_dims(shape, dim))
        self.deep = mlp(width_in, (*checked_widths("deep", deep), checked_outputs(num_outputs)), activate_last=False)
        self.join = Shares(num_outputs)

    @classmethod
    def row_width(cls, dim: int) -> int:
        """Columns a row needs: the embedding and the wide weight."""
        return dim + 1

    def forward(self, dense: Tensor, embeddings: Vectors) -> Tensor:
        check_input(dense, embeddings, self.shape, self.dim, self.row_width)
        vectors, weights = cut(embeddings, self.dim)
        deep: Tensor = self.deep(torch.cat((dense, flat(vectors)), dim=1))
        wide: Tensor = self.wide(dense, flat(weights))
        joined: Tensor = self.join(wide, deep)
        return joined
