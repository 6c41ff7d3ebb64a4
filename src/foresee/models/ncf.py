"""NCF (He et al., 2017), in its NeuMF form: a generalised matrix factorisation and an MLP, joined by one last layer.

In: dense [samples, dense features], embeddings [samples, features, 2 · dim]. Out: logits [samples]. The two parts have
embeddings of their own, as in the paper: the first `dim` columns of a row are the factorisation's, the rest the MLP's.

The paper has two features, user and item, and multiplies their vectors element by element. With more features (genres,
context) the products of all pairs are summed, which for two is the paper's product; for one there is no pair and only
the MLP speaks. Dense features go to the MLP.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from foresee.models.layers import OneWidth, by_sample, checked_widths, cut, flat, mlp, sum_of_pair_products

from .contract import Dims, Shape, Vectors, check_input, checked_outputs, checked_shape, feature_dims


class NCF(nn.Module):
    """`deep` are the widths of the MLP; its last layer is joined with the `dim` products of the factorisation.

    Products need one width: `project` maps the factors of several widths to it, which is `dim` then.
    """

    def __init__(
        self, shape: Shape, dim: Dims, *, deep: Sequence[int] = (128, 64, 32), num_outputs: int = 1,
        project: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shape = checked_shape(shape, dim)
        self.dims = dim
        self.project = OneWidth(shape, dim, project, "the products of NCF's factorisation")
        self.dim = self.project.width
        widths = checked_widths("deep", deep)
        width_in = shape.num_dense + sum(feature_dims(shape, dim))
        self.deep = mlp(width_in, widths, activate_last=True)
        self.last = nn.Linear(self.dim + (widths[-1] if widths else width_in), checked_outputs(num_outputs))

    @classmethod
    def row_width(cls, dim: int) -> int:
        """Columns a row needs: one embedding for each part."""
        return 2 * dim

    def forward(self, dense: Tensor, embeddings: Vectors) -> Tensor:
        check_input(dense, embeddings, self.shape, self.dims, self.row_width)
        factors, vectors = cut(embeddings, self.dims)
        deep = self.deep(torch.cat((dense, flat(vectors)), dim=1))
        return by_sample(self.last(torch.cat((sum_of_pair_products(self.project(factors)), deep), dim=1)))
