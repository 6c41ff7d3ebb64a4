"""Layers that several models share: an MLP, the linear part, and second-order interactions.

`mlp`: linear layers with ReLU between them; the last has an activation only when asked for, so that a stack can end in
logits as well as in features. `Shares`: one number beside several outputs. `FirstOrder`: a bias, a weight for each
dense feature and one for each id; the ids' weights are a column of their rows, so that they are fetched, updated and
stored with the embedding. `PairDots` (DLRM): the dot product of each pair of a sample's vectors; `sum_of_pair_products`
(NCF): their element-wise products, summed. Never a vector with itself, and no loop over pairs. `flat`, `cut` and
`OneWidth` take vectors of one width or several.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .contract import Dims, Shape, Vectors, feature_dims


def mlp(width_in: int, widths: Sequence[int], *, activate_last: bool) -> nn.Sequential:
    """Linear layers of the given widths; no layers pass their input on."""
    layers: list[nn.Module] = []
    for width_out in widths:
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
        width_in = width_out
    if layers and not activate_last:
        layers.pop()
    return nn.Sequential(*layers)


def checked_widths(option: str, widths: object) -> tuple[int, ...]:
    """The widths as a tuple, or a sentence naming the option that is wrong. They may come from a file."""
    if isinstance(widths, str) or not isinstance(widths, Sequence):
        raise ValueError(f"{option} is {widths!r}: give a list of layer widths such as [512, 256]")
    for width in widths:
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError(f"{option} holds {width!r}: every layer width is a whole number of at least 1")
    return tuple(widths)


def flat(embeddings: Vectors) -> Tensor:
    """[samples, all columns]: every feature's vector after the one before."""
    return embeddings.flatten(1) if isinstance(embeddings, Tensor) else torch.cat(list(embeddings), dim=1)


def cut(embeddings: Vectors, dim: Dims) -> tuple[Vectors, Vectors]:
    """The first `dim` columns of each feature's row, and the rest of them."""
    if isinstance(embeddings, Tensor):
        assert isinstance(dim, int)
        return embeddings[:, :, :dim], embeddings[:, :, dim:]
    widths = [dim] * len(embeddings) if isinstance(dim, int) else dim
    pairs = list(zip(embeddings, widths, strict=True))
    return [it[:, :width] for it, width in pairs], [it[:, width:] for it, width in pairs]


class OneWidth(nn.Module):
    """Vectors of several widths become vectors of one, as dot products need: a linear layer for each feature.

    Without `project` they have to have one width, and stay as they are.
    """

    def __init__(self, shape: Shape, dim: Dims, project: object, what: str) -> None:
        super().__init__()
        dims = feature_dims(shape, dim)
        if project is None and len(set(dims)) > 1:
            raise ValueError(
                f"{what} need one width, and features have {', '.join(map(str, sorted(set(dims))))}: give all tables "
                "one dim, or say project: 16 in model.options, which maps each feature to that width; dcn_v2 and "
                "wide_and_deep take several widths as they are"
            )
        if project is not None:
            (self.width,) = checked_widths("project", [project])
        else:
            self.width = dims[0]
        layers = [] if project is None else [nn.Linear(width, self.width, bias=False) for width in dims]
        self.layers = nn.ModuleList(layers)

    def forward(self, vectors: Vectors) -> Tensor:  # -> [samples, features, width]
        if not len(self.layers):
            return vectors if isinstance(vectors, Tensor) else torch.stack(list(vectors), dim=1)
        features = vectors.unbind(1) if isinstance(vectors, Tensor) else vectors
        return torch.stack([layer(it) for layer, it in zip(self.layers, features, strict=True)], dim=1)


def by_sample(outputs: Tensor) -> Tensor:
    """[samples, outputs] as a model gives it: [samples] where there is one output."""
    return outputs.squeeze(1) if outputs.shape[1] == 1 else outputs


class Shares(nn.Module):
    """Adds one number a sample to the outputs of a network; where those are several, each takes a learned share of it.

    A first- or second-order part speaks with one voice: without shares it would tell all tasks the same.
    """

    def __init__(self, num_outputs: int) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.ones(num_outputs)) if num_outputs > 1 else None

    def forward(self, common: Tensor, outputs: Tensor) -> Tensor:  # [samples], [samples, outputs]
        if self.shares is None:
            return common + outputs.squeeze(1)
        return common.unsqueeze(1) * self.shares + outputs


class FirstOrder(nn.Module):
    """Starts at zero, as a linear model may: nothing has to be told apart."""

    def __init__(self, num_dense: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        # Not nn.Linear: it warns about zero inputs, and logs without dense features are ordinary.
        self.dense_weights = nn.Parameter(torch.zeros(num_dense))

    def forward(self, dense: Tensor, weights: Tensor) -> Tensor:  # -> [samples]
        return self.bias + dense @ self.dense_weights + weights.sum(dim=1)


class PairDots(nn.Module):
    """Dot products of all pairs i < j, row by row: (0,1), (0,2), …, (1,2), …"""

    def __init__(self, num_vectors: int) -> None:
        super().__init__()
        first, second = torch.triu_indices(num_vectors, num_vectors, offset=1)
        self.num_pairs = first.numel()
        # Where the cell (i, j) of a sample's matrix of dots comes from and goes to. The diagonal is in no pair: it
        # points at one column past the pairs, which backward fills with zeros.
        pair_of_cell = torch.full((num_vectors, num_vectors), self.num_pairs)
        pair_of_cell[first, second] = torch.arange(self.num_pairs)
        pair_of_cell[second, first] = torch.arange(self.num_pairs)
        self.cell_of_pair: Tensor
        self.pair_of_cell: Tensor
        # They follow from num_vectors alone, so they move with the module but are no part of its saved weights.
        self.register_buffer("cell_of_pair", first * num_vectors + second, persistent=False)
        self.register_buffer("pair_of_cell", pair_of_cell.flatten(), persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:  # [samples, vectors, dim] -> [samples, pairs]
        dots: Tensor = _PairDots.apply(vectors, self.cell_of_pair, self.pair_of_cell)  # type: ignore[no-untyped-call]
        return dots


class _PairDots(torch.autograd.Function):
    """The gradient written out, because autograd's own does most of its work twice.

    dots(i, j) = x_i · x_j, hence d/dx_i = Σ_{j≠i} g(i, j) x_j with g symmetric: one product of the mirrored gradient
    with the vectors. Autograd would scatter into a zeroed matrix and multiply once for either factor of x xᵀ.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, cell_of_pair: Tensor, pair_of_cell: Tensor) -> Tensor:
        ctx.save_for_backward(vectors, pair_of_cell)
        return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, cell_of_pair)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        vectors, pair_of_cell = ctx.saved_tensors
        samples, num_vectors, _ = vectors.shape
        mirrored = nn.functional.pad(gradient, (0, 1)).index_select(1, pair_of_cell)
        mirrored = mirrored.view(samples, num_vectors, num_vectors)
        # Under autocast the product was in half precision, and so is its gradient; backward itself casts nothing.
        return torch.bmm(mirrored, vectors.to(mirrored.dtype)).to(vectors.dtype), None, None


def sum_of_pair_products(vectors: Tensor) -> Tensor:  # [samples, vectors, dim] -> [samples, dim]
    """Σ_{i<j} x_i ⊙ x_j = ½ ((Σ x_i)² − Σ x_i²): linear in the number of vectors. One vector alone gives zeros."""
    total: Tensor = vectors.sum(dim=1)
    return 0.5 * (total.square() - vectors.square().sum(dim=1))
