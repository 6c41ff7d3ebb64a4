"""DeepFM (Guo et al., 2017): a factorisation machine and an MLP that share their embeddings.

In: dense [samples, dense features], embeddings [samples, features, dim + 1]. Out: logits [samples], the sum of the
first order (the last column of each row is its weight), the second order (dots of all pairs of the other columns) and
the deep part. A dense feature takes part in the pairs as its value times a vector of its own, a weight of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from foresee.models.layers import FirstOrder, OneWidth, Shares, checked_widths, cut, flat, mlp

from .contract import Dims, Shape, Vectors, check_input, checked_outputs, checked_shape


class DeepFM(nn.Module):
    """`deep` are hidden widths: the deep part always ends in the outputs.

    The pairs need one width: `project` maps features of several widths to it, which is `dim` then.
    """

    def __init__(
        self, shape: Shape, dim: Dims, *, deep: Sequence[int] = (512, 256), num_outputs: int = 1,
        project: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shape = checked_shape(shape, dim)
        self.dims = dim
        self.project = OneWidth(shape, dim, project, "the dot products of DeepFM's factorisation machine")
        self.dim = dim = self.project.width
        self.first_order = FirstOrder(shape.num_dense)
        self.dense_vectors = nn.Parameter(0.01 * torch.randn(shape.num_dense, dim))
        width_in = shape.num_dense + shape.num_features * dim
        self.deep = mlp(width_in, (*checked_widths("deep", deep), checked_outputs(num_outputs)), activate_last=False)
        self.join = Shares(num_outputs)

    @classmethod
    def row_width(cls, dim: int) -> int:
        """Columns a row needs: the embedding and the first-order weight."""
        return dim + 1

    def forward(self, dense: Tensor, embeddings: Vectors) -> Tensor:
        check_input(dense, embeddings, self.shape, self.dims, self.row_width)
        embedded, weights = cut(embeddings, self.dims)
        vectors, first = self.project(embedded), self.first_order(dense, flat(weights))
        deep: Tensor = self.deep(torch.cat((dense, vectors.flatten(1)), dim=1))
        joined: Tensor = self.join(first + self.second_order(dense, vectors), deep)
        return joined

    def second_order(self, dense: Tensor, vectors: Tensor) -> Tensor:  # -> [samples]
        """Dots of all pairs of the sample's vectors, dense and categorical: ½ (|Σ x_i|² − Σ |x_i|²).

        The dense features' share of both sums is a matrix product, so their vectors are never laid out per sample.
        """
        total = vectors.sum(dim=1) + dense @ self.dense_vectors  # [samples, dim]
        squares = vectors.square().sum(dim=1) + dense.square() @ self.dense_vectors.square()
        return 0.5 * (total.square() - squares).sum(dim=1)
