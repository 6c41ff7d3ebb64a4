"""Ranks against a count by hand, ties said and handled, blocks and samples that change nothing or are seeded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from foresee.arrays import Int64
from foresee.errors import DataError
from foresee.graph.decoders import DECODERS
from foresee.graph.evaluation import EvaluationOptions, evaluate_links, evaluate_nodes, node_metrics
from foresee.graph.model import LinkModel, Objective, softmax
from toy_graph import ToyGraph, toy_graph


class Table:
    """Vectors in memory that remember how many were asked for at once."""

    def __init__(self, vectors: Tensor) -> None:
        self._vectors, self.num_nodes, self.most = vectors, len(vectors), 0

    def of(self, nodes: Int64) -> Tensor:
        self.most = max(self.most, len(nodes))
        return self._vectors[torch.from_numpy(nodes)]


def model_of(name: str = "distmult", num_relations: int = 3, dim: int = 8) -> LinkModel:
    torch.manual_seed(1)
    decoder = DECODERS[name](dim, num_relations)
    for weights in decoder.parameters():
        nn.init.normal_(weights)
    return LinkModel(decoder, Objective(loss=softmax, options={}))


def by_hand(model: LinkModel, vectors: Tensor, graph: ToyGraph, split: str, *, filtered: bool, share: float) -> Any:
    """One edge and one side at a time, everything in memory."""
    known = {tuple(edge) for edges in graph.splits.values() for edge in edges.tolist()}
    decoder: Any = model.decoder
    ranks = []
    with torch.no_grad():
        for heads in (False, True):
            for head, relation, tail in graph.splits[split].tolist():
                end, right = (tail, head) if heads else (head, tail)
                query = decoder.query(vectors[end : end + 1], torch.tensor([relation]), heads=heads)
                scores = decoder.compare(query, vectors)[0]
                rank = 1.0
                for node in range(len(vectors)):
                    edge = (node, relation, tail) if heads else (head, relation, node)
                    if node == right or (filtered and edge in known):
                        continue
                    rank += float(scores[node] > scores[right]) + share * float(scores[node] == scores[right])
                ranks.append(rank)
    return np.array(ranks)


@given(
    seed=st.integers(0, 30), filtered=st.booleans(), name=st.sampled_from(sorted(DECODERS)),
    queries=st.integers(1, 30), candidates=st.integers(1, 40),
)  # fmt: skip
def test_ranks_are_those_of_a_count_by_hand(
    seed: int, filtered: bool, name: str, queries: int, candidates: int
) -> None:
    graph, model = toy_graph(num_nodes=17, num_edges=150, seed=seed), model_of(name)
    vectors = torch.randn(17, 8, generator=torch.Generator().manual_seed(seed))
    options = EvaluationOptions(filtered=filtered, queries_at_once=queries, candidates_at_once=candidates, at=(1, 4))
    found = evaluate_links(model, Table(vectors), graph, "test", options)
    wanted = by_hand(model, vectors, graph, "test", filtered=filtered, share=0.5)
    assert found.num_queries == len(wanted)
    assert found.mrr == pytest.approx((1 / wanted).mean())
    assert found.mean_rank == pytest.approx(wanted.mean())
    assert found.hits == pytest.approx({1: (wanted <= 1).mean(), 4: (wanted <= 4).mean()})


def test_a_graph_of_five_nodes_by_hand() -> None:
    """Vectors on a line and a plain product: the rank of node 1 for head 4 is that of its number, less true edges."""
    train = np.array([[4, 0, 3], [4, 0, 2]], np.int32)
    graph = ToyGraph(5, 1, {"train": train, "test": np.array([[4, 0, 1]], np.int32)})
    vectors = torch.arange(5.0).unsqueeze(1)
    model = LinkModel(DECODERS["dot"](1, 1), Objective(loss=softmax, options={}))
    tails_only = EvaluationOptions(both_sides=False, at=(1, 2))
    # Tails by score: 4, 3, 2, 1, 0; 3 and 2 are edges, so node 1 comes second. Unfiltered: fourth.
    assert evaluate_links(model, Table(vectors), graph, "test", tails_only).mrr == pytest.approx(1 / 2)
    raw = evaluate_links(model, Table(vectors), graph, "test", replace(tails_only, filtered=False))
    assert raw.mrr == pytest.approx(1 / 4)
    assert raw.hits == {1: 0.0, 2: 0.0}
    # Heads of tail 1, whose score is that of the head: node 4 comes first. Both sides: the mean of both.
    assert evaluate_links(model, Table(vectors), graph, "test").mrr == pytest.approx((1 / 2 + 1) / 2)


@pytest.mark.parametrize("name", ["distmult", "complex", "transe", "dot"])
def test_a_model_that_knows_nothing_is_never_first(name: str) -> None:
    graph = toy_graph(num_nodes=21)
    vectors = Table(torch.ones(21, 8))
    plain = EvaluationOptions(filtered=False, candidates_at_once=4)
    realistic = evaluate_links(model_of(name), vectors, graph, "test", plain)
    pessimistic = evaluate_links(model_of(name), vectors, graph, "test", replace(plain, ties="pessimistic"))
    assert realistic.mean_rank == 11.0
    assert pessimistic.mean_rank == 21.0
    assert "ties pessimistic" in pessimistic.in_words()


def test_equal_vectors_tie_whatever_the_block() -> None:
    """Scores of right ends and of candidates come from the same arithmetic: d = 50 sums would round apart."""
    graph = toy_graph(num_nodes=300, num_edges=2000)
    half = torch.randn(150, 50)
    found = evaluate_links(
        model_of(dim=50), Table(torch.cat([half, half])), graph, "test",
        EvaluationOptions(filtered=False, candidates_at_once=64, at=(1,)),
    )  # fmt: skip
    assert found.hits[1] == 0.0  # everybody has a twin, so the best rank is one and a half


def test_memory_is_bounded_and_blocks_change_nothing() -> None:
    graph, vectors = toy_graph(num_nodes=200), torch.randn(200, 8)
    table = Table(vectors)
    small = EvaluationOptions(queries_at_once=8, candidates_at_once=16)
    assert evaluate_links(model_of(), table, graph, "valid", small) == evaluate_links(
        model_of(), Table(vectors), graph, "valid"
    )
    assert table.most <= 16


def test_a_sample_is_drawn_from_the_seed() -> None:
    graph, table = toy_graph(num_nodes=200), Table(torch.randn(200, 8))
    sampled = EvaluationOptions(num_candidates=20, degree_share=0.5)
    once, again = (evaluate_links(model_of(), table, graph, "test", sampled) for _ in range(2))
    other = evaluate_links(model_of(), table, graph, "test", replace(sampled, seed=1))
    whole = evaluate_links(model_of(), table, graph, "test")
    assert once == again
    assert once != other
    assert once.mean_rank < whole.mean_rank
    assert evaluate_links(model_of(), table, graph, "test", replace(sampled, edges_max=5)).num_queries == 10


def test_dropout_is_off_and_the_generator_stays() -> None:
    """Published code evaluates with dropout on."""
    graph, vectors = toy_graph(), torch.randn(60, 8)

    class Forgetful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.drop = model_of().decoder, nn.Dropout(0.5)

        def query(self, known: Tensor, relations: Tensor, *, heads: bool) -> Any:
            inner: Any = self.inner
            return self.drop(inner.query(known, relations, heads=heads))

        def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
            return queries @ candidates.T

    model = LinkModel(Forgetful(), Objective(loss=softmax, options={}))
    before = torch.get_rng_state()
    assert evaluate_links(model, Table(vectors), graph, "test") == evaluate_links(
        model_of(), Table(vectors), graph, "test"
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training


def test_a_split_that_is_not_there_is_refused() -> None:
    graph = ToyGraph(5, 1, {"train": np.array([[0, 0, 1]], np.int32)})
    with pytest.raises(DataError, match="no edges for test; it has train"):
        evaluate_links(model_of(), Table(torch.zeros(5, 8)), graph, "test")


def test_classes_of_nodes() -> None:
    found = node_metrics(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 0]), 4)
    # Class 0: one of 2 given and 2 there, F1 1/2; class 1: 2 of 2 given and 3 there, 4/5; class 2: 0; nobody has 3.
    assert found.accuracy == pytest.approx(3 / 5)
    assert found.macro_f1 == pytest.approx((1 / 2 + 4 / 5 + 0) / 3)

    class Labelled:
        num_classes = 2

        def nodes(self, split: str) -> Int64:
            return np.array([1, 3, 5])

        def labels(self) -> Int64:
            return np.array([-1, 0, -1, 1, -1, 1])

    def logits(nodes: Int64) -> Tensor:
        return torch.eye(2)[torch.from_numpy((nodes > 1).astype(np.int64))]

    assert evaluate_nodes(logits, Labelled(), "test", nodes_at_once=2).accuracy == 1.0
