"""SASRec (Kang and McAuley, 2018): self-attention over a sequence, one vector at each position for what comes next.

In: a padded sequence [samples, positions, dim], the items first and the padding behind them, as `to_padded_dense` gives
it. Out: [samples, positions, dim]; the dot product with an item's vector is its score at that position. A position sees
itself and those before it, so an item never sees padding, and no mask is needed: what padding itself becomes is for
nobody, and `next_item_loss` leaves it out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SASRec(nn.Module):
    """`positions` is the longest sequence; `dim` is divided among the heads."""

    def __init__(
        self, dim: int, *, positions: int, num_blocks: int = 2, num_heads: int = 2, hidden: int | None = None,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"dim {dim} cannot be divided among {num_heads} heads; give a dim that can")
        self.dim, self.dropout = dim, nn.Dropout(dropout)
        self.places = nn.Parameter(torch.randn(positions, dim) * 0.02)
        self.blocks = nn.ModuleList(_Block(dim, num_heads, hidden or dim, dropout) for _ in range(num_blocks))
        self.last = nn.LayerNorm(dim)

    def forward(self, sequence: Tensor) -> Tensor:
        """[samples, positions, dim] -> the same shape."""
        if sequence.dim() != 3 or sequence.shape[1] > len(self.places) or sequence.shape[2] != self.dim:
            raise ValueError(
                f"the sequence has shape {tuple(sequence.shape)}; this model takes [samples, at most "
                f"{len(self.places)} positions, {self.dim}]"
            )
        state = self.dropout(sequence * self.dim**0.5 + self.places[: sequence.shape[1]])
        for block in self.blocks:
            state = block(state)
        found: Tensor = self.last(state)
        return found


class _Block(nn.Module):
    """Attention to what came before, then the same small network at every position; each added to its input."""

    def __init__(self, dim: int, num_heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.chance = num_heads, dropout
        self.before, self.between = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.project, self.join = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.each = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, dim))
        self.drop = nn.Dropout(dropout)

    def forward(self, state: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(2, (self.num_heads, -1)).transpose(1, 2)
            for part in self.project(self.before(state)).chunk(3, dim=2)
        )
        chance = self.chance if self.training else 0.0
        seen = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=chance, is_causal=True)
        state = state + self.drop(self.join(seen.transpose(1, 2).flatten(2)))
        found: Tensor = state + self.drop(self.each(self.between(state)))
        return found


def next_item_loss(state: Tensor, following: Tensor, others: Tensor, lengths: Tensor) -> Tensor:
    """The paper's loss: at every position what came next against something that did not.

    state, following, others: [samples, positions, dim]; lengths: [samples], beyond which positions are padding.
    """
    there = torch.arange(state.shape[1], device=lengths.device) < lengths[:, None]
    right, wrong = (state * following).sum(dim=2)[there], (state * others).sum(dim=2)[there]
    loss: Tensor = nn.functional.softplus(-right).mean() + nn.functional.softplus(wrong).mean()
    return loss
