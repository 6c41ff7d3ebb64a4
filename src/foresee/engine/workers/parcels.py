"""Rows of several kinds in one flat buffer for each peer, and back.

In: the transfers of a record that go over together, and the arrays they are taken from. Out: one float32 buffer with
the peers' parts one after another, and the sizes of the parts. Both sides know all sizes from their records, so nothing
but rows travels. In a part, gradients come first, then copies, then the values, states, versions and ids of rows that
move: column after column, versions and ids as their bits, so that what arrives is used where it lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee.plan.record import Int32, Int64, Kind, Transfers
from foresee.store.contract import Layout, Rows

Float32 = NDArray[np.float32]
KINDS = tuple(int(kind) for kind in Kind)
NUM_EXCHANGES = 3
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


def parcels_of(transfers: Transfers, exchange: Int32, num_workers: int) -> list[list[Parcel]]:
    """For each of the exchanges 0, 1 and 2 one parcel for each worker; `exchange` says which a transfer belongs to."""
    num_piles = NUM_EXCHANGES * num_workers * len(KINDS)
    pile = (exchange * num_workers + transfers.peer) * len(KINDS) + transfers.kind
    order = np.argsort(pile, kind="stable")
    ends = np.searchsorted(pile[order], np.arange(1, num_piles))
    piles = np.split(transfers.slot[order], ends)
    return [
        [_parcel(peer, piles[(number * num_workers + peer) * len(KINDS) :]) for peer in range(num_workers)]
        for number in range(NUM_EXCHANGES)
    ]


def _parcel(peer: int, of_kinds: list[Int32]) -> Parcel:
    return Parcel(peer, of_kinds[GRAD], of_kinds[VALUE], of_kinds[MOVE])


def pack(contents: list[Contents], parcels: list[Parcel], layout: Layout) -> tuple[Tensor, list[int]]:
    """One buffer for all peers, and how much of it is whose."""
    sizes = [parcel.size(layout) for parcel in parcels]
    buffer = torch.empty(sum(sizes))
    begin = 0
    for parcel, content in zip(parcels, contents, strict=True):
        moved = content.moved
        columns = (content.gradients, content.values, moved.values, moved.state, moved.versions, content.moved_rows)
        begin = _write(buffer.numpy(), begin, columns)
        assert begin == sum(sizes[: parcel.peer + 1]), "contents are not what the parcel says"
    return buffer, sizes


def unpack(buffer: Tensor, parcels: list[Parcel], layout: Layout) -> list[Contents]:
    """What each peer sent, as views of the buffer."""
    floats, contents, begin = buffer.numpy(), [], 0
    for parcel in parcels:
        num_moves = len(parcel.moves)
        shapes = (
            (len(parcel.gradients), layout.width), (len(parcel.values), layout.width), (num_moves, layout.width),
            (num_moves, layout.state_width), (num_moves, 1), (num_moves, 2),
        )  # fmt: skip
        columns = []
        for rows, width in shapes:
            columns.append(floats[begin : begin + rows * width].reshape(rows, width))
            begin += rows * width
        gradients, values, moved, state, versions, rows_moved = columns
        # Ids may begin at an odd place, where eight bytes at once are not welcome everywhere.
        ids = rows_moved.reshape(-1).copy().view(np.int64)
        contents.append(Contents(gradients, values, Rows(moved, state, versions.reshape(-1).view(np.int32)), ids))
    return contents


def _write(floats: Float32, begin: int, columns: tuple[NDArray[Any], ...]) -> int:
    """Puts arrays one after the other, whole numbers as their bits; gives where the last one ends."""
    for column in columns:
        flat = column.reshape(-1).view(np.float32)
        floats[begin : begin + len(flat)] = flat
        begin += len(flat)
    return begin
