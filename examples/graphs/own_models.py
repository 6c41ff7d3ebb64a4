"""A decoder and an encoder of your own, named in a run file: `model.decoder: own_models:Diagonal`.

Foresee looks for the module beside the run file. docs/graphs.md says what a decoder and an encoder have to have.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from foresee.graph.pyg import layers_of


class Diagonal(nn.Module):
    """head * relation + shift, compared with the tail: DistMult with a shift for each relation.

    Args:
        dim: Width of a node's vector.
        num_relations: Relations of the graph; 0 if edges have none.
        inverse: Relations have a second table for wanted heads.
    """

    products = True  # `compare` is one product of matrices, so that Foresee may fuse it with the softmax

    def __init__(self, dim: int, num_relations: int, *, inverse: bool = True) -> None:
        super().__init__()
        sides = 2 if inverse else 1
        self.scale = nn.Parameter(torch.ones(sides, max(1, num_relations), dim))
        self.shift = nn.Parameter(torch.zeros(sides, max(1, num_relations), dim))

    def query(self, known: Tensor, relations: Tensor, *, heads: bool) -> Tensor:
        """[edges, dim]: what wanted ends are compared with."""
        side = int(heads) % len(self.scale)
        return known * self.scale[side][relations] + self.shift[side][relations]

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """[..., queries, candidates]: more is likelier."""
        return queries @ candidates.transpose(-1, -2)

    def size(self, relations: Tensor) -> Tensor:
        """[edges, parts]: what `n3` and `l2` regularise."""
        return torch.cat([side[relations].abs() for side in self.scale], -1)


class Attention(nn.Module):
    """Layers of PyTorch Geometric's GATv2Conv, one for each hop of the sampled neighbourhood.

    Args:
        in_width: Width of the rows.
        out_width: Width of the vectors that come out.
        num_layers: Hops, as many as `model.fanouts` has.
        heads: Attention heads of a layer, which are averaged.
    """

    def __init__(self, in_width: int, out_width: int, num_layers: int, *, heads: int = 2) -> None:
        from torch_geometric.nn import GATv2Conv

        super().__init__()
        widths = [in_width] + [out_width] * num_layers
        self.convs = nn.ModuleList(
            GATv2Conv(one, other, heads=heads, concat=False, add_self_loops=False, residual=True)
            for one, other in pairwise(widths)
        )

    def forward(self, sample: Any, rows: Tensor) -> Tensor:
        """[targets, out_width] from [nodes of the sample, in_width]."""
        values = rows
        for number, (conv, layer) in enumerate(zip(self.convs, layers_of(sample), strict=True)):
            values = torch.relu(values) if number else values
            values = conv((values, values[layer.first :]), layer.edge_index)
        return values
