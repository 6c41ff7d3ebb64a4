"""DLRM (Naumov et al., 2019): a bottom MLP for the dense features, dots of all pairs of vectors, a top MLP.

In: dense [samples, dense features], embeddings [samples, features, dim]. Out: logits [samples]. The dense features
become one more vector beside the embeddings; the top MLP sees that vector and the dot product of every pair. The
bottom MLP needs no embeddings: they may be a function, which is called after it.

A log without dense features has nothing for the bottom MLP to map, which leaves it a constant: so it is one learned
vector. Its dots with the embeddings act as first-order weights, and even a log with a single feature trains.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from foresee.models.layers import OneWidth, PairDots, by_sample, checked_widths, mlp

from .contract import Dims, Embeddings, Shape, check_dense, check_input, checked_outputs, checked_shape


class DLRM(nn.Module):
    """`bottom` and `top` are hidden widths: the bottom MLP always ends in `dim`, the top MLP in the outputs.

    Dot products need one width: `project` maps features of several widths to it, which is `dim` then.
    """

    accepts_deferred_embeddings = True

    def __init__(
        self, shape: Shape, dim: Dims, *, bottom: Sequence[int] = (512, 256), top: Sequence[int] = (512, 256),
        num_outputs: int = 1, project: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shape = checked_shape(shape, dim)
        self.dims = dim
        self.project = OneWidth(shape, dim, project, "DLRM's dot products")
        self.dim = dim = self.project.width
        widths = checked_widths("bottom", bottom)
        if shape.num_dense:
            self.bottom: nn.Module = mlp(shape.num_dense, (*widths, dim), activate_last=True)
        else:
            self.bottom = _Constant(dim)
        self.pair_dots = PairDots(shape.num_features + 1)
        self.top = mlp(
            dim + self.pair_dots.num_pairs,
            (*checked_widths("top", top), checked_outputs(num_outputs)),
            activate_last=False,
        )

    @classmethod
    def row_width(cls, dim: int) -> int:
        """Columns a row needs: the embedding."""
        return dim

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        check_dense(dense, self.shape, len(dense))
        from_dense = self.bottom(dense)  # [samples, dim]
        if callable(embeddings) and not isinstance(embeddings, Tensor):
            embeddings = embeddings()
        check_input(dense, embeddings, self.shape, self.dims, self.row_width)
        vectors = torch.cat((from_dense.unsqueeze(1), self.project(embeddings)), dim=1)  # [samples, 1 + features, dim]
        return by_sample(self.top(torch.cat((from_dense, self.pair_dots(vectors)), dim=1)))


class _Constant(nn.Module):
    """The bottom of a log without dense features."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.rand(dim) / dim**0.5)  # not negative, as after a ReLU

    def forward(self, dense: Tensor) -> Tensor:  # [samples, 0] -> [samples, dim]
        return self.value.expand(dense.shape[0], -1)
