"""Losses of a batch of edges: what each edge costs, from the score of the edge and of its negatives.

In: `positive` [edges] and `negative` [edges, negatives], more is likelier; a negative of -inf counts for nothing. Out:
[edges]. `softmax`: which of them all is the edge; `logistic`: is each an edge; `margin`: is the edge ahead by so much.
Also what large vectors cost: N3 (Lacroix et al., ICML '18) and L2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import relu, softplus

from foresee.errors import ConfigError
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
