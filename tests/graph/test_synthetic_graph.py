"""The synthetic graph follows its law, and the best ranks are those that brute force finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import foresee
from foresee.arrays import Int64
from foresee.errors import DataError
from foresee.graph.folder import GraphFolder
from foresee.graph.options import GraphOptions
from foresee.graph.synthetic import Planted, Synthetic, synthetic_graph

laws = st.builds(
    Planted,
    num_nodes=st.integers(2, 60),
    num_relations=st.integers(0, 4),
    communities=st.integers(1, 2),
    inside=st.sampled_from([0.0, 0.3, 0.8]),
    exponent=st.sampled_from([0.0, 0.8, 1.0, 1.5]),
    seed=st.integers(0, 5),
)


def every(law: Planted, head: int, relation: int) -> tuple[Int64, Int64, Int64]:
    """One head and relation with every node as tail."""
    nodes: Int64 = np.arange(law.num_nodes)
    return np.full_like(nodes, head), np.full_like(nodes, relation), nodes


@given(law=laws, draw=st.data())
def test_tails_are_a_distribution_and_ranks_follow_it(law: Planted, draw: st.DataObject) -> None:
    head = draw.draw(st.integers(0, law.num_nodes - 1))
    relation = draw.draw(st.integers(0, max(0, law.num_relations - 1)))
    scores = law.tail_score(*every(law, head, relation))
    assert scores.sum() == pytest.approx(1.0)
    ranks = law.tail_rank(*every(law, head, relation))
    for tail in range(law.num_nodes):
        # The last bits of two sums may differ: nearly equal scores may stand either way.
        low, high = (scores > scores[tail] * (1 + 1e-9)).sum(), (scores > scores[tail] * (1 - 1e-9)).sum()
        assert 1 + low <= ranks[tail] <= 1 + high


@given(law=laws, draw=st.data())
def test_ranks_of_heads_follow_their_scores(law: Planted, draw: st.DataObject) -> None:
    tail = draw.draw(st.integers(0, law.num_nodes - 1))
    relation = draw.draw(st.integers(0, max(0, law.num_relations - 1)))
    tails, relations, heads = every(law, tail, relation)
    scores, ranks = law.head_score(heads, relations, tails), law.head_rank(heads, relations, tails)
    for head in range(law.num_nodes):
        low, high = (scores > scores[head] * (1 + 1e-9)).sum(), (scores > scores[head] * (1 - 1e-9)).sum()
        assert 1 + low <= ranks[head] <= 1 + high


def test_edges_are_drawn_by_the_law(tmp_path: Path) -> None:
    source = Synthetic(num_nodes=30, num_edges=200_000, num_relations=2, communities=3)
    counts = np.zeros((30, 2, 30))
    for chunk in source.edges(lambda bad: None):
        np.add.at(counts, (chunk.heads, chunk.relations, chunk.tails), 1)
    law = source.planted
    for head, relation in ((0, 0), (4, 1), (29, 0)):
        drawn = counts[head, relation]
        expected = law.tail_score(*every(law, head, relation)) * drawn.sum()
        assert ((drawn - expected) ** 2 / expected).sum() < 70  # chi square with 29 degrees of freedom: p below 1e-4


def test_best_filtered_scores_are_those_of_brute_force(tmp_path: Path) -> None:
    source = Synthetic(num_nodes=40, num_edges=600, num_relations=2, communities=4, graph_seed=3)
    graph = synthetic_graph(source, tmp_path / "graph", GraphOptions(seed=1)).graph
    given_numbers = np.array(graph.node_names().to_pylist())
    true = {tuple(edge) for split in graph.num_edges for edge in graph.edges(split).tolist()}
    reciprocal, raw = [], []
    for head, relation, tail in graph.edges("valid").tolist():
        for side in (0, 2):
            candidates = np.array([[head, relation, tail]] * graph.num_nodes)
            candidates[:, side] = np.arange(graph.num_nodes)
            heads, tails = given_numbers[candidates[:, 0]], given_numbers[candidates[:, 2]]
            score = source.planted.head_score if side == 0 else source.planted.tail_score
            scores = score(heads, candidates[:, 1], tails)
            own = scores[(head, relation, tail)[side]]
            known = np.array([tuple(candidate) in true for candidate in candidates.tolist()])
            raw.append(1 / (1 + (scores > own).sum()))
            reciprocal.append(1 / (1 + ((scores > own) & ~known).sum()))
    assert graph.best["valid_mrr"] == pytest.approx(np.mean(raw), rel=1e-6)
    assert graph.best["valid_mrr_filtered"] == pytest.approx(np.mean(reciprocal), rel=1e-6)


def test_equal_arguments_give_equal_graphs_with_labels_and_features(tmp_path: Path) -> None:
    source = Synthetic(num_nodes=3000, num_edges=9000, communities=5, labels=True, num_features=16, feature_noise=1.0)
    one, other = (synthetic_graph(source, tmp_path / name).graph for name in ("one", "other"))
    assert one.digest == other.digest
    assert (one.num_classes, one.num_features) == (5, 16)
    given_numbers = np.array(one.node_names().to_pylist())
    assert (one.labels() == given_numbers % 5).mean() == pytest.approx(one.best["accuracy"], abs=0.02)
    features = one.features()
    assert features is not None
    centres = np.stack([features[given_numbers % 5 == community].mean(axis=0) for community in range(5)])
    nearest = ((features[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == given_numbers % 5).mean() > 0.9


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(DataError, match=r"communities=9 cannot be used; give 1 to 5"):
        Synthetic(num_nodes=5, communities=9)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("graph", "synthetic", "--out", tmp_path / "graph", "--num-nodes", 500, "--num-edges", 4000)
    assert foresee(*arguments, monkeypatch=monkeypatch) == 0
    assert "nobody can do better on average than valid_mrr 0." in capsys.readouterr().out
    assert GraphFolder.open(tmp_path / "graph").num_nodes == 500
