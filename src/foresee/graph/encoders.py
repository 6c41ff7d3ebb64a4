"""Encoders: vectors of nodes from those of their sampled neighbourhoods, layer by layer.

In: a `Sample` and the rows of its nodes, [nodes, width]. Out: vectors of its targets, [targets, width]. A layer reads
the vectors of all nodes that are left and gives those of the nodes with neighbours: `own = values[first:]`, neighbours
by `sample.rows`; then the outermost nodes are dropped. Between layers: ReLU and dropout.

    graph_sage   W own + U mean(neighbours)                      Hamilton et al., NeurIPS '17
    gcn          W (own + sum(neighbours)) / (1 + number)        Kipf and Welling, ICLR '17, each node by itself
    gat          attention over neighbours and the node itself   Veličković et al., ICLR '18

One of your own is any `nn.Module(in_width, out_width, num_layers, **options)` with `forward(sample, rows)`; layers of
PyTorch Geometric work in it as they are (`pyg.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, embedding, embedding_bag, leaky_relu

from foresee.errors import ConfigError
from foresee.graph.sampling import Sample
from foresee.registry import Registry


class SageLayer(nn.Module):
    """The node itself and the mean of its neighbours."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.own, self.near = nn.Linear(in_width, out_width), nn.Linear(in_width, out_width, bias=False)

    def forward(self, sample: Sample, values: Tensor) -> Tensor:
        # A mean of products is the product of the mean: what is narrower is gathered.
        narrower = self.near.out_features < self.near.in_features
        near = _reduced(sample, self.near(values), "mean") if narrower else self.near(_reduced(sample, values, "mean"))
        out: Tensor = self.own(values[sample.first :]) + near
        return out


class GcnLayer(nn.Module):
    """The mean over the node and its neighbours."""

    def __init__(self, in_width: int, out_width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_width, out_width)

    def forward(self, sample: Sample, values: Tensor) -> Tensor:
        number = torch.from_numpy(_degrees(sample)).unsqueeze(1)
        if self.linear.out_features < self.linear.in_features:
            values = values @ self.linear.weight.T
            return (values[sample.first :] + _reduced(sample, values, "sum")) / (1 + number) + self.linear.bias
        out: Tensor = self.linear((values[sample.first :] + _reduced(sample, values, "sum")) / (1 + number))
        return out


class GatLayer(nn.Module):
    """Attention: neighbours count as much as their vectors and the node's own say."""

    def __init__(self, in_width: int, out_width: int, *, heads: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(in_width, heads * out_width, bias=False)
        self.to_own, self.to_near = (nn.Parameter(torch.empty(heads, out_width)) for _ in range(2))
        self.bias, self._heads = nn.Parameter(torch.zeros(out_width)), heads
        for weights in (self.to_own, self.to_near):
            nn.init.xavier_uniform_(weights)

    def forward(self, sample: Sample, values: Tensor) -> Tensor:
        turned = self.linear(values).view(len(values), self._heads, -1)
        weights = self._weights(sample, turned)
        segments, rows = _with_themselves(sample)
        parts = [
            embedding_bag(rows, turned[:, head], segments, mode="sum", per_sample_weights=weights[:, head].contiguous())
            for head in range(self._heads)
        ]
        return torch.stack(parts).mean(0) + self.bias

    def _weights(self, sample: Sample, turned: Tensor) -> Tensor:
        """[edges and own, heads]: 1 in all for each node and head."""
        segments, rows = _with_themselves(sample)
        own = (turned[sample.first :] * self.to_own).sum(-1)
        near = (turned * self.to_near).sum(-1)
        owner = _owners(segments, len(rows))
        logits = leaky_relu(embedding(rows, near) + embedding(owner, own), 0.2)
        highest = torch.full_like(own, -torch.inf).scatter_reduce(
            0, owner.unsqueeze(1).expand_as(logits), logits.detach(), "amax"
        )
        raised = (logits - highest[owner]).exp()
        return raised / embedding(owner, embedding_bag(torch.arange(len(rows)), raised, segments, mode="sum"))


def _reduced(sample: Sample, values: Tensor, mode: str) -> Tensor:
    """[nodes with neighbours, width]: the mean or sum of each one's neighbours; nothing gives 0."""
    rows, offsets = torch.from_numpy(sample.rows), torch.from_numpy(sample.neighbour_offsets)
    return embedding_bag(rows, values, offsets, mode=mode)


def _degrees(sample: Sample) -> Any:
    return np.diff(sample.neighbour_offsets, append=len(sample.rows)).astype(np.float32)


def _with_themselves(sample: Sample) -> tuple[Tensor, Tensor]:
    """Offsets and rows of neighbours with the node itself before its own."""
    offsets, num = sample.neighbour_offsets, len(sample.neighbour_offsets)
    rows = np.insert(sample.rows, offsets, sample.first + np.arange(num))
    return torch.from_numpy(offsets + np.arange(num)), torch.from_numpy(rows)


def _owners(offsets: Tensor, num_rows: int) -> Tensor:
    """Which node each entry belongs to."""
    sizes = torch.diff(offsets, append=torch.tensor([num_rows]))
    return torch.repeat_interleave(torch.arange(len(offsets)), sizes)


class Encoder(nn.Module):
    """Layers of one kind, one for each hop.

    Args:
        layer: Makes a layer of two widths.
        in_width: Of the rows.
        out_width: Of what comes out.
        num_layers: Hops of the samples.
        hidden: Widths between layers; left out, `out_width`.
        dropout: Share of values that are dropped before each layer while training.
    """

    def __init__(
        self, layer: Callable[[int, int], nn.Module], in_width: int, out_width: int, num_layers: int, *,
        hidden: list[int] | None = None, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        inner = [out_width] * (num_layers - 1) if hidden is None else hidden
        if len(inner) != num_layers - 1 or any(width < 1 for width in inner):
            raise ConfigError(
                f"model.encoder_options.hidden: found {inner}; {num_layers} fanouts need {num_layers - 1} widths"
            )
        if not 0 <= dropout < 1:
            raise ConfigError(f"model.encoder_options.dropout: found {dropout}; give a share from 0 to below 1")
        widths = [in_width, *inner, out_width]
        self.layers = nn.ModuleList(layer(one, other) for one, other in pairwise(widths))
        self._dropout = dropout

    def forward(self, sample: Sample, rows: Tensor) -> Tensor:
        """[targets, out_width]."""
        values = rows
        for number, layer in enumerate(self.layers):
            values = values.relu() if number else values
            values = dropout(values, self._dropout, self.training) if self._dropout else values
            values = layer(sample, values)
            sample = sample.inner()
        return values


def graph_sage(in_width: int, out_width: int, num_layers: int, **options: Any) -> Encoder:
    """GraphSage with mean."""
    return Encoder(SageLayer, in_width, out_width, num_layers, **options)


def gcn(in_width: int, out_width: int, num_layers: int, **options: Any) -> Encoder:
    """GCN."""
    return Encoder(GcnLayer, in_width, out_width, num_layers, **options)


def gat(in_width: int, out_width: int, num_layers: int, *, heads: int = 4, **options: Any) -> Encoder:
    """GAT whose heads are averaged."""
    return Encoder(lambda one, other: GatLayer(one, other, heads=heads), in_width, out_width, num_layers, **options)


def _check(name: str, kind: object) -> None:
    if not callable(kind):
        raise ConfigError(f"the encoder {name!r} is {kind!r}; give a class of nn.Module with forward(sample, rows)")


ENCODERS: Registry[Callable[..., nn.Module]] = Registry("encoder", "foresee.graph_encoders", _check)
"""What makes them, by the names that run files give."""
for _ours in (graph_sage, gcn, gat):
    ENCODERS.add(_ours.__name__, _ours)
