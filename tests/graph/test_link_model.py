"""Decoders, losses and the model of edges against formulas written out, and the pitfalls of published code.

Distances count against an edge; padded chunks count for nothing; relations of the other side are turned round or have a
table of their own; masked negatives count for nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from foresee.arrays import Int64
from foresee.errors import ConfigError
from foresee.graph.decoders import DECODERS, ComplEx, DistMult, Dot, RotatE, TransE
from foresee.graph.examples import LinkItem
from foresee.graph.model import LOSSES, LinkModel, Objective, logistic, margin, softmax

DIM, RELATIONS = 6, 4


def complex_of(vectors: Tensor) -> Tensor:
    real, imaginary = vectors.chunk(2, -1)
    return torch.complex(real, imaginary)


def written_out(name: str, head: Tensor, relation: Tensor, tail: Tensor) -> float:
    """The papers' formulas, one edge at a time."""
    match name:
        case "dot":
            return float((head * tail).sum())
        case "distmult":
            return float((head * relation * tail).sum())
        case "complex":
            return float((complex_of(head) * complex_of(relation) * complex_of(tail).conj()).sum().real)
        case "transe":
            return -float((head + relation - tail).norm())
        case _:
            turn = torch.polar(torch.ones_like(relation), relation)
            return -float((complex_of(head) * turn - complex_of(tail)).abs().sum())


def made(name: str, *, inverse: bool, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    decoder: Any = DECODERS[name](DIM, RELATIONS, inverse=inverse)
    for weights in decoder.parameters():
        nn.init.normal_(weights)
    return decoder


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("name", sorted(DECODERS))
def test_a_decoder_is_its_formula(name: str, inverse: bool) -> None:
    decoder = made(name, inverse=inverse)
    heads, tails = torch.randn(2, 5, DIM).unbind()
    relations = torch.tensor([0, 1, 2, 3, 1])
    table = decoder.relations.table if hasattr(decoder, "relations") else torch.zeros(1, RELATIONS, DIM)
    table = table.detach()
    scores = decoder.compare(decoder.query(heads, relations, heads=False), tails)
    wanted = [[written_out(name, heads[i], table[0, relations[i]], tail) for tail in tails] for i in range(5)]
    torch.testing.assert_close(scores, torch.tensor(wanted), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_without_inverse_relations_both_sides_give_one_score(name: str) -> None:
    decoder = made(name, inverse=False)
    heads, tails = torch.randn(2, 5, DIM).unbind()
    relations = torch.tensor([0, 1, 2, 3, 1])
    by_tails = decoder.compare(decoder.query(heads, relations, heads=False), tails).diagonal()
    by_heads = decoder.compare(decoder.query(tails, relations, heads=True), heads).diagonal()
    torch.testing.assert_close(by_tails, by_heads, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["distmult", "complex", "transe", "rotate"])
def test_with_inverse_relations_each_side_has_a_table(name: str) -> None:
    decoder = made(name, inverse=True)
    known, relations = torch.randn(3, DIM), torch.tensor([0, 1, 2])
    decoder.query(known, relations, heads=True).sum().backward()
    gradient = decoder.relations.table.grad
    assert not gradient[0].any()
    assert gradient[1].any()


@pytest.mark.parametrize("name", ["transe", "rotate"])
def test_what_is_near_is_likely(name: str) -> None:
    """Published code had the sign of a distance wrong."""
    decoder = made(name, inverse=True)
    query = decoder.query(torch.randn(1, DIM), torch.tensor([0]), heads=False)
    near, far = decoder.compare(query, torch.cat([query + 0.01, query + 5.0]))[0]
    assert near > far


@pytest.mark.parametrize("kind", [DistMult, ComplEx, TransE, Dot])
def test_a_fresh_decoder_compares_the_ends(kind: Any) -> None:
    heads, relations = torch.randn(3, DIM), torch.tensor([0, 1, 2])
    torch.testing.assert_close(kind(DIM, RELATIONS).query(heads, relations, heads=False), heads)


@pytest.mark.parametrize("kind", [DistMult, ComplEx])
def test_relations_start_at_normal_numbers_if_asked(kind: Any) -> None:
    table = kind(64, 50, init_scale=0.01).relations.table
    assert 0.009 < table.std().item() < 0.011
    assert abs(table.mean().item()) < 0.001
    with pytest.raises(ConfigError, match="init_scale: found 0; give a number above 0"):
        kind(8, 2, init_scale=0)


def test_complex_decoders_need_an_even_width() -> None:
    for kind, name in ((ComplEx, "complex"), (RotatE, "rotate")):
        with pytest.raises(ConfigError, match=f"model.dim: {name} .*found 7; give an even number"):
            kind(7, 2)
    with pytest.raises(ConfigError, match="norm: found 3; give 1 or 2"):
        TransE(8, 2, norm=3)


def test_losses_are_their_formulas() -> None:
    positive, negative = torch.randn(4), torch.randn(4, 3)
    all_of_them = torch.cat([positive[:, None], negative], 1)
    torch.testing.assert_close(softmax(positive, negative), -all_of_them.log_softmax(1)[:, 0])
    torch.testing.assert_close(
        softmax(positive, negative, margin=math.log(3)),
        -torch.cat([all_of_them, negative, negative], 1).log_softmax(1)[:, 0],
    )
    sigmoid = torch.sigmoid
    wanted = -sigmoid(positive).log() - (1 - sigmoid(negative)).log().mean(1)
    torch.testing.assert_close(logistic(positive, negative), wanted)
    behind = (2.0 - positive[:, None] + negative).clamp(min=0).mean(1)
    torch.testing.assert_close(margin(positive, negative, margin=2.0), behind)
    weights = (negative * 0.5).softmax(1)
    wanted = -sigmoid(positive + 3).log() - (weights * (1 - sigmoid(negative + 3)).log()).sum(1)
    torch.testing.assert_close(logistic(positive, negative, margin=3.0, temperature=0.5), wanted)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_masked_negatives_count_for_nothing(name: str, temperature: float) -> None:
    options = {} if name == "softmax" else {"temperature": temperature}
    scores = torch.randn(3, 6, requires_grad=True)
    masked = scores.masked_fill(torch.tensor([False, True, True, False, True, False]), -math.inf)
    costs = LOSSES[name](scores[:, 0], masked[:, 1:], **options)
    torch.testing.assert_close(costs, LOSSES[name](scores[:, 0], scores[:, [3, 5]], **options))
    costs.sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    nothing_left = LOSSES[name](scores[:, 0], torch.full((3, 2), -math.inf), **options)
    assert torch.isfinite(nothing_left).all()


def model_of(**fields: Any) -> LinkModel:
    objective = Objective(**{"loss": softmax, "options": {}, **fields})
    return LinkModel(made("distmult", inverse=True), objective)


def one_by_one(model: LinkModel, item: LinkItem, rows: Tensor) -> Tensor:
    """Each edge alone with the negatives of its chunk."""
    num, wrong = item.num_edges, item.num_chunks * item.num_negatives
    heads, tails, wrong_tails, wrong_heads = torch.split(rows, [num, num, wrong, wrong])
    decoder: Any = model.decoder
    relations, per_chunk = torch.from_numpy(item.relations), -(-num // item.num_chunks)
    costs = []
    for i in range(num):
        place = slice(i // per_chunk * item.num_negatives, (i // per_chunk + 1) * item.num_negatives)
        cost = torch.zeros(())
        sides = ((heads, tails, wrong_tails, False), (tails, heads, wrong_heads, True))
        for known, wanted, others, is_heads in sides:
            query = decoder.query(known[i : i + 1], relations[i : i + 1], heads=is_heads)
            scores = decoder.compare(query, torch.cat([wanted[i : i + 1], others[place]]))[0]
            cost = cost - scores.log_softmax(0)[0]
        costs.append(cost)
    return torch.stack(costs)


def item_of(num_edges: int, num_chunks: int, *, masked: tuple[Int64, Int64] | None = None) -> LinkItem:
    relations = np.arange(num_edges, dtype=np.int64) % RELATIONS
    return LinkItem(relations, None, num_chunks, 5, masked)


@pytest.mark.parametrize(("num_edges", "num_chunks"), [(12, 3), (13, 3), (2, 4), (1, 1), (10, 7)])
def test_padding_counts_for_nothing(num_edges: int, num_chunks: int) -> None:
    """Published code has the scores of padding in loss and metrics."""
    model, item = model_of(), item_of(num_edges, num_chunks)
    rows = torch.randn(2 * num_edges + 2 * num_chunks * 5, DIM)
    costs = model(item, rows.unsqueeze(1))
    torch.testing.assert_close(costs, one_by_one(model, item, rows))
    assert costs.shape == (num_edges,)


@pytest.mark.parametrize("masked", [None, (np.array([[0, 1], [6, 4]]), np.empty((0, 2), np.int64))])
@pytest.mark.parametrize("name", ["distmult", "complex", "dot"])
@pytest.mark.parametrize("options", [{}, {"margin": 1.5}])
def test_the_fused_softmax_is_the_plain_one(
    name: str, masked: tuple[Int64, Int64] | None, options: dict[str, float]
) -> None:
    """Costs and gradients, of rows and of relations, with padding and masks."""
    found = []
    for products in (True, False):
        model = LinkModel(made(name, inverse=True), Objective(loss=softmax, options=options))
        model.decoder.products = products  # type: ignore[assignment]
        torch.manual_seed(3)
        rows = torch.randn(2 * 7 + 2 * 3 * 5, 1, DIM).requires_grad_()
        costs = model(item_of(7, 3, masked=masked), rows)
        (costs * torch.arange(7)).sum().backward()
        found.append([costs.detach(), rows.grad, *(it.grad for it in model.parameters())])
    for fused, plain in zip(*found, strict=True):
        torch.testing.assert_close(fused, plain, atol=1e-5, rtol=1e-4)


def test_masked_pairs_are_left_out_of_their_side() -> None:
    masked = np.array([[0, 1], [3, 4]]), np.array([[2, 0]])
    rows = torch.randn(2 * 4 + 2 * 2 * 5, DIM)
    plain = model_of()(item_of(4, 2), rows.unsqueeze(1))
    less = model_of()(item_of(4, 2, masked=masked), rows.unsqueeze(1))
    assert (less < plain).tolist() == [True, False, True, True]


def test_one_side_alone_and_penalties() -> None:
    rows, item = torch.randn(2 * 4 + 2 * 2 * 5, DIM), item_of(4, 2)
    both = model_of()(item, rows.unsqueeze(1))
    one = model_of(both_sides=False)(item, rows.unsqueeze(1))
    assert (one < both).all()
    model = model_of(n3=0.5, l2=0.25)
    decoder: Any = model.decoder
    relations = [side[torch.from_numpy(item.relations)] for side in decoder.relations.table]
    vectors = [rows[:4], *relations, rows[4:8]]
    large = sum(0.5 * (it.abs() ** 3).sum(1) + 0.25 * (it**2).sum(1) for it in vectors)
    torch.testing.assert_close(model(item, rows.unsqueeze(1)), both + large)


def test_weights_of_edges_weigh_their_costs() -> None:
    rows, plain = torch.randn(2 * 4 + 2 * 2 * 5, DIM), item_of(4, 2)
    weights = np.array([0.0, 1.0, 2.0, 0.5], np.float32)
    weighted = LinkItem(plain.relations, weights, 2, 5, None)
    model = model_of()
    torch.testing.assert_close(
        model(weighted, rows.unsqueeze(1)), model(plain, rows.unsqueeze(1)) * torch.from_numpy(weights)
    )
