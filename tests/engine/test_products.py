"""The kernel of shared-negative products: right values, nothing written beside them, the same bits everywhere."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from foresee.arrays import Float32
from foresee.engine.kernels.products import LANES, multiply, padded
from foresee.errors import UsageError
from foresee.graph.fused import Gradient, SoftmaxOfProducts

BEYOND = np.float32(7.0)


def random(*shape: int) -> Float32:
    values: Float32 = np.random.default_rng(len(shape) + sum(shape)).normal(size=shape).astype(np.float32)
    return values


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 50])
@pytest.mark.parametrize("vectors", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 13])
def test_products_are_right_and_in_place(rows: int, vectors: int, depth: int, transposed: bool) -> None:
    columns = vectors * LANES
    a, b = random(rows, depth), random(depth, columns)
    given = np.ascontiguousarray(a.T) if transposed else a
    strides = (1, rows) if transposed else (depth, 1)
    out = np.full((rows + 1, columns + 3), BEYOND)
    for adds in (False, True):
        multiply(
            given.reshape(-1), 0, *strides, b.reshape(-1), 0, columns, out.reshape(-1), 0, columns + 3,
            rows, columns, depth, adds,
        )  # fmt: skip
        wanted = (2 if adds else 1) * (a.astype(np.float64) @ b.astype(np.float64))
        np.testing.assert_allclose(out[:rows, :columns], wanted, atol=1e-4)
    assert (out[rows] == BEYOND).all()
    assert (out[:, columns:] == BEYOND).all()


def test_a_sum_may_be_continued_in_parts() -> None:
    """Parts of the depth, one after the other, give the bits of the whole: the order of terms is the same."""
    a, b = random(9, 70), random(70, 2 * LANES)
    found = []
    for bounds in ([0, 70], [0, 1, 33, 70]):
        out = np.empty((9, 2 * LANES), np.float32)
        for begin, end in pairwise(bounds):
            multiply(
                a.reshape(-1), begin, 70, 1, b.reshape(-1), begin * 2 * LANES, 2 * LANES, out.reshape(-1), 0, 2 * LANES,
                9, 2 * LANES, end - begin, begin > 0,
            )  # fmt: skip
        found.append(out.tobytes())
    assert found[0] == found[1]


def learned() -> list[Tensor]:
    """Costs and gradients of a step whose sizes fill no vector."""
    queries, candidates, positive = (torch.from_numpy(random(*shape)) for shape in ((37, 50), (4 * 131, 50), (37,)))
    for tensor in (queries, candidates, positive):
        tensor.requires_grad_()
    masked = torch.tensor([[0, 3], [12, 130], [36, 0]])
    costs: Tensor = SoftmaxOfProducts.apply(  # type: ignore[no-untyped-call]
        queries, candidates, positive, masked, 4, Gradient([len(candidates)]), 0
    )
    (costs * torch.arange(37)).sum().backward()  # type: ignore[no-untyped-call]
    return [costs.detach(), *(it.grad for it in (queries, candidates, positive) if it.grad is not None)]


def digest() -> str:
    return hashlib.sha256(b"".join(it.numpy().tobytes() for it in learned())).hexdigest()


def test_threads_do_not_change_a_bit() -> None:
    before, found = torch.get_num_threads(), set()
    try:
        for num_threads in (1, 2, 3, 9):
            torch.set_num_threads(num_threads)
            found.add(digest())
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="NUMBA_CPU_NAME=haswell is a processor of x86-64")
def test_vectors_of_256_bits_give_the_bits_of_any_others() -> None:
    environment = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}
    code = "import test_products; print(test_products.LANES, test_products.digest())"
    answer = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=os.path.dirname(__file__), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert answer.stdout.split() == ["8", digest()]


def test_what_the_kernels_cannot_index_is_refused() -> None:
    queries, candidates, positive = torch.ones(4, 6), torch.ones(10, 6), torch.ones(4)
    for wrong, message in (
        (torch.ones(4, 5), r"\(4, 5\); give float32 with the 6 columns"),
        (queries.double(), "float64"),
    ):
        with pytest.raises(UsageError, match=message):
            SoftmaxOfProducts.apply(wrong, candidates, positive, None, 2, Gradient([10]), 0)  # type: ignore[no-untyped-call]
    with pytest.raises(UsageError, match="10 candidates cannot be shared equally among 3 chunks"):
        SoftmaxOfProducts.apply(queries, candidates, positive, None, 3, Gradient([10]), 0)  # type: ignore[no-untyped-call]


def test_padding_is_to_whole_vectors() -> None:
    assert [padded(size) for size in (0, 1, LANES, LANES + 1)] == [0, LANES, LANES, 2 * LANES]
