"""Products with shared negatives and their softmax as one operation: what most of a step of link prediction is.

In: queries [chunks, edges, dim], candidates [chunks, negatives, dim], the scores of the edges themselves and which
negatives count for nothing. Out: what each edge costs, as `losses.softmax(positive, queries @ candidates)` has it. The
scores of an edge are raised while they are in the processor's nearest cache and kept for the way back, and their memory
is used again in the next step: a fresh one would have to be cleared by the system first. For decoders that say
`products = True`: their `compare` is a product of matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

from foresee.base.arrays import Float32

SPARES_MAX = 2
"""Both sides of an edge have scores at once."""
LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
"""The logarithm of 2 in two parts, of which the first times a small whole number is exact."""
C0, C1, C2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
C3, C4, C5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
"""Of the polynomial for exp between -ln(2)/2 and ln(2)/2 (Cephes), good to one unit in the last place."""
LOWEST = np.float32(-87.0)
"""exp of anything less is nothing."""
NOTHING, HALF, ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)

_spares: list[Tensor] = []


class SoftmaxOfProducts(torch.autograd.Function):
    """Forward and backward by hand."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, candidates: Tensor, positive: Tensor, masked: Tensor | None
    ) -> Tensor:  # [edges]
        num_edges = len(positive)
        raised = _scratch(queries.shape[0], queries.shape[1], candidates.shape[1])  # [chunks, edges, negatives]
        torch.bmm(queries, candidates.transpose(1, 2), out=raised)
        flat = raised.view(-1, raised.shape[2])
        flat[num_edges:].zero_()  # padding
        if masked is not None and len(masked):
            flat[masked[:, 0], masked[:, 1]] = -torch.inf
        highest, total = torch.empty_like(positive), torch.empty_like(positive)
        _raise_rows(flat[:num_edges].numpy(), positive.detach().numpy(), highest.numpy(), total.numpy())
        own = (positive - highest).exp_()
        total += own
        ctx.save_for_backward(queries, candidates, raised, own / total, total)
        return total.log().add_(highest).sub_(positive)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        queries, candidates, raised, share, total = ctx.saved_tensors
        weight = torch.zeros(*queries.shape[:2], 1)
        weight.view(-1)[: len(total)] = gradient / total
        of_queries = torch.bmm(raised, candidates).mul_(weight)
        of_candidates = torch.bmm(raised.transpose(1, 2), queries * weight)
        if len(_spares) < SPARES_MAX:
            _spares.append(raised)
        return of_queries, of_candidates, gradient * (share - 1), None


def _scratch(*shape: int) -> Tensor:
    """Memory for scores: that of a step before if it has the size."""
    try:
        spare = _spares.pop()
    except IndexError:
        return torch.empty(shape)
    return spare if spare.shape == shape else torch.empty(shape)


@njit(nogil=True, cache=True)
def _raise_rows(scores: Float32, positive: Float32, highest: Float32, total: Float32) -> None:
    """Each row becomes exp(row - highest), `highest` being that of the row and of its edge; `total` is its sum."""
    for row in range(len(positive)):
        highest[row] = _highest(scores[row], positive[row])
        total[row] = _raise(scores[row], highest[row])


@njit(nogil=True, cache=True, fastmath={"nnan", "nsz", "reassoc"})
def _highest(scores: Float32, start: np.float32) -> np.float32:
    for score in scores:
        start = score if score > start else start
    return start


@njit(nogil=True, cache=True, fastmath={"nsz", "reassoc", "contract"})
def _raise(scores: Float32, highest: np.float32) -> np.float32:
    """exp in steps that vectorise: 2 to a whole number, times a polynomial of the rest. Not a number stays that."""
    total = NOTHING
    for place in range(len(scores)):
        power = scores[place] - highest
        bounded = LOWEST if power < LOWEST else power
        whole = np.floor(bounded * LOG2_E + HALF)
        rest = bounded - whole * LN2_HIGH - whole * LN2_LOW
        bend = ((((C0 * rest + C1) * rest + C2) * rest + C3) * rest + C4) * rest + C5
        scale = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
        value = (bend * rest * rest + rest + ONE) * scale
        scores[place] = NOTHING if power < LOWEST else value
        total += scores[place]
    return total
