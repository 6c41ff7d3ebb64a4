"""What each model computes, against its formula written as a loop over samples, features and pairs, in float64."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from foresee.models import DLRM, NCF, DCNv2, DeepFM, LogShape, WideAndDeep
from foresee.models.dcn_v2 import CrossLayer
from foresee.models.layers import PairDots, sum_of_pair_products

SHAPE = LogShape(num_dense=3, num_features=4)
DIM = 5


def random_input(width: int, shape: LogShape = SHAPE) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    dense = torch.randn(6, shape.num_dense, dtype=torch.float64)
    return dense, torch.randn(6, shape.num_features, width, dtype=torch.float64)


def naive_dots(vectors: Tensor) -> Tensor:
    """[samples, vectors, dim] -> [samples, pairs], pair by pair."""
    pairs = list(combinations(range(vectors.shape[1]), 2))
    rows = [[sample[i] @ sample[j] for i, j in pairs] for sample in vectors]
    return torch.stack([torch.stack(row) for row in rows])


@settings(max_examples=40, deadline=None)
@given(samples=st.integers(1, 4), num_vectors=st.integers(2, 6), dim=st.integers(1, 5), seed=st.integers(0, 99))
def test_pair_dots_and_their_gradient_equal_the_loop(samples: int, num_vectors: int, dim: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(samples, num_vectors, dim, dtype=torch.float64, generator=generator).requires_grad_()
    weights = torch.randn(num_vectors * (num_vectors - 1) // 2, dtype=torch.float64, generator=generator)
    ours, naive = PairDots(num_vectors)(vectors), naive_dots(vectors)
    torch.testing.assert_close(ours, naive)
    (our_gradient,) = torch.autograd.grad((ours * weights).sum(), vectors)
    (naive_gradient,) = torch.autograd.grad((naive * weights).sum(), vectors)
    torch.testing.assert_close(our_gradient, naive_gradient)


def test_one_vector_has_no_pairs() -> None:
    assert PairDots(1)(torch.randn(3, 1, 4)).shape == (3, 0)


@settings(max_examples=40, deadline=None)
@given(samples=st.integers(1, 4), num_vectors=st.integers(1, 6), dim=st.integers(1, 5), seed=st.integers(0, 99))
def test_sum_of_pair_products_equals_the_double_sum(samples: int, num_vectors: int, dim: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(samples, num_vectors, dim, dtype=torch.float64, generator=generator)
    naive = torch.zeros(samples, dim, dtype=torch.float64)
    for i, j in combinations(range(num_vectors), 2):
        naive += vectors[:, i] * vectors[:, j]
    torch.testing.assert_close(sum_of_pair_products(vectors), naive)


def test_dlrm_is_its_formula() -> None:
    model = DLRM(SHAPE, DIM, bottom=[8], top=[8]).double()
    dense, embeddings = random_input(DIM)
    from_dense = model.bottom(dense)
    dots = naive_dots(torch.cat((from_dense.unsqueeze(1), embeddings), dim=1))
    expected = model.top(torch.cat((from_dense, dots), dim=1)).squeeze(1)
    torch.testing.assert_close(model(dense, embeddings), expected)


def test_dlrm_ends_in_the_embedding_width_and_in_one_logit() -> None:
    model = DLRM(SHAPE, DIM, bottom=[8, 7], top=[6])
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    pairs = 5 * 4 // 2
    widths = [(linear.in_features, linear.out_features) for linear in linears]
    assert widths == [(3, 8), (8, 7), (7, DIM), (DIM + pairs, 6), (6, 1)]


def test_dlrm_without_dense_features_learns_one_vector_in_their_place() -> None:
    shape = LogShape(num_dense=0, num_features=3)
    model = DLRM(shape, DIM, top=[8]).double()
    dense, embeddings = random_input(DIM, shape)
    constant = model.bottom(dense)
    assert constant.shape == (6, DIM)
    assert bool((constant == constant[0]).all())
    dots = naive_dots(torch.cat((constant.unsqueeze(1), embeddings), dim=1))
    torch.testing.assert_close(model(dense, embeddings), model.top(torch.cat((constant, dots), dim=1)).squeeze(1))


@pytest.mark.parametrize("num_dense", [0, 3])
def test_deepfm_is_its_formula(num_dense: int) -> None:
    shape = LogShape(num_dense=num_dense, num_features=4)
    model = DeepFM(shape, DIM, deep=[8]).double()
    nn.init.normal_(model.first_order.bias)
    if num_dense:
        nn.init.normal_(model.first_order.dense_weights)
    dense, embeddings = random_input(DIM + 1, shape)
    vectors, weights = embeddings[:, :, :DIM], embeddings[:, :, DIM]
    expected = []
    for x, vector, weight in zip(dense, vectors, weights, strict=True):
        first = model.first_order.bias + (x * model.first_order.dense_weights).sum() + weight.sum()
        fields = [*(x[j] * model.dense_vectors[j] for j in range(num_dense)), *vector]
        second = sum(one @ two for one, two in combinations(fields, 2))
        expected.append(first + second + model.deep(torch.cat((x, vector.flatten()))).squeeze())
    torch.testing.assert_close(model(dense, embeddings), torch.stack(expected))


def test_wide_and_deep_is_its_formula() -> None:
    model = WideAndDeep(SHAPE, DIM, deep=[8]).double()
    nn.init.normal_(model.wide.dense_weights)
    nn.init.normal_(model.wide.bias)
    dense, embeddings = random_input(DIM + 1)
    expected = []
    for x, row in zip(dense, embeddings, strict=True):
        wide = model.wide.bias + (x * model.wide.dense_weights).sum() + row[:, -1].sum()
        expected.append(wide + model.deep(torch.cat((x, row[:, :-1].flatten()))).squeeze())
    torch.testing.assert_close(model(dense, embeddings), torch.stack(expected))


def weights_of_cross(layer: CrossLayer) -> tuple[Tensor, Tensor]:
    """W and b of the formula, whatever way the layer keeps them."""
    if isinstance(layer.mix, nn.Linear):
        return layer.mix.weight, layer.mix.bias
    assert isinstance(layer.mix, nn.Sequential)
    thin, wide = layer.mix
    assert isinstance(thin, nn.Linear)
    assert isinstance(wide, nn.Linear)
    return wide.weight @ thin.weight, wide.bias


@pytest.mark.parametrize("structure", ["stacked", "parallel"])
@pytest.mark.parametrize("rank", [None, 2])
def test_dcn_v2_is_its_formula(rank: int | None, structure: str) -> None:
    model = DCNv2(SHAPE, DIM, num_cross=3, rank=rank, deep=[8], structure=structure).double()
    dense, embeddings = random_input(DIM)
    expected = []
    for x_dense, rows in zip(dense, embeddings, strict=True):
        start = x = torch.cat((x_dense, rows.flatten()))
        for layer in model.cross:
            assert isinstance(layer, CrossLayer)
            matrix, bias = weights_of_cross(layer)
            x = start * (matrix @ x + bias) + x
        features = model.deep(x) if structure == "stacked" else torch.cat((x, model.deep(start)))
        expected.append(model.last(features).squeeze())
    torch.testing.assert_close(model(dense, embeddings), torch.stack(expected))


def test_dcn_v2_of_low_rank_has_fewer_weights() -> None:
    full, low = (sum(p.numel() for p in CrossLayer(100, rank).parameters()) for rank in (None, 4))
    assert (full, low) == (100 * 100 + 100, 2 * 4 * 100 + 100)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_cross": 0}, "num_cross is 0"),
        ({"rank": 0}, "rank is 0"),
        ({"rank": "8"}, "rank is '8'"),
        ({"structure": "both"}, "structure is 'both': give one of stacked, parallel"),
    ],
)
def test_dcn_v2_refuses_wrong_options(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DCNv2(SHAPE, DIM, **options)  # type: ignore[arg-type]


def test_ncf_of_two_features_is_the_papers() -> None:
    shape = LogShape(num_dense=0, num_features=2)
    model = NCF(shape, DIM, deep=[8, 4]).double()
    _, embeddings = random_input(2 * DIM, shape)
    user, item = embeddings[:, 0], embeddings[:, 1]
    product = user[:, :DIM] * item[:, :DIM]
    deep = model.deep(torch.cat((user[:, DIM:], item[:, DIM:]), dim=1))
    expected = model.last(torch.cat((product, deep), dim=1)).squeeze(1)
    torch.testing.assert_close(model(torch.zeros(6, 0, dtype=torch.float64), embeddings), expected)


def test_ncf_of_more_features_sums_the_products_of_all_pairs() -> None:
    model = NCF(SHAPE, DIM, deep=[8]).double()
    dense, embeddings = random_input(2 * DIM)
    factors = embeddings[:, :, :DIM]
    products = sum((factors[:, i] * factors[:, j] for i, j in combinations(range(4), 2)), start=torch.zeros(6, DIM))
    deep = model.deep(torch.cat((dense, embeddings[:, :, DIM:].flatten(1)), dim=1))
    torch.testing.assert_close(model(dense, embeddings), model.last(torch.cat((products, deep), dim=1)).squeeze(1))
