"""Products with shared negatives and their softmax as one operation: what most of a step of link prediction is.

In: queries [edges, dim], candidates [chunks * negatives, dim], the scores of the edges themselves and which negatives
count for nothing. Out: what each edge costs, as `losses.softmax(positive, queries @ candidates)` has it. A chunk's
scores are raised while they are in the processor's cache, and kept for the way back. `Gradient` is where candidates
write what they learn: a place of its own in the gradient of all rows of the step, which nobody has to copy together
again. For decoders that say `products = True`: their `compare` is a product of matrices.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

from foresee.base.arrays import Float32
from foresee.graph.negatives import chunk_edges

LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
"""The logarithm of 2 in two parts, of which the first times a small whole number is exact."""
C0, C1, C2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
C3, C4, C5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)
"""Of the polynomial for exp between -ln(2)/2 and ln(2)/2 (Cephes), good to one unit in the last place."""
LOWEST = np.float32(-87.0)
"""exp of anything less is nothing."""
NOTHING, HALF, ONE = np.float32(0.0), np.float32(0.5), np.float32(1.0)


class Gradient:
    """Of the rows of a step, cut into parts; memory comes with the first that is written."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)
        self._parts: tuple[Tensor, ...] = ()
        self._whole: Tensor | None = None

    def part(self, number: int, like: Tensor) -> Tensor:
        """Where a part is written."""
        if self._whole is None:
            self._whole = like.new_empty(sum(self._sizes), like.shape[1])
            self._parts = torch.split(self._whole, list(self._sizes))
        return self._parts[number]

    def whole(self, parts: Sequence[Tensor | None], like: Tensor) -> Tensor:
        """All of it, from what autograd has for each part; parts that were written in their place stay there."""
        for number, given in enumerate(parts):
            place = self.part(number, like)
            if given is None:
                place.zero_()
            elif given.data_ptr() != place.data_ptr() or given.stride() != place.stride():
                place.copy_(given)
        assert self._whole is not None
        whole, self._whole, self._parts = self._whole, None, ()
        return whole


class Ends(torch.autograd.Function):
    """`torch.split` of a step's rows, whose gradient is a `Gradient`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: Sequence[int], gradient: Gradient) -> tuple[Tensor, ...]:
        ctx.gradient, ctx.like = gradient, rows.detach()
        ctx.set_materialize_grads(False)
        return torch.split(rows, list(sizes))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *parts: Tensor | None) -> tuple[Tensor, None, None]:
        return ctx.gradient.whole(parts, ctx.like), None, None


class SoftmaxOfProducts(torch.autograd.Function):
    """Forward and backward by hand, chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, candidates: Tensor, positive: Tensor, masked: Tensor | None, num_chunks: int,
        gradient: Gradient, part: int,
    ) -> Tensor:  # [edges]  # fmt: skip
        highest, total = torch.empty_like(positive), torch.empty_like(positive)
        raised = queries.new_empty(len(queries), len(candidates) // num_chunks)
        _fill_scores(queries, candidates, raised, chunk_edges(len(positive), num_chunks), num_chunks, ONEDNN)
        if masked is not None and len(masked):
            raised[masked[:, 0], masked[:, 1]] = -torch.inf
        _raise_rows(raised.numpy(), positive.numpy(), highest.numpy(), total.numpy())
        own = (positive - highest).exp_()
        total += own
        ctx.save_for_backward(queries, candidates, own / total, total, raised)
        ctx.num_chunks, ctx.gradient, ctx.part = num_chunks, gradient, part
        return total.log().add_(highest).sub_(positive)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, candidates, share, total, raised = ctx.saved_tensors
        weight = (gradient / total).unsqueeze(1)
        weighted, of_queries = queries * weight, torch.empty_like(queries)
        of_candidates = ctx.gradient.part(ctx.part, candidates)
        per_chunk = chunk_edges(len(total), ctx.num_chunks)
        _fill_gradients(
            raised, weighted, candidates, of_queries, of_candidates, per_chunk, ctx.num_chunks, ONEDNN
        )  # fmt: skip
        of_queries *= weight
        return of_queries, of_candidates, gradient * (share - 1), None, None, None, None


def _has_onednn() -> bool:
    """oneDNN uses vectors of 512 bits on every processor that has them, a BLAS may not; else the BLAS is quicker."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    available: Any = torch.backends.mkldnn.is_available
    return wide and bool(available()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


ONEDNN = _has_onednn()
"""The same throughout a process: another library adds in another order."""


def _scripted(function: Any) -> Any:
    """Compiled by torch: a loop over chunks that lets the planner's thread have the interpreter meanwhile."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)


def _times_transposed(left: Tensor, right: Tensor, onednn: bool) -> Tensor:
    if onednn and left.numel() > 0 and right.numel() > 0:
        return torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")  # type: ignore[no-any-return]
    return torch.mm(left, right.t())


@_scripted
def _fill_scores(
    queries: Tensor, candidates: Tensor, out: Tensor, per_chunk: int, num_chunks: int, onednn: bool
) -> None:  # fmt: skip
    """out [edges, negatives]; the last chunks may have fewer edges, or none."""
    shared = candidates.shape[0] // num_chunks
    for chunk in range(num_chunks):
        begin, end = min(chunk * per_chunk, queries.shape[0]), min((chunk + 1) * per_chunk, queries.shape[0])
        own = candidates[chunk * shared : (chunk + 1) * shared]
        out[begin:end] = _times_transposed(queries[begin:end], own, onednn)


@_scripted
def _fill_gradients(
    raised: Tensor, weighted: Tensor, candidates: Tensor, of_queries: Tensor, of_candidates: Tensor, per_chunk: int,
    num_chunks: int, onednn: bool,
) -> None:  # fmt: skip
    """of_queries [edges, dim] and of_candidates [chunks * negatives, dim], whose weights are in `weighted` queries."""
    shared = candidates.shape[0] // num_chunks
    for chunk in range(num_chunks):
        begin, end = min(chunk * per_chunk, raised.shape[0]), min((chunk + 1) * per_chunk, raised.shape[0])
        own, scores = candidates[chunk * shared : (chunk + 1) * shared], raised[begin:end]
        of_queries[begin:end] = _times_transposed(scores, own.t(), onednn)
        turned = _times_transposed(weighted[begin:end].t(), scores.t(), onednn)
        of_candidates[chunk * shared : (chunk + 1) * shared] = turned.t()


@njit(nogil=True, cache=True)
def _raise_rows(scores: Float32, positive: Float32, highest: Float32, total: Float32) -> None:
    """Each row becomes exp(row - highest), `highest` being that of the row and of its edge; `total` is its sum."""
    for row in range(len(scores)):
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
