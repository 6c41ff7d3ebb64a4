"""The sampler: a worked example, invariants on random graphs, and layers over a sample that equal the whole graph."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.arrays import Float64, Int32, Int64
from foresee.errors import ConfigError, UsageError
from foresee.graph.neighbors import Adjacency, Neighbours
from foresee.graph.sampling import ALL, Direction, Sample, Sampler


def adjacency(num_nodes: int, own: Int64, other: Int64, relations: Int32) -> Adjacency:
    order = np.lexsort((relations, other, own))
    offsets = np.searchsorted(own[order], np.arange(num_nodes + 1)).astype(np.int64)
    return Adjacency(offsets, other[order].astype(np.int32), relations[order])


def neighbours_of(num_nodes: int, edges: list[tuple[int, int, int]]) -> Neighbours:
    """Of (head, relation, tail) triples."""
    heads, relations, tails = np.array(edges, np.int64).reshape(-1, 3).T
    kinds = relations.astype(np.int32)
    return Neighbours(adjacency(num_nodes, tails, heads, kinds), adjacency(num_nodes, heads, tails, kinds))


def segments(sample: Sample) -> list[list[tuple[int, int, bool]]]:
    """For each node with neighbours: (neighbour, relation, outgoing) of its sample."""
    assert sample.relations is not None
    outgoing = np.zeros(len(sample.neighbours), bool) if sample.outgoing is None else sample.outgoing
    columns = (sample.neighbours.tolist(), sample.relations.tolist(), outgoing.tolist())
    drawn = list(zip(*columns, strict=True))
    bounds = [*sample.neighbour_offsets.tolist(), len(drawn)]
    return [drawn[start:end] for start, end in pairwise(bounds)]


def test_the_worked_example() -> None:
    edges = [(2, 0, 0), (3, 0, 0), (3, 0, 1), (4, 0, 1), (0, 0, 2), (5, 0, 3), (1, 0, 4)]
    sample = Sampler(neighbours_of(6, edges), [ALL, ALL]).sample(np.array([0, 1]))
    assert sample.nodes.tolist() == [5, 2, 3, 4, 0, 1]
    assert sample.node_offsets.tolist() == [0, 1, 4, 6]
    assert sample.neighbour_offsets.tolist() == [0, 1, 2, 3, 5]
    assert sample.neighbours.tolist() == [0, 5, 1, 2, 3, 3, 4]
    assert sample.rows.tolist() == [4, 0, 5, 1, 2, 2, 3]
    inner = sample.inner()
    assert inner.nodes.tolist() == [2, 3, 4, 0, 1]
    assert inner.node_offsets.tolist() == [0, 3, 5]
    assert inner.neighbour_offsets.tolist() == [0, 2]
    assert inner.rows.tolist() == [0, 1, 1, 2]
    assert inner.inner().nodes.tolist() == [0, 1]


nodes = st.integers(0, 11)
graphs = st.lists(st.tuples(nodes, st.integers(0, 2), nodes), max_size=60)
fanouts = st.lists(st.sampled_from([1, 2, 3, ALL]), min_size=1, max_size=3)
targets = st.lists(nodes, max_size=6, unique=True)
directions = st.sampled_from(["incoming", "outgoing", "both"])


@given(edges=graphs, fanouts=fanouts, targets=targets, direction=directions, seed=st.integers(0, 3))
def test_invariants(
    edges: list[tuple[int, int, int]], fanouts: list[int], targets: list[int], direction: Direction, seed: int
) -> None:
    graph = neighbours_of(12, edges)
    sample = Sampler(graph, fanouts, direction=direction, seed=seed).sample(np.array(targets, np.int64), 5)
    assert len(set(sample.nodes.tolist())) == len(sample.nodes)
    assert np.array_equal(sample.nodes[sample.rows], sample.neighbours)
    assert sample.nodes[len(sample.nodes) - len(targets) :].tolist() == targets
    assert len(sample.neighbour_offsets) == len(sample.nodes) - sample.first
    assert sample.num_hops == len(fanouts)
    assert (np.diff(sample.node_offsets) >= 0).all()
    incoming = Counter((tail, (head, relation, False)) for head, relation, tail in edges)
    outgoing = Counter((head, (tail, relation, direction == "both")) for head, relation, tail in edges)
    true = {"incoming": incoming, "outgoing": outgoing, "both": incoming + outgoing}[direction]
    for place, (node, drawn) in enumerate(zip(sample.nodes[sample.first :].tolist(), segments(sample), strict=True)):
        hop = sample.num_hops - int(np.searchsorted(sample.node_offsets, place + sample.first, side="right")) + 1
        for side in (False, True):
            some = [entry for entry in drawn if entry[2] is side]
            degree = sum(count for (own, entry), count in true.items() if own == node and entry[2] is side)
            assert len(some) == (degree if fanouts[hop] == ALL else min(degree, fanouts[hop]))
            for entry, count in Counter(some).items():
                assert count <= true[node, entry], "each edge is drawn once at most"


@given(edges=graphs, one=targets, other=targets, step=st.integers(0, 5))
def test_what_a_node_draws_follows_from_seed_step_and_node(
    edges: list[tuple[int, int, int]], one: list[int], other: list[int], step: int
) -> None:
    graph = neighbours_of(12, edges)
    sampler = Sampler(graph, [2], seed=9)
    drawn = []
    for batch in (one, other):
        sample = sampler.sample(np.array(batch, np.int64), 1, step)
        drawn.append(dict(zip(batch, segments(sample), strict=True)))
    again = Sampler(graph, [2], seed=9).sample(np.array(one, np.int64), 1, step)
    assert segments(again) == list(drawn[0].values())
    for node in set(one) & set(other):
        assert drawn[0][node] == drawn[1][node]


def test_other_steps_and_seeds_draw_otherwise() -> None:
    graph = neighbours_of(101, [(head, 0, 0) for head in range(1, 101)])
    drawn = [
        Sampler(graph, [10], seed=seed).sample(np.array([0]), step).neighbours.tolist()
        for seed, step in ((0, 0), (0, 1), (1, 0))
    ]
    assert len({tuple(sorted(some)) for some in drawn}) == 3


def test_subsets_are_uniform() -> None:
    """Ten pairs among five neighbours, 5,000 draws: every pair about 500 times."""
    sampler = Sampler(neighbours_of(6, [(head, 0, 0) for head in range(1, 6)]), [2])
    counts = Counter(tuple(sorted(sampler.sample(np.array([0]), step).neighbours.tolist())) for step in range(5_000))
    assert len(counts) == 10
    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < 34  # nine degrees of freedom: p above 1e-4


def mean_layers(sample: Sample, values: Float64, num_layers: int) -> Float64:
    """Each layer: own value plus half the mean of the neighbours'."""
    for _ in range(num_layers):
        ends = np.append(sample.neighbour_offsets[1:], len(sample.rows))
        sums = np.add.reduceat(np.append(values[sample.rows], 0.0), sample.neighbour_offsets)
        counts = ends - sample.neighbour_offsets
        values = values[sample.first :] + 0.5 * np.where(counts > 0, sums, 0) / np.maximum(counts, 1)
        sample = sample.inner()
    return values


@given(edges=graphs, targets=targets.filter(bool), num_layers=st.integers(1, 3), direction=directions)
def test_layers_over_all_neighbours_equal_the_whole_graph(
    edges: list[tuple[int, int, int]], targets: list[int], num_layers: int, direction: Direction
) -> None:
    sample = Sampler(neighbours_of(12, edges), [ALL] * num_layers, direction=direction).sample(np.array(targets))
    values = np.random.default_rng(0).normal(size=12)
    found = mean_layers(sample, values[sample.nodes], num_layers)
    for _ in range(num_layers):
        around: list[list[float]] = [[] for _ in range(12)]
        for head, _, tail in edges:
            if direction != "outgoing":
                around[tail].append(values[head])
            if direction != "incoming":
                around[head].append(values[tail])
        values = values + 0.5 * np.array([np.mean(some) if some else 0.0 for some in around])
    assert found == pytest.approx(values[targets])


def test_only_partitions_in_the_buffer_are_sampled() -> None:
    edges = [(0, 0, 1), (2, 0, 1), (4, 0, 1), (4, 0, 5), (1, 0, 0)]
    inside = neighbours_of(6, edges).inside(np.array([0, 2], np.int32), 2)
    sample = Sampler(inside, [ALL, ALL]).sample(np.array([1]))
    assert sample.neighbours.tolist()[-2:] == [0, 4]
    assert set(sample.nodes.tolist()) == {0, 1, 4}


def test_marks_begin_anew_when_they_run_out() -> None:
    sampler = Sampler(neighbours_of(3, [(1, 0, 0), (2, 0, 1)]), [ALL, ALL])
    before = sampler.sample(np.array([0]))
    sampler._batch = (1 << 31) - 1
    after = sampler.sample(np.array([0]))
    assert (after.nodes.tolist(), after.rows.tolist()) == (before.nodes.tolist(), before.rows.tolist())


def test_what_cannot_be_sampled_is_refused() -> None:
    graph = neighbours_of(3, [(1, 0, 0)])
    with pytest.raises(UsageError, match="a target stands twice; give every node once"):
        Sampler(graph, [1]).sample(np.array([1, 1]))
    with pytest.raises(ConfigError, match=r"the fanouts \[3, 0\] cannot be used; give 1 or more, or all"):
        Sampler(graph, [3, 0])
    with pytest.raises(ConfigError, match="the direction 'up' is not known; use one of incoming, outgoing, both"):
        Sampler(graph, [3], direction="up")  # type: ignore[arg-type]
