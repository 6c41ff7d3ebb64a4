"""Rows of several kinds in one flat buffer for each peer, and back.

In: the transfers of a record that go over together, and the arrays they are taken from. Out: one float32 buffer with
the peers' parts one after another, and the sizes of the parts. Both sides know all sizes from their records, so nothing
but rows travels. A GRAD or a VALUE is `width` numbers; a MOVE is values, state, version and row id, the last two as
bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee.plan.record import Int32, Int64, Kind, Transfers, empty_int32
from foresee.store.contract import Layout, Rows

Float32 = NDArray[np.float32]
KINDS = tuple(int(kind) for kind in Kind)
GRAD, VALUE, MOVE = int(Kind.GRAD), int(Kind.VALUE), int(Kind.MOVE)


@dataclass(frozen=True, slots=True)
class Parcel:
    """Transfers with one peer that go over together, by kind, each in the order of the record."""

    peer: int
    gradients: Int32  # slots
    values: Int32
    moves: Int32

    def size(self, layout: Layout) -> int:
        """Floats it takes."""
        return (len(self.gradients) + len(self.values)) * layout.width + len(self.moves) * move_width(layout)


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a parcel."""

    gradients: Float32  # [rows, width]
    values: Float32  # [rows, width]
    moved: Rows
    moved_rows: Int64


def move_width(layout: Layout) -> int:
    """Floats of a moved row: values, state, version, and the row id in two."""
    return layout.width + layout.state_width + 3


def parcels_of(transfers: Transfers, chosen: NDArray[np.bool_], num_workers: int) -> list[Parcel]:
    """The chosen transfers as one parcel for each worker."""
    if not chosen.any():
        return [Parcel(peer, *[empty_int32()] * 3) for peer in range(num_workers)]
    slots = transfers.slot[chosen]
    piles = transfers.peer[chosen] * len(KINDS) + transfers.kind[chosen]
    order = np.argsort(piles, kind="stable")
    bounds = np.searchsorted(piles[order], np.arange(num_workers * len(KINDS) + 1))
    slots = slots[order]

    def pile(peer: int, kind: int) -> Int32:
        at = peer * len(KINDS) + kind
        return slots[bounds[at] : bounds[at + 1]]

    return [Parcel(peer, pile(peer, GRAD), pile(peer, VALUE), pile(peer, MOVE)) for peer in range(num_workers)]


def pack(contents: list[Contents], parcels: list[Parcel], layout: Layout) -> tuple[Tensor, list[int]]:
    """One buffer for all peers, and how much of it is whose."""
    sizes = [parcel.size(layout) for parcel in parcels]
    buffer = torch.empty(sum(sizes))
    at = 0
    for size, content in zip(sizes, contents, strict=True):
        part = buffer[at : at + size].numpy()
        rest = _write(part, content.gradients)
        rest = _write(rest, content.values)
        moves = rest.reshape(-1, move_width(layout))
        width, end = layout.width, layout.width + layout.state_width
        moves[:, :width] = content.moved.values
        moves[:, width:end] = content.moved.state
        moves[:, end : end + 1].view(np.int32)[:, 0] = content.moved.versions
        moves[:, end + 1 :] = content.moved_rows.view(np.float32).reshape(-1, 2)
        at += size
    return buffer, sizes


def unpack(buffer: Tensor, parcels: list[Parcel], layout: Layout) -> list[Contents]:
    """What each peer sent; arrays of their own, so that the buffer can go."""
    contents = []
    at = 0
    for parcel in parcels:
        size = parcel.size(layout)
        part = buffer[at : at + size].numpy()
        cut = len(parcel.gradients) * layout.width
        end = cut + len(parcel.values) * layout.width
        moves = part[end:].reshape(len(parcel.moves), move_width(layout))
        contents.append(
            Contents(
                part[:cut].reshape(-1, layout.width).copy(),
                part[cut:end].reshape(-1, layout.width).copy(),
                *_unpack_moves(moves, layout),
            )
        )
        at += size
    return contents


def _unpack_moves(moves: Float32, layout: Layout) -> tuple[Rows, Int64]:
    width, end = layout.width, layout.width + layout.state_width
    versions = np.ascontiguousarray(moves[:, end]).view(np.int32)
    rows = np.ascontiguousarray(moves[:, end + 1 :]).reshape(-1).view(np.int64)
    moved = Rows(np.ascontiguousarray(moves[:, :width]), np.ascontiguousarray(moves[:, width:end]), versions)
    return moved, rows


def _write(part: Float32, rows: Float32) -> Float32:
    part[: rows.size] = rows.reshape(-1)
    return part[rows.size :]
