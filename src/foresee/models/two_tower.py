"""Two towers: a vector for who asks and one for each item, learned from pairs; negatives are the batch's other items.

In: what is known of the queries [samples, query width] and of the items that were right for them [samples, item width].
Out: two unit vectors a sample, whose dot product over the temperature is the score; items can be laid into an index for
nearest neighbours once they are trained. `in_batch_loss` corrects for popular items, which are negatives more often
(logQ: Yi et al., 2019), and never calls an item a negative of a query it was right for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from foresee.models.layers import checked_widths, mlp


class TwoTower(nn.Module):
    """`deep` are the widths of both towers; the last is that of their vectors."""

    def __init__(self, query_width: int, item_width: int, *, deep: Sequence[int] = (64, 32)) -> None:
        super().__init__()
        widths = checked_widths("deep", deep)
        if not widths:
            raise ValueError("deep is empty: give at least the width of the vectors")
        self.query_tower = mlp(query_width, widths, activate_last=False)
        self.item_tower = mlp(item_width, widths, activate_last=False)

    def forward(self, query: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        """Both vectors of every sample, [samples, width] each."""
        return self.queries(query), self.items(item)

    def queries(self, query: Tensor) -> Tensor:
        return nn.functional.normalize(self.query_tower(query), dim=1)

    def items(self, item: Tensor) -> Tensor:
        return nn.functional.normalize(self.item_tower(item), dim=1)


def in_batch_loss(
    queries: Tensor, items: Tensor, ids: Tensor, *, shares: Tensor | None = None, temperature: float = 0.1
) -> Tensor:
    """Softmax of each query over the items of its batch.

    ids: [samples], which item each is; the same item elsewhere in the batch is no negative.
    shares: [samples], how often each item comes, as a share of all; None: as if all came equally often.
    """
    scores = queries @ items.T / temperature  # [queries, items]
    if shares is not None:
        scores = scores - shares.to(scores.dtype).log()
    again = (ids[:, None] == ids) & ~torch.eye(len(ids), dtype=torch.bool, device=ids.device)
    return nn.functional.cross_entropy(scores.masked_fill(again, -torch.inf), torch.arange(len(ids), device=ids.device))
