"""Batches of edges: each edge once an epoch and in its state, any step first, negatives as asked, all from seeds."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.arrays import Int64
from foresee.errors import ConfigError, UsageError
from foresee.graph.batches import GraphStream, whole_graph
from foresee.graph.draws import below, key_of, shuffled
from foresee.graph.examples import LinkBatches, edges_to_train
from foresee.graph.negatives import NegativeOptions, NodeRange, draw, edges_among
from foresee.graph.orders.traversal import Traversal
from toy_graph import ToyGraph, toy_graph

SMALL = NegativeOptions(num_chunks=3, num_nodes=5)


def halves(epoch: int) -> Traversal:
    """Two states over four partitions: (0, 1, 2) and (1, 2, 3); what they share in the first. (0, 3) is never met."""
    first = np.array([(i, j) for i in range(3) for j in range(3)], np.int32)
    second = np.array([(3, 1), (1, 3), (3, 2), (2, 3), (3, 3)], np.int32)
    return Traversal(4, (np.array([0, 1, 2], np.int32), np.array([3, 1, 2], np.int32)), (first, second))


def stream_of(graph: ToyGraph, *, batch_edges: int = 32, epochs: int = 2, negatives: NegativeOptions = SMALL,
              seed: int = 0) -> GraphStream:  # fmt: skip
    traverse = (lambda epoch: whole_graph(graph.num_partitions)) if graph.num_partitions != 4 else halves
    return GraphStream(
        graph, edges_to_train(graph), traverse, LinkBatches(graph, negatives), batch_size=batch_edges, epochs=epochs,
        seed=seed, order="test",
    )  # fmt: skip


def edges_of(stream: GraphStream, step: int) -> Int64:
    batch = stream.batch(step)
    num = batch.item.num_edges
    return np.stack([batch.rows[:num], batch.item.relations, batch.rows[num : 2 * num]], 1)


def test_every_edge_comes_once_an_epoch_in_another_order() -> None:
    graph = toy_graph()
    stream = stream_of(graph, epochs=2)
    epochs = [
        np.concatenate(
            [edges_of(stream, step) for step in range(stream.num_steps) if stream.state_of(step)[0] == epoch]
        )
        for epoch in range(2)
    ]
    wanted = np.unique(graph.edges("train"), axis=0)
    for edges in epochs:
        assert np.array_equal(np.unique(edges, axis=0), wanted)
        assert len(edges) == len(wanted)
    assert not np.array_equal(epochs[0], epochs[1])


def test_batches_are_of_nearly_equal_size() -> None:
    stream = stream_of(toy_graph(num_edges=400), batch_edges=33, epochs=1)
    sizes = [stream.batch(step).item.num_edges for step in range(stream.num_steps)]
    assert max(sizes) <= 33
    assert max(sizes) - min(sizes) <= 1


def test_a_state_trains_the_edges_of_its_buckets() -> None:
    graph = replace(toy_graph(num_edges=600), num_partitions=4)
    stream = stream_of(graph, epochs=1)
    rows = graph.partition_rows
    for step in range(stream.num_steps):
        _, state = stream.state_of(step)
        buckets = {tuple(it) for it in halves(0).buckets[state].tolist()}
        met = edges_of(stream, step) // [rows, 1, rows]
        assert {(int(head), int(tail)) for head, _, tail in met} <= buckets
    trained = sum(stream.batch(step).item.num_edges for step in range(stream.num_steps))
    apart = graph.edges("train") // [rows, 1, rows]
    never = {(0, 3), (3, 0)}
    assert trained == sum((int(head), int(tail)) not in never for head, _, tail in apart)


@given(step=st.integers(0, 20), seed=st.integers(0, 5))
def test_any_step_can_be_asked_for_first(step: int, seed: int) -> None:
    graph = toy_graph()
    stream, other = stream_of(graph, seed=seed), stream_of(graph, seed=seed)
    step %= stream.num_steps
    whole = list(stream.batches())[step]
    assert whole.rows.tobytes() == other.batch(step).rows.tobytes()
    assert whole.rows.tobytes() == next(iter(other.batches(step))).rows.tobytes()
    assert stream.digest == other.digest
    assert stream_of(graph, seed=seed + 1).digest != stream.digest
    assert stream_of(graph, negatives=replace(SMALL, source="pool"), seed=seed).digest != stream.digest


def test_a_step_that_is_not_there_is_refused() -> None:
    stream = stream_of(toy_graph())
    with pytest.raises(UsageError, match=f"step {stream.num_steps} is not one of"):
        stream.batch(stream.num_steps)
    with pytest.raises(UsageError, match="step -1"):
        list(stream.batches(-1))


def test_weights_travel_with_their_edges() -> None:
    graph = toy_graph()
    weights = np.arange(len(graph.splits["train"]), dtype=np.float32)
    graph = replace(graph, train_weights=weights)
    stream = stream_of(graph, epochs=1)
    by_edge = {tuple(edge): weight for edge, weight in zip(graph.splits["train"].tolist(), weights, strict=True)}
    for step in range(stream.num_steps):
        found = stream.batch(step).item.weights
        assert [by_edge[tuple(edge)] for edge in edges_of(stream, step).tolist()] == found.tolist()


def wrong_nodes(stream: GraphStream, step: int) -> tuple[Int64, Int64]:
    batch = stream.batch(step)
    first, second = batch.rows[2 * batch.item.num_edges :].reshape(2, 3, 5)
    return first, second


def test_negatives_of_the_buffer_are_in_it() -> None:
    graph = replace(toy_graph(num_nodes=59, num_edges=600), num_partitions=4)
    stream = stream_of(graph, negatives=replace(SMALL, source="buffer"))
    seen = set()
    for step in range(stream.num_steps):
        _, state = stream.state_of(step)
        nodes = np.concatenate(wrong_nodes(stream, step)).reshape(-1)
        assert set(nodes // graph.partition_rows) <= set(halves(0).states[state].tolist())
        assert nodes.max() < graph.num_nodes
        seen |= set(nodes.tolist())
    assert seen == set(range(59))


def test_negatives_by_degree_are_ends_of_the_batch() -> None:
    stream = stream_of(toy_graph(), negatives=replace(SMALL, degree_share=0.4))
    edges = edges_of(stream, 0)
    wrong_tails, wrong_heads = wrong_nodes(stream, 0)
    assert set(wrong_tails[:, 3:].reshape(-1)) <= set(edges[:, 2])
    assert set(wrong_heads[:, 3:].reshape(-1)) <= set(edges[:, 0])


def test_a_pool_is_renewed_a_little_each_step() -> None:
    options = NegativeOptions(num_chunks=1, num_nodes=4000, source="pool", pool_nodes=64, pool_life_steps=8)
    nodes = NodeRange(num_nodes=1 << 40, partition_rows=1 << 40, partitions=np.zeros(1, np.int32))
    pools = [set(draw(options, nodes, step, 0, np.empty(0, np.int64)).reshape(-1).tolist()) for step in range(20)]
    assert all(len(pool) == 64 for pool in pools)
    assert [len(old - new) for old, new in pairwise(pools)] == [8] * 19
    assert not pools[0] & pools[8]


@given(seed=st.integers(0, 50), num_nodes=st.integers(2, 12))
def test_negatives_that_are_edges_are_found(seed: int, num_nodes: int) -> None:
    graph = toy_graph(num_nodes=num_nodes, num_edges=40, seed=seed)
    stream = stream_of(graph, negatives=replace(SMALL, filtered=True), batch_edges=7)
    known = {tuple(edge) for edge in graph.splits["train"].tolist()}
    for step in range(min(3, stream.num_steps)):
        edges, item = edges_of(stream, step), stream.batch(step).item
        per_chunk = -(-len(edges) // 3)
        for side, wrong in enumerate(wrong_nodes(stream, step)):
            wanted = {
                (i, j)
                for i, (head, relation, tail) in enumerate(edges.tolist())
                for j, node in enumerate(wrong[i // per_chunk].tolist())
                if ((head, relation, node) if side == 0 else (node, relation, tail)) in known
            }
            assert item.masked is not None
            assert {(i, j) for i, j in item.masked[side].tolist()} == wanted


def test_more_edges_are_found_than_were_expected() -> None:
    """The list of finds grows."""
    ends = np.zeros(3000, np.int64)
    near = SimpleNamespace(offsets=np.array([0, 3000]), ids=ends, relations=ends)
    found = edges_among(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 2), np.int64), near)
    assert len(found) == 6000


@given(size=st.integers(1, 300), key=st.integers(0, 1 << 40))
def test_a_shuffle_is_a_permutation_of_which_any_part_can_be_made(size: int, key: int) -> None:
    whole = shuffled(key_of(key), size, 0, size)
    assert np.array_equal(np.sort(whole), np.arange(size))
    half = size // 2
    assert np.array_equal(shuffled(key_of(key), size, half, size), whole[half:])


def test_shuffles_move_every_place_about_equally_often() -> None:
    places = np.stack([shuffled(key_of(key), 10, 0, 10) for key in range(4000)])
    counts = np.stack([np.bincount(places[:, column], minlength=10) for column in range(10)])
    assert np.abs(counts - 400).max() < 100


def test_draws_are_what_they_were() -> None:
    """Other draws would give every seed of every run other batches."""
    assert below(key_of(1, 2, 3), 1000, 5).tolist() == [364, 481, 151, 644, 891]
    assert shuffled(key_of(4), 12, 0, 12).tolist() == [6, 11, 3, 10, 7, 1, 5, 4, 2, 0, 9, 8]
    rows = np.concatenate([batch.rows for batch in stream_of(toy_graph()).batches()])
    assert hashlib.sha256(rows.tobytes()).hexdigest()[:16] == "2bee8062ae7f7888"


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("num_nodes", 0, "negatives.num_nodes: found 0; give 1 or more"),
        ("degree_share", 1.5, "negatives.degree_share: found 1.5; give a share from 0 to 1"),
        ("pool_life_steps", 0, "negatives.pool_life_steps: found 0"),
    ],
)
def test_options_that_cannot_be_are_refused(field: str, value: float, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        replace(SMALL, **{field: value})  # type: ignore[arg-type]
