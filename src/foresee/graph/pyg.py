"""Layers of PyTorch Geometric over a sampled neighbourhood, as they are.

    for conv, layer in zip(convs, layers_of(sample), strict=True):
        values = conv((values, values[layer.first :]), layer.edge_index)      # SAGEConv, GATConv, GraphConv, RGCNConv

`values` begins with one row for each of `sample.nodes` and ends with one for each target. A layer that knows one set
of nodes only (GCNConv) takes `layer.square_edge_index`, and what it gives for the outermost nodes is dropped:
`conv(values, layer.square_edge_index)[layer.first :]`. `layer.adjacency()` is the same as a sparse matrix, which PyG
takes in place of `edge_index`. This module needs torch and nothing of PyG.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foresee.graph.sampling import Sample


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer of a network sees of a sample."""

    edge_index: Tensor  # [2, edges]: row of the neighbour among all nodes, row of the node among those that are kept
    num_nodes: int
    """Nodes that go in."""
    first: int
    """The nodes from here on come out."""
    relations: Tensor | None  # [edges], for layers that take an edge type

    @property
    def size(self) -> tuple[int, int]:
        """(nodes in, nodes out), as PyG calls it."""
        return self.num_nodes, self.num_nodes - self.first

    @property
    def square_edge_index(self) -> Tensor:
        """Both rows among all nodes that go in."""
        return self.edge_index + torch.tensor([[0], [self.first]])

    def adjacency(self) -> Tensor:
        """[nodes out, nodes in], sparse: an entry counts the edges between the two that were drawn."""
        places, ones = self.edge_index.flip(0), torch.ones(self.edge_index.shape[1])
        return torch.sparse_coo_tensor(places, ones, self.size[::-1], check_invariants=True).coalesce()


def layers_of(sample: Sample) -> list[Layer]:
    """One layer for each hop, that of the outermost nodes first."""
    found = []
    for _ in range(sample.num_hops):
        ends = np.append(sample.neighbour_offsets[1:], len(sample.rows))
        nodes = np.repeat(np.arange(len(sample.neighbour_offsets)), ends - sample.neighbour_offsets)
        relations = None if sample.relations is None else torch.from_numpy(sample.relations.astype(np.int64))
        edge_index = torch.from_numpy(np.stack([sample.rows, nodes]))
        found.append(Layer(edge_index, len(sample.nodes), sample.first, relations))
        sample = sample.inner()
    return found
