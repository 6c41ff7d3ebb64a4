"""What is trained on batches of edges: an encoder or none, a decoder, a loss, and what large vectors cost.

In: a `LinkItem` and the rows of its batch. Out: the cost of each edge, [edges], both sides together. Chunks are padded
to equal sizes for one product of matrices, and the padding is cut off again before anything is counted. `NodeModel` is
the same for nodes: logits [nodes, classes].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad, relu, softplus

from foresee.errors import ConfigError
from foresee.graph.decoders import modulus
from foresee.graph.examples import HEADS, TAILS, LinkItem, NodeItem
from foresee.graph.fused import Ends, Gradient, SoftmaxOfProducts
from foresee.graph.negatives import chunk_edges
from foresee.registry import Registry

Loss = Callable[..., Tensor]

NOTHING = float("-inf")


def softmax(positive: Tensor, negative: Tensor, *, margin: float = 0.0) -> Tensor:
    """-log of the share that the edge has among itself and its negatives, which are `margin` ahead.

    With a margin of log(nodes / negatives) drawn negatives stand for all nodes.
    """
    return softplus(negative.logsumexp(-1) + margin - positive)


def logistic(positive: Tensor, negative: Tensor, *, margin: float = 0.0, temperature: float = 0.0) -> Tensor:
    """Edge or not, each by itself; negatives weighted equally, or by `temperature` towards those that score high."""
    known = torch.isfinite(negative)
    weights = _weights(negative.detach(), known, temperature)
    costs = softplus(negative.masked_fill(~known, 0.0) + margin).masked_fill(~known, 0.0)
    return softplus(-(positive + margin)) + (weights * costs).sum(-1)


def _weights(negative: Tensor, known: Tensor, temperature: float) -> Tensor:
    """[edges, negatives], 1 in all for each edge that has a negative."""
    if temperature:
        return (negative * temperature).softmax(-1).nan_to_num()
    return known / known.sum(-1, keepdim=True).clamp(min=1)


def margin(positive: Tensor, negative: Tensor, *, margin: float = 1.0, temperature: float = 0.0) -> Tensor:
    """By how much negatives are not `margin` behind the edge."""
    known = torch.isfinite(negative)
    behind = relu(margin - positive.unsqueeze(-1) + negative.masked_fill(~known, 0.0)).masked_fill(~known, 0.0)
    return (_weights(negative.detach(), known, temperature) * behind).sum(-1)


def _check(name: str, loss: object) -> None:
    if not callable(loss):
        raise ConfigError(f"the loss {name!r} is {loss!r}; give a function of positive and negative scores")


LOSSES: Registry[Loss] = Registry("loss", "foresee.graph_losses", _check)
"""Functions by the names that run files give them."""

for _ours in (softmax, logistic, margin):
    LOSSES.add(_ours.__name__, _ours)


def penalty(sizes: list[Tensor], *, power: int) -> Tensor:
    """[edges]: the sum over all parts of their size to this power: 3 for N3, 2 for L2."""
    return torch.stack([(size.abs() ** power).sum(-1) for size in sizes]).sum(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What an edge costs."""

    loss: Loss
    options: dict[str, float]
    both_sides: bool = True
    """Negatives stand for heads too."""
    n3: float = 0.0
    """Of the cube of what vectors have, for each edge."""
    l2: float = 0.0
    """Of its square."""
    complex_parts: bool = False
    """Vectors are complex numbers."""


class LinkModel(nn.Module):
    """Encoder, decoder and objective.

    Args:
        decoder: See `Decoder`.
        objective: What an edge costs.
        encoder: Turns the rows of a sampled neighbourhood into vectors of its targets: `encoder(sample, rows)`.
    """

    def __init__(self, decoder: nn.Module, objective: Objective, encoder: nn.Module | None = None) -> None:
        super().__init__()
        self.decoder, self.encoder, self._objective = decoder, encoder, objective

    def forward(self, item: LinkItem, rows: Tensor) -> Tensor:
        """[edges]: what each costs; rows [lookups, 1, width] as the engine gives them."""
        (heads, tails, wrong_tails, wrong_heads), gradient = self._ends(item, rows.squeeze(1))
        relations = torch.from_numpy(item.relations)
        costs = self._side(item, TAILS, heads, relations, tails, wrong_tails, gradient)
        if self._objective.both_sides:
            costs = costs + self._side(item, HEADS, tails, relations, heads, wrong_heads, gradient)
        costs = costs + self._penalty(heads, relations, tails)
        return costs if item.weights is None else costs * torch.from_numpy(item.weights)

    def _ends(self, item: LinkItem, rows: Tensor) -> tuple[tuple[Tensor, ...], Gradient]:
        """Heads, tails, wrong tails and wrong heads, and where these learn."""
        nodes = rows
        if self.encoder is not None and item.positions is not None:
            nodes = embedding(torch.from_numpy(item.positions), self.encoder(item.sample, rows))
        wrong = item.num_chunks * item.num_negatives
        sizes = item.num_edges, item.num_edges, wrong, wrong
        gradient = Gradient(sizes)
        return Ends.apply(nodes, sizes, gradient), gradient  # type: ignore[no-untyped-call]

    def _side(
        self, item: LinkItem, side: int, known: Tensor, relations: Tensor, wanted: Tensor, wrong: Tensor,
        gradient: Gradient,
    ) -> Tensor:  # fmt: skip
        decoder: Any = self.decoder
        queries = decoder.query(known, relations, heads=side == HEADS)
        products = getattr(decoder, "products", False)
        positive = _of_each(decoder, queries, wanted, products=products)
        masked = None if item.masked is None else torch.from_numpy(item.masked[side])
        if self._objective.loss is softmax and products:
            ahead = positive - self._objective.options.get("margin", 0.0)
            costs: Tensor = SoftmaxOfProducts.apply(  # type: ignore[no-untyped-call]
                queries, wrong, ahead, masked, item.num_chunks, gradient, 2 + side
            )
            return costs
        per_chunk = chunk_edges(item.num_edges, item.num_chunks)
        padded = pad(queries, (0, 0, 0, per_chunk * item.num_chunks - item.num_edges))
        chunks = padded.view(item.num_chunks, per_chunk, -1), wrong.view(item.num_chunks, item.num_negatives, -1)
        negative = decoder.compare(*chunks).reshape(-1, item.num_negatives)[: item.num_edges]
        if masked is not None and len(masked):
            negative = negative.index_put(masked.unbind(-1), torch.tensor(NOTHING))
        return self._objective.loss(positive, negative, **self._objective.options)

    def _penalty(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor | float:
        objective, decoder = self._objective, self.decoder
        if not objective.n3 and not objective.l2:
            return 0.0
        size = modulus if objective.complex_parts else torch.abs
        sizes = [size(heads), decoder.size(relations), size(tails)]  # type: ignore[operator]
        return sum(
            factor * penalty(sizes, power=power)
            for factor, power in ((objective.n3, 3), (objective.l2, 2)) if factor
        )  # fmt: skip


def _of_each(decoder: Any, queries: Tensor, wanted: Tensor, *, products: bool) -> Tensor:
    """[edges]: the score of each query with its own end."""
    if products:
        return (queries * wanted).sum(-1)
    scores: Tensor = decoder.compare(queries.unsqueeze(-2), wanted.unsqueeze(-2))[:, 0, 0]
    return scores


class NodeModel(nn.Module):
    """An encoder whose vectors are logits of classes."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, item: NodeItem, rows: Tensor) -> Tensor:
        """[nodes, classes]; rows [nodes of the sample, 1, width] as the engine gives them."""
        logits: Tensor = self.encoder(item.sample, rows.squeeze(1))
        return logits
