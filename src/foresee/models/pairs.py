"""Second-order interactions: what every pair of a sample's vectors has in common, without a loop over pairs.

In: vectors [samples, vectors, dim]. Out: either the dot product of each pair (`PairDots`, for DLRM) or the element-wise
products of all pairs summed up (`sum_of_pair_products`, for NCF). Never a vector with itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class PairDots(nn.Module):
    """Dot products of all pairs i < j, row by row: (0,1), (0,2), …, (1,2), …"""

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        first, second = torch.triu_indices(num_vectors, num_vectors, offset=1)
        self.num_pairs = first.numel()
        # Where the cell (i, j) of a sample's matrix of dots comes from and goes to. The diagonal is in no pair: it
        # points at one column past the pairs, which backward fills with zeros.
        pair_of_cell = torch.full((num_vectors, num_vectors), self.num_pairs)
        pair_of_cell[first, second] = torch.arange(self.num_pairs)
        pair_of_cell[second, first] = torch.arange(self.num_pairs)
        self.cell_of_pair: Tensor
        self.pair_of_cell: Tensor
        # They follow from num_vectors alone, so they move with the module but are no part of its saved weights.
        self.register_buffer("cell_of_pair", first * num_vectors + second, persistent=False)
        self.register_buffer("pair_of_cell", pair_of_cell.flatten(), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:  # [samples, vectors, dim] -> [samples, pairs]
        dots: Tensor = _PairDots.apply(vectors, self.cell_of_pair, self.pair_of_cell)  # type: ignore[no-untyped-call]
        return dots


class _PairDots(torch.autograd.Function):
    """The gradient written out, because autograd's own does most of its work twice.

    dots(i, j) = x_i · x_j, hence d/dx_i = Σ_{j≠i} g(i, j) x_j with g symmetric: one product of the mirrored gradient
    with the vectors. Autograd would scatter into a zeroed matrix and multiply once for either factor of x xᵀ.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, cell_of_pair: Tensor, pair_of_cell: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, pair_of_cell)
        return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, cell_of_pair)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        vectors, pair_of_cell = ctx.saved_tensors
        samples, num_vectors, _ = vectors.shape
        mirrored = nn.functional.pad(gradient, (0, 1)).index_select(1, pair_of_cell)
        return torch.bmm(mirrored.view(samples, num_vectors, num_vectors), vectors), None, None


def sum_of_pair_products(vectors: Tensor) -> Tensor:  # [samples, vectors, dim] -> [samples, dim]
    """Σ_{i<j} x_i ⊙ x_j = ½ ((Σ x_i)² − Σ x_i²): linear in the number of vectors. One vector alone gives zeros."""
    total: Tensor = vectors.sum(dim=1)
    return 0.5 * (total.square() - vectors.square().sum(dim=1))
