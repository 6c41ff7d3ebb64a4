"""Products with shared negatives and their softmax as one operation: what most of a step of link prediction is.

In: queries [chunks, edges, dim], candidates [chunks, negatives, dim], the scores of the edges themselves and which
negatives count for nothing. Out: what each edge costs, as `losses.softmax(positive, queries @ candidates)` has it. The
scores are raised in place and kept for the way back, so memory is passed over about half as often as by operations one
after the other. For decoders that say `products = True`: their `compare` is a product of matrices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class SoftmaxOfProducts(torch.autograd.Function):
    """Forward and backward by hand."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, candidates: Tensor, positive: Tensor, masked: Tensor | None
    ) -> Tensor:  # [edges]
        num_edges = len(positive)
        raised = torch.bmm(queries, candidates.transpose(1, 2))  # [chunks, edges, negatives]
        flat = raised.view(-1, raised.shape[2])[:num_edges]
        if masked is not None and len(masked):
            flat[masked[:, 0], masked[:, 1]] = -torch.inf
        highest = torch.maximum(flat.amax(1), positive)
        flat.sub_(highest.unsqueeze(1)).exp_()
        own = (positive - highest).exp_()
        total = flat.sum(1).add_(own)
        ctx.save_for_backward(queries, candidates, raised, own / total, total)
        return total.log().add_(highest).sub_(positive)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        queries, candidates, raised, share, total = ctx.saved_tensors
        num_edges = len(share)
        flat = raised.view(-1, raised.shape[2])
        flat[:num_edges].mul_((gradient / total).unsqueeze(1))
        flat[num_edges:].zero_()  # padding
        return torch.bmm(raised, candidates), torch.bmm(raised.transpose(1, 2), queries), gradient * (share - 1), None
