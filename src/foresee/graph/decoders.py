"""Decoders: how likely an edge is, from the vectors of its ends and its relation. More is likelier.

In: vectors [edges, dim] and relation numbers. Out: `query` turns one end and the relation into a vector of its own, and
`compare` scores it against candidates for the other end: so all candidates of a chunk are one product of matrices.
Asked for heads, a decoder turns the relation round; with `inverse` it has a second table of relations for that side
instead. Relations are ordinary weights of the module, and start so that a fresh decoder compares the ends themselves,
or, with `init_scale`, at normal numbers of that size: then a node is not likely to be its own neighbour.
`products = True` says that `compare` is a product of matrices, which is quicker to learn from.

A decoder of one's own is any `nn.Module` with the methods of `Decoder`, as package.module:Class.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from foresee.errors import ConfigError
from foresee.registry import Registry

VALUES_AT_ONCE = 1 << 22


@runtime_checkable
class Decoder(Protocol):
    """What training and evaluation ask of a decoder."""

    def query(self, known: Tensor, relations: Tensor, *, heads: bool) -> Tensor:
        """[edges, width]: what the wanted ends are compared with.

        Args:
            known: [edges, dim], the ends that are known.
            relations: [edges].
            heads: The wanted ends are heads, the known ones tails.
        """
        ...

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """[..., queries, candidates]: scores of [..., queries, width] against [..., candidates, dim]."""
        ...

    def size(self, relations: Tensor) -> Tensor:
        """[edges, parts]: how large the relations' vectors are, those of both sides, for regularisation."""
        ...


class Dot(nn.Module):
    """The product of both ends; relations count for nothing."""

    products = True

    def __init__(self, dim: int, num_relations: int, *, inverse: bool = True) -> None:
        super().__init__()

    def query(self, known: Tensor, relations: Tensor, *, heads: bool) -> Tensor:
        return known

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return queries @ candidates.transpose(-1, -2)

    def size(self, relations: Tensor) -> Tensor:
        return torch.zeros(len(relations), 1)


class _Relations(nn.Module):
    """Vectors of relations: one table, or one for each side."""

    def __init__(self, num_relations: int, width: int, *, inverse: bool) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(2 if inverse else 1, max(1, num_relations), width))

    def start(self, scale: float | None, *, ones: int) -> None:
        """At ones in so many places and nothing in the others, or at normal numbers of a size."""
        with torch.no_grad():
            if scale is None:
                self.table[..., :ones] = 1.0
            else:
                self.table.normal_(0.0, _positive(scale))

    def of(self, relations: Tensor, *, heads: bool) -> Tensor:
        """[edges, width]."""
        return nn.functional.embedding(relations, self.table[int(heads) if len(self.table) == 2 else 0])

    def both(self, relations: Tensor) -> Tensor:
        """[sides, edges, width]: those of all sides."""
        return torch.stack([nn.functional.embedding(relations, side) for side in self.table])

    @property
    def turned(self) -> bool:
        """Asked for heads, the relation of the other side has to be turned round."""
        return len(self.table) == 1


class DistMult(nn.Module):
    """sum(head * relation * tail)."""

    products = True

    def __init__(
        self, dim: int, num_relations: int, *, inverse: bool = True, init_scale: float | None = None
    ) -> None:  # fmt: skip
        super().__init__()
        self.relations = _Relations(num_relations, dim, inverse=inverse)
        self.relations.start(init_scale, ones=dim)

    def query(self, known: Tensor, relations: Tensor, *, heads: bool) -> Tensor:
        return known * self.relations.of(relations, heads=heads)

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return queries @ candidates.transpose(-1, -2)

    def size(self, relations: Tensor) -> Tensor:
        return _side_by_side(self.relations.both(relations).abs())


class ComplEx(nn.Module):
    """The real part of sum(head * relation * conjugate of tail); the first half of a vector is real."""

    products = True

    def __init__(
        self, dim: int, num_relations: int, *, inverse: bool = True, init_scale: float | None = None
    ) -> None:  # fmt: skip
        super().__init__()
        _check_even("complex", dim)
        self.relations = _Relations(num_relations, dim, inverse=inverse)
        self.relations.start(init_scale, ones=dim // 2)

    def query(self, known: Tensor, relations: Tensor, *, heads: bool) -> Tensor:
        turned = heads and self.relations.turned
        return _times(known, self.relations.of(relations, heads=heads), conjugate=turned)

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return queries @ candidates.transpose(-1, -2)

    def size(self, relations: Tensor) -> Tensor:
        return _side_by_side(modulus(self.relations.both(relations)))


class TransE(nn.Module):
    """Minus the distance between head + relation and tail: what is near is likely."""

    def __init__(self, dim: int, num_relations: int, *, inverse: bool = True, norm: int = 2) -> None:
        super().__init__()
        if norm not in (1, 2):
            raise ConfigError(f"model.decoder_options.norm: found {norm!r}; give 1 or 2")
        self.relations, self._norm = _Relations(num_relations, dim, inverse=inverse), float(norm)

    def query(self, known: Tensor, relations: Tensor, *, heads: bool) -> Tensor:
        moved = self.relations.of(relations, heads=heads)
        return known - moved if heads and self.relations.turned else known + moved

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return -torch.cdist(queries, candidates, self._norm)

    def size(self, relations: Tensor) -> Tensor:
        return _side_by_side(self.relations.both(relations).abs())


class RotatE(nn.Module):
    """Minus the distance between the head, each complex number turned by the relation's angle, and the tail."""

    def __init__(self, dim: int, num_relations: int, *, inverse: bool = True) -> None:
        super().__init__()
        _check_even("rotate", dim)
        self.relations = _Relations(num_relations, dim // 2, inverse=inverse)
        nn.init.uniform_(self.relations.table, -torch.pi, torch.pi)

    def query(self, known: Tensor, relations: Tensor, *, heads: bool) -> Tensor:
        angles = self.relations.of(relations, heads=heads)
        turn = torch.cat([angles.cos(), angles.sin()], -1)
        return _times(known, turn, conjugate=heads and self.relations.turned)

    def compare(self, queries: Tensor, candidates: Tensor) -> Tensor:
        # A few queries at a time: their differences to all candidates are large.
        at_once = max(1, VALUES_AT_ONCE // max(1, candidates.numel()))
        parts = [part.unsqueeze(-2) - candidates.unsqueeze(-3) for part in torch.split(queries, at_once, -2)]
        return torch.cat([-modulus(apart).sum(-1) for apart in parts], -2)

    def size(self, relations: Tensor) -> Tensor:
        return torch.zeros(len(relations), 1)


def _side_by_side(sizes: Tensor) -> Tensor:
    """[edges, sides * parts] of [sides, edges, parts]."""
    return torch.cat(list(sizes), -1)


def _times(left: Tensor, right: Tensor, *, conjugate: bool = False) -> Tensor:
    """Complex numbers multiplied, the right ones turned round if `conjugate`."""
    (a, b), (c, d) = left.chunk(2, -1), right.chunk(2, -1)
    if conjugate:
        d = -d
    return torch.cat([a * c - b * d, a * d + b * c], -1)


def modulus(numbers: Tensor) -> Tensor:
    """How large complex numbers are; the root has a slope also at nothing."""
    real, imaginary = numbers.chunk(2, -1)
    return (real * real + imaginary * imaginary + 1e-20).sqrt()


def _positive(scale: float) -> float:
    if not 0 < scale < float("inf"):
        raise ConfigError(f"model.decoder_options.init_scale: found {scale!r}; give a number above 0")
    return scale


def _check_even(name: str, dim: int) -> None:
    if dim % 2:
        raise ConfigError(f"model.dim: {name} has complex numbers of two values each, found {dim}; give an even number")


def _check(name: str, kind: object) -> None:
    if not callable(kind):
        raise ConfigError(f"the decoder {name!r} is {kind!r}; give a class of nn.Module with query, compare and size")


DECODERS: Registry[type[nn.Module]] = Registry("decoder", "foresee.graph_decoders", _check)
"""Classes by the names that run files give them."""
for _name, _ours in {"distmult": DistMult, "complex": ComplEx, "transe": TransE, "rotate": RotatE, "dot": Dot}.items():
    DECODERS.add(_name, _ours)
COMPLEX = ("complex", "rotate")
"""Decoders whose vectors are complex numbers: regularisation looks at their size."""
