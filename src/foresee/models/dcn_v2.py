"""DCN-v2 (Wang et al., 2021): layers that multiply the input with a learned mix of itself, beside or before an MLP.

In: dense [samples, dense features], embeddings [samples, features, dim]. Out: logits [samples]. A cross layer computes
`x' = x0 ⊙ (W x + b) + x`, so n of them reach products of n + 1 inputs. With `rank` the matrix W is the product of two
thin ones, `U Vᵀ`, which is what a wide input needs: W has (dense features + features · dim)² weights. Embeddings of
several widths are read one after another, each as wide as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from foresee.models.layers import by_sample, checked_widths, flat, mlp

from .contract import Dims, Shape, Vectors, check_input, checked_outputs, checked_shape, feature_dims

STRUCTURES = ("stacked", "parallel")


class DCNv2(nn.Module):
    """`structure` is "stacked" (cross layers, then the MLP on top) or "parallel" (both read the input)."""

    def __init__(
        self,
        shape: Shape,
        dim: Dims,
        *,
        num_cross: int = 3,
        rank: int | None = None,
        deep: Sequence[int] = (512, 256),
        structure: str = "stacked",
        num_outputs: int = 1,
    ) -> None:
        super().__init__()
        self.shape = checked_shape(shape, dim)
        _check_options(num_cross, rank, structure)
        self.dim = dim
        self.parallel = structure == "parallel"
        width = shape.num_dense + sum(feature_dims(shape, dim))
        self.cross = nn.ModuleList(CrossLayer(width, rank) for _ in range(num_cross))
        widths = checked_widths("deep", deep)
        self.deep = mlp(width, widths, activate_last=True)
        deep_width = widths[-1] if widths else width
        self.last = nn.Linear(width + deep_width if self.parallel else deep_width, checked_outputs(num_outputs))

    @classmethod
    def row_width(cls, dim: int) -> int:
        """Columns a row needs: the embedding."""
        return dim

    def forward(self, dense: Tensor, embeddings: Vectors) -> Tensor:
        check_input(dense, embeddings, self.shape, self.dim, self.row_width)
        start = torch.cat((dense, flat(embeddings)), dim=1)  # [samples, width]
        crossed = start
        for layer in self.cross:
            crossed = layer(start, crossed)
        features = torch.cat((crossed, self.deep(start)), dim=1) if self.parallel else self.deep(crossed)
        return by_sample(self.last(features))


class CrossLayer(nn.Module):
    """`start ⊙ (W x + b) + x`, with W full or `U Vᵀ` of the given rank."""

    def __init__(self, width: int, rank: int | None) -> None:
        super().__init__()
        if rank is None:
            self.mix: nn.Module = nn.Linear(width, width)
        else:
            self.mix = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))

    def forward(self, start: Tensor, x: Tensor) -> Tensor:
        return torch.addcmul(x, start, self.mix(x))


def _check_options(num_cross: int, rank: int | None, structure: str) -> None:
    if isinstance(num_cross, bool) or not isinstance(num_cross, int) or num_cross < 1:
        raise ValueError(f"num_cross is {num_cross!r}: give the number of cross layers, at least 1")
    if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 1):
        raise ValueError(f"rank is {rank!r}: give a whole number of at least 1, or leave it out for full matrices")
    if structure not in STRUCTURES:
        raise ValueError(f"structure is {structure!r}: give one of {', '.join(STRUCTURES)}")
