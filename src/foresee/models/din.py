"""DIN (Zhou et al., 2018): what somebody did before, weighed by how much it has to do with a candidate.

In: the candidate's vector, a vector for each item of the history (all samples one after another, and how many each has,
as `JaggedEmbeddings` and TorchRec's JaggedTensor have them), and anything else as one row a sample. Out: logits
[samples]. Weights are not normalised over the history, as in the paper: two items of interest count twice one.

Positions that are padding do not exist here, so none is computed. The first layer of the attention reads candidate c,
item h, their difference and their product; as it is linear, `W [c, h, c - h, c ⊙ h]` is computed as
`(W₁ + W₃) c + (W₂ - W₃) h + W₄ (c ⊙ h)`: the first part once a sample instead of once an item, and no concatenation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from foresee.models.layers import checked_widths, mlp

PARTS = 4
"""Of what the attention reads: candidate, item, difference, product."""


class DIN(nn.Module):
    """`attention` and `deep` are hidden widths; `width_other` that of what a sample has besides, such as its user."""

    def __init__(
        self, dim: int, *, width_other: int = 0, attention: Sequence[int] = (64, 32), deep: Sequence[int] = (128, 64)
    ) -> None:
        super().__init__()
        first, *hidden = checked_widths("attention", attention) or (1,)
        self.dim, self.width_other = dim, width_other
        self.first = nn.Linear(PARTS * dim, first)
        self.attention = mlp(first, (*hidden, 1), activate_last=False) if attention else nn.Identity()
        self.deep = mlp(2 * dim + width_other, (*checked_widths("deep", deep), 1), activate_last=False)

    def forward(self, candidate: Tensor, values: Tensor, lengths: Tensor, other: Tensor | None = None) -> Tensor:
        """[samples, dim], [items of all histories, dim], [samples], [samples, width_other] -> [samples]"""
        _check(candidate, values, lengths, self.dim)
        interest = self.interest(candidate, values, lengths)
        given = (candidate, interest) if other is None else (candidate, interest, other)
        logits: Tensor = self.deep(torch.cat(given, dim=1))
        return logits.squeeze(1)

    def interest(self, candidate: Tensor, values: Tensor, lengths: Tensor) -> Tensor:  # -> [samples, dim]
        """The weighed sum of each history; zeros where there is none."""
        sample = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)  # [items]
        of_candidate, of_item, of_difference, of_product = self.first.weight.chunk(PARTS, dim=1)
        once = nn.functional.linear(candidate, of_candidate + of_difference, self.first.bias)
        each = nn.functional.linear(values, of_item - of_difference)
        product = nn.functional.linear(values * candidate.index_select(0, sample), of_product)
        hidden = each + product + once.index_select(0, sample)
        if not isinstance(self.attention, nn.Identity):
            hidden = hidden.relu()
        weights = self.attention(hidden)  # [items, 1]
        summed: Tensor = _WeighedSum.apply(values, weights, lengths, sample)  # type: ignore[no-untyped-call]
        return summed


class _WeighedSum(torch.autograd.Function):
    """Sums over runs of rows; the gradient is written out, as autograd's own of a segment sum loops over them again."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, lengths: Tensor, sample: Tensor) -> Tensor:
        ctx.save_for_backward(values, weights, sample)
        return torch.segment_reduce(values * weights, "sum", lengths=lengths, axis=0, unsafe=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        values, weights, sample = ctx.saved_tensors
        each = gradient.index_select(0, sample)
        return each * weights, (each * values).sum(dim=1, keepdim=True), None, None


def _check(candidate: Tensor, values: Tensor, lengths: Tensor, dim: int) -> None:
    if candidate.shape != (len(lengths), dim) or values.dim() != 2 or values.shape[1] != dim:
        raise ValueError(
            f"candidate has shape {tuple(candidate.shape)}, values {tuple(values.shape)}, lengths "
            f"{tuple(lengths.shape)}; this model takes [samples, {dim}], [items, {dim}] and [samples]"
        )
