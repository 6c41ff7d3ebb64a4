"""Layers of PyTorch Geometric over all sampled neighbours give what they give over the whole graph."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from test_sampling import neighbours_of

from foresee.arrays import Int64
from foresee.graph.pyg import layers_of
from foresee.graph.sampling import ALL, Sample, Sampler

NUM_NODES, WIDTH = 30, 4
TARGETS = np.array([3, 17, 5, 0])


def edges() -> Int64:
    rng = np.random.default_rng(0)
    ends = rng.integers(NUM_NODES, size=(2, 120))
    return np.unique(np.stack([ends[0], rng.integers(3, size=120), ends[1]], axis=1), axis=0)


def sample(fanout: int = ALL, triples: Int64 | None = None) -> Sample:
    chosen = edges() if triples is None else triples
    listed = [(int(head), int(relation), int(tail)) for head, relation, tail in chosen]
    return Sampler(neighbours_of(NUM_NODES, listed), [fanout, fanout]).sample(TARGETS)


def test_layers_have_the_edges_of_the_sample() -> None:
    drawn = sample(3)
    layers = layers_of(drawn)
    assert [layer.size for layer in layers] == [
        (len(drawn.nodes), len(drawn.nodes) - drawn.first),
        (len(drawn.nodes) - drawn.first, len(TARGETS)),
    ]
    true = {tuple(edge) for edge in edges().tolist()}
    nodes = drawn.nodes
    for layer in layers:
        assert layer.relations is not None
        kept = nodes[layer.first :]
        columns = (layer.edge_index[0].tolist(), layer.relations.tolist(), layer.edge_index[1].tolist())
        for neighbour, relation, node in zip(*columns, strict=True):
            assert (nodes[neighbour], relation, kept[node]) in true
        square = layer.square_edge_index
        assert torch.equal(square[0], layer.edge_index[0])
        assert np.array_equal(nodes[square[1].numpy()], kept[layer.edge_index[1].numpy()])
        dense = torch.zeros(layer.size[::-1])
        dense.index_put_((layer.edge_index[1], layer.edge_index[0]), torch.ones(1), accumulate=True)
        assert torch.equal(layer.adjacency().to_dense(), dense)
        nodes = kept


@pytest.fixture(scope="module")
def pyg() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own imports
        return pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed: pip install it")


@pytest.mark.parametrize("name", ["SAGEConv", "GATConv", "GraphConv", "RGCNConv", "GCNConv"])
def test_layers_of_pyg_equal_those_over_the_whole_graph(pyg: Any, name: str) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"GATConv": {"heads": 2, "concat": False, "add_self_loops": False}}.get(name, {})
    options |= {"num_relations": 3} if name == "RGCNConv" else {}
    options |= {"normalize": False} if name == "GCNConv" else {}
    convs = [getattr(pyg, name)(WIDTH, WIDTH, **options) for _ in range(2)]
    features = torch.randn(NUM_NODES, WIDTH)
    heads, relations, tails = torch.from_numpy(edges()).T
    whole = features
    for conv in convs:
        whole = conv(whole, torch.stack([heads, tails]), *([relations] if name == "RGCNConv" else []))
    drawn = sample()
    values = features[torch.from_numpy(drawn.nodes)]
    for conv, layer in zip(convs, layers_of(drawn), strict=True):
        if name == "GCNConv":
            values = conv(values, layer.square_edge_index)[layer.first :]
        else:
            more = [layer.relations] if name == "RGCNConv" else []
            values = conv((values, values[layer.first :]), layer.edge_index, *more)
    torch.testing.assert_close(values, whole[torch.from_numpy(TARGETS)])


def test_a_sparse_adjacency_gives_the_same(pyg: Any) -> None:
    """Where no two nodes are joined twice: in a matrix such edges are one."""
    torch.manual_seed(0)
    triples = edges()
    single = triples[np.unique(triples[:, ::2], axis=0, return_index=True)[1]]
    conv, layer = pyg.SAGEConv(WIDTH, WIDTH), layers_of(sample(2, single))[0]
    values = torch.randn(layer.num_nodes, WIDTH)
    pair = (values, values[layer.first :])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG turns it into rows, which are a beta of torch
        by_matrix = conv(pair, layer.adjacency())
    torch.testing.assert_close(conv(pair, layer.edge_index), by_matrix)
