"""Products with shared negatives and their softmax as one operation: most of a step of link prediction.

In: queries [edges, dim], candidates [chunks * negatives, dim], the scores of the edges themselves and the negatives
that are masked. Out: the cost of each edge, equal to `losses.softmax(positive, queries @ candidates)`. A chunk's scores
lie as [negatives, edges]: maximum and sum of each edge are then vectors over edges, forward and backward read them
without a transposed copy, and no sum depends on the width of the processor's vectors. exp(score - maximum) is kept for
backward. Candidates write their gradient into their part of the gradient of all rows of the step (`Gradient`), so
nothing is concatenated. For decoders that say `products = True`: their `compare` is a product of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

from foresee.arrays import Float32, Int64
from foresee.engine.kernels import Threads
from foresee.engine.kernels.products import multiply, padded
from foresee.errors import UsageError
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
NEGATIVES_AT_ONCE = 64
"""Of a chunk in backward: their part of the scores stays in the processor's nearest cache for both products."""
NO_MASK: Int64 = np.empty((0, 2), np.int64)


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
    """The costs of all edges; forward and backward work chunk by chunk."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, candidates: Tensor, positive: Tensor, masked: Tensor | None, num_chunks: int,
        gradient: Gradient, part: int,
    ) -> Tensor:  # [edges]  # fmt: skip
        _check(queries, candidates, num_chunks)
        queries, candidates = queries.contiguous(), candidates.contiguous()
        per_chunk = chunk_edges(len(positive), num_chunks)
        total, share, costs = (torch.empty_like(positive) for _ in range(3))
        raised = queries.new_empty(len(candidates), padded(per_chunk))
        arrays = [it.detach().numpy() for it in (queries, candidates, positive, raised, total, share, costs)]
        pairs = NO_MASK if masked is None else masked.numpy()
        _for_chunks(num_chunks, lambda begin, end: _forward(*arrays, pairs, per_chunk, num_chunks, begin, end))
        ctx.save_for_backward(queries, candidates, share, total, raised)
        ctx.num_chunks, ctx.gradient, ctx.part = num_chunks, gradient, part
        return costs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, candidates, share, total, raised = ctx.saved_tensors
        of_queries, of_candidates = torch.empty_like(queries), ctx.gradient.part(ctx.part, candidates)
        weight = gradient / total
        arrays = [it.numpy() for it in (queries, candidates, weight, raised, of_queries, of_candidates)]
        per_chunk, num_chunks = chunk_edges(len(total), ctx.num_chunks), ctx.num_chunks
        _for_chunks(num_chunks, lambda begin, end: _backward(*arrays, per_chunk, num_chunks, begin, end))
        return of_queries, of_candidates, gradient * (share - 1), None, None, None, None


def _check(queries: Tensor, candidates: Tensor, num_chunks: int) -> None:
    """The kernels index without bounds checks."""
    for name, tensor in (("queries", queries), ("candidates", candidates)):
        if tensor.dtype != torch.float32 or tensor.ndim != 2 or tensor.shape[1] != candidates.shape[1]:
            raise UsageError(
                f"{name} of a decoder with products = True are {tensor.dtype} of shape {tuple(tensor.shape)}; give "
                f"float32 with the {candidates.shape[1]} columns of the candidates, or leave products out"
            )
    if len(candidates) % num_chunks:
        raise UsageError(f"{len(candidates)} candidates cannot be shared equally among {num_chunks} chunks")


def _for_chunks(num_chunks: int, kernel: Callable[[int, int], object]) -> None:
    """Call `kernel` with ranges of chunks, one for each thread of torch. Ranges write to different places."""
    num_threads = max(1, min(torch.get_num_threads(), num_chunks))
    with Threads(num_threads) as threads:
        threads.run(kernel, [num_chunks * number // num_threads for number in range(num_threads + 1)])


@njit(nogil=True, cache=True)
def _forward(
    queries: Float32, candidates: Float32, positive: Float32, raised: Float32, total: Float32, share: Float32,
    costs: Float32, masked: Int64, per_chunk: int, num_chunks: int, first_chunk: int, last_chunk: int,
) -> None:  # fmt: skip
    """Of some chunks: `raised` [chunks * negatives, edges of a chunk], and the costs of their edges.

    The last chunks may have fewer edges than `per_chunk`, or none.
    """
    num_edges, dim = queries.shape
    shared, stride = len(candidates) // num_chunks, raised.shape[1]
    turned = np.zeros(dim * stride, np.float32)
    highest, sums = np.empty(stride, np.float32), np.empty(stride, np.float32)
    for chunk in range(first_chunk, last_chunk):
        begin, end = min(chunk * per_chunk, num_edges), min((chunk + 1) * per_chunk, num_edges)
        for edge in range(begin, end):
            for d in range(dim):
                turned[d * stride + edge - begin] = queries[edge, d]
        multiply(
            candidates.reshape(-1), chunk * shared * dim, dim, 1, turned, 0, stride,
            raised.reshape(-1), chunk * shared * stride, stride, shared, stride, dim, False,
        )  # fmt: skip
    for pair in range(len(masked)):
        edge, negative = masked[pair]
        if first_chunk <= edge // per_chunk < last_chunk:
            raised[edge // per_chunk * shared + negative, edge % per_chunk] = -np.inf
    for chunk in range(first_chunk, last_chunk):
        begin, end = min(chunk * per_chunk, num_edges), min((chunk + 1) * per_chunk, num_edges)
        highest[:], sums[:] = NOTHING, NOTHING
        highest[: end - begin] = positive[begin:end]
        _raise(raised[chunk * shared : (chunk + 1) * shared], highest, sums)
        for edge in range(begin, end):
            own = np.exp(positive[edge] - highest[edge - begin])
            total[edge] = sums[edge - begin] + own
            share[edge] = own / total[edge]
            costs[edge] = np.log(total[edge]) + highest[edge - begin] - positive[edge]


@njit(nogil=True, cache=True)
def _backward(
    queries: Float32, candidates: Float32, weight: Float32, raised: Float32, of_queries: Float32,
    of_candidates: Float32, per_chunk: int, num_chunks: int, first_chunk: int, last_chunk: int,
) -> None:  # fmt: skip
    """Gradients of the queries and candidates of some chunks: those of the raised scores, times `weight` [edges]."""
    num_edges, dim = queries.shape
    shared, stride, width = len(candidates) // num_chunks, raised.shape[1], padded(dim)
    weighted, turned = np.zeros(per_chunk * width, np.float32), np.empty(dim * stride, np.float32)
    learned = np.empty((NEGATIVES_AT_ONCE, width), np.float32)
    for chunk in range(first_chunk, last_chunk):
        begin, end = min(chunk * per_chunk, num_edges), min((chunk + 1) * per_chunk, num_edges)
        for edge in range(begin, end):
            for d in range(dim):
                weighted[(edge - begin) * width + d] = queries[edge, d] * weight[edge]
        for first in range(0, shared, NEGATIVES_AT_ONCE):
            num, row = min(NEGATIVES_AT_ONCE, shared - first), chunk * shared + first
            multiply(
                candidates.reshape(-1), row * dim, 1, dim, raised.reshape(-1), row * stride, stride,
                turned, 0, stride, dim, stride, num, first > 0,
            )  # fmt: skip
            multiply(
                raised.reshape(-1), row * stride, stride, 1, weighted, 0, width,
                learned.reshape(-1), 0, width, num, width, end - begin, False,
            )  # fmt: skip
            for negative in range(num):
                for d in range(dim):
                    of_candidates[row + negative, d] = learned[negative, d]
        for edge in range(begin, end):
            for d in range(dim):
                of_queries[edge, d] = turned[d * stride + edge - begin] * weight[edge]


@njit(nogil=True, cache=True, fastmath={"contract"})
def _raise(scores: Float32, highest: Float32, sums: Float32) -> None:
    """Each column becomes exp(column - highest), `highest` being its maximum and what it was before; `sums` adds up.

    exp in steps that vectorise: 2 to a whole number, times a polynomial of the rest. NaN stays NaN.
    """
    for row in range(len(scores)):
        for column in range(len(highest)):
            score = scores[row, column]
            highest[column] = score if score > highest[column] else highest[column]
    for row in range(len(scores)):
        for column in range(len(highest)):
            power = scores[row, column] - highest[column]
            bounded = LOWEST if power < LOWEST else power
            whole = np.floor(bounded * LOG2_E + HALF)
            rest = bounded - whole * LN2_HIGH - whole * LN2_LOW
            bend = ((((C0 * rest + C1) * rest + C2) * rest + C3) * rest + C4) * rest + C5
            scale = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
            value = (bend * rest * rest + rest + ONE) * scale
            raised = NOTHING if power < LOWEST else value
            scores[row, column] = raised
            sums[column] += raised
