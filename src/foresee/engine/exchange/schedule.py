"""What of a record is sent in which exchange, and how it is laid out in one flat buffer for each peer.

In: the record of one worker and step. Out: an `ExchangeSchedule`: a `PeerBuffer` for each peer in each of the step's
three exchanges (gradients, rows, background; see `protocol`), and where in the step's gradients they are taken from and
added to. Pure: it follows from the record alone, so both ends come to the same sizes, long before the step.

`pack` and `unpack`: one buffer of words (float32 to torch) with the peers' parts one after another. In a part,
gradients come first, which are float32 in any case, then copies, then values, states, versions and ids of moved rows:
column after column, whole numbers and halves as their bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee.arrays import Float32, Int32, Int64
from foresee.plan.record import Kind, Record, Transfers, empty_int32
from foresee.store.contract import Rows
from foresee.store.layout import Layout

KINDS = tuple(int(kind) for kind in Kind)
NUM_EXCHANGES = 3
GRAD, VALUE, MOVE = int(Kind.GRAD), int(Kind.VALUE), int(Kind.MOVE)


@dataclass(frozen=True, slots=True)
class PeerBuffer:
    """Transfers with one peer that go over together, by kind, each in the order of the record."""

    peer: int
    gradients: Int32  # slots
    values: Int32
    moves: Int32

    def size(self, layout: Layout) -> int:
        """Words it takes."""
        floats, words = len(self.gradients) * layout.width, len(self.values) * layout.value_words
        return floats + words + len(self.moves) * move_width(layout)


@dataclass(frozen=True, slots=True)
class Payload:
    """The rows and gradients that a `PeerBuffer` describes."""

    gradients: Float32  # [rows, width]
    values: Float32  # [rows, value_words]
    moved: Rows
    moved_rows: Int64


def move_width(layout: Layout) -> int:
    """Words of a moved row: values, state, version, and the row id in two."""
    return layout.value_words + layout.state_width + 3


def peer_buffers_of(transfers: Transfers, exchange: Int32, num_workers: int) -> list[list[PeerBuffer]]:
    """For each of the exchanges 0, 1 and 2 one buffer for each worker; `exchange` says which a transfer belongs to."""
    num_piles = NUM_EXCHANGES * num_workers * len(KINDS)
    pile = (exchange * num_workers + transfers.peer) * len(KINDS) + transfers.kind
    order = np.argsort(pile, kind="stable")
    ends = np.searchsorted(pile[order], np.arange(1, num_piles))
    piles = np.split(transfers.slot[order], ends)
    return [
        [_peer_buffer(peer, piles[(number * num_workers + peer) * len(KINDS) :]) for peer in range(num_workers)]
        for number in range(NUM_EXCHANGES)
    ]


def _peer_buffer(peer: int, of_kinds: list[Int32]) -> PeerBuffer:
    return PeerBuffer(peer, of_kinds[GRAD], of_kinds[VALUE], of_kinds[MOVE])


def pack(contents: list[Payload], peer_buffers: list[PeerBuffer], layout: Layout) -> tuple[Tensor, list[int]]:
    """One buffer for all peers, and how much of it is whose."""
    sizes = [peer_buffer.size(layout) for peer_buffer in peer_buffers]
    buffer = torch.empty(sum(sizes))
    begin = 0
    for peer_buffer, content in zip(peer_buffers, contents, strict=True):
        moved = content.moved
        columns = (content.gradients, content.values, moved.values, moved.state, moved.versions, content.moved_rows)
        begin = _write(buffer.numpy(), begin, columns)
        assert begin == sum(sizes[: peer_buffer.peer + 1]), "contents are not what the buffer describes"
    return buffer, sizes


def unpack(buffer: Tensor, peer_buffers: list[PeerBuffer], layout: Layout) -> list[Payload]:
    """What each peer sent, as views of the buffer."""
    floats, contents, begin = buffer.numpy(), [], 0
    for peer_buffer in peer_buffers:
        num_moves = len(peer_buffer.moves)
        shapes = (
            (len(peer_buffer.gradients), layout.width), (len(peer_buffer.values), layout.value_words),
            (num_moves, layout.value_words), (num_moves, layout.state_width), (num_moves, 1), (num_moves, 2),
        )  # fmt: skip
        columns = []
        for rows, width in shapes:
            columns.append(floats[begin : begin + rows * width].reshape(rows, width))
            begin += rows * width
        gradients, values, moved, state, versions, rows_moved = columns
        # Ids may begin at an odd place, where eight bytes at once are not welcome everywhere.
        ids = rows_moved.reshape(-1).copy().view(np.int64)
        contents.append(Payload(gradients, values, Rows(moved, state, versions.reshape(-1).view(np.int32)), ids))
    return contents


def _write(floats: Float32, begin: int, columns: tuple[NDArray[Any], ...]) -> int:
    """Puts arrays one after the other, whole numbers as their bits; gives where the last one ends."""
    for column in columns:
        flat = column.reshape(-1).view(np.float32)
        floats[begin : begin + len(flat)] = flat
        begin += len(flat)
    return begin


BACKGROUND = 2
NOT_HERE = -1


@dataclass(frozen=True, slots=True)
class Joint:
    """Owned rows that get gradients of peers in one exchange."""

    slots: Int32
    own: Int64
    """Their places in the gradients that travel."""
    added: list[Int64]
    """For each worker, the places in `slots` to which its gradients are added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientExchange:
    """One exchange of all gradients that a step sends, whether its update needs them now or in the background."""

    outgoing: list[PeerBuffer]
    incoming: list[PeerBuffer]
    sent: list[Int64]
    """For each worker, the places in `travelling` of the gradients that go to it."""
    owned: Joint
    """All shared rows of the step that this worker owns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSchedule:
    """The exchanges of one worker's step; each list has one entry for each worker."""

    gradients_out: list[PeerBuffer]
    gradients_in: list[PeerBuffer]
    rows_out: list[PeerBuffer]
    rows_in: list[PeerBuffer]
    background_out: list[PeerBuffer]
    background_in: list[PeerBuffer]
    travelling: Int32
    """Positions in `unique` whose gradient is sent, or joined by those of peers."""
    gradients_sent: list[Int64]
    """Places in `travelling` of the gradients that go out now."""
    background_sent: list[Int64]
    now: Joint
    """Applied once the gradients of the critical path are there."""
    late: Joint
    """Waits for gradients of the background."""
    alone_leaving: Int32
    """Positions in `unique` of rows that only this worker uses in this step, and that leave its cache after it."""
    alone_staying: Int32
    moved: Int32
    """Slots whose row leaves for another owner."""

    @classmethod
    def of(cls, record: Record, num_workers: int) -> ExchangeSchedule:
        send, recv = record.send, record.recv
        gradients_out, rows_out, background_out = peer_buffers_of(send, _exchange(send, record.step), num_workers)
        gradients_in, rows_in, background_in = peer_buffers_of(recv, _exchange(recv, record.step), num_workers)
        gradient_out = send.kind == Kind.GRAD
        slots = np.unique(np.concatenate([send.slot[gradient_out], recv.slot[recv.kind == Kind.GRAD]]))
        positions = _Positions(record.unique)
        alone = positions.without(record.apply, slots)
        leaves = positions.mark(np.concatenate([record.evict.slot, send.slot[~gradient_out]]))[alone]
        return cls(
            gradients_out=gradients_out,
            gradients_in=gradients_in,
            rows_out=rows_out,
            rows_in=rows_in,
            background_out=background_out,
            background_in=background_in,
            travelling=positions.of(slots),
            gradients_sent=[np.searchsorted(slots, peer_buffer.gradients) for peer_buffer in gradients_out],
            background_sent=[np.searchsorted(slots, peer_buffer.gradients) for peer_buffer in background_out],
            now=_joint(slots, gradients_in),
            late=_joint(slots, background_in),
            alone_leaving=alone[leaves],
            alone_staying=alone[~leaves],
            moved=send.slot[send.kind == Kind.MOVE],
        )

    def gradients_at_once(self, record: Record) -> GradientExchange:
        """Return the exchange that sends every gradient of the step to its owner without waiting for the background."""
        incoming = _joined_gradients(self.gradients_in, self.background_in)
        sent = zip(self.gradients_sent, self.background_sent, strict=True)
        return GradientExchange(
            outgoing=_joined_gradients(self.gradients_out, self.background_out),
            incoming=incoming,
            sent=[np.concatenate(places) for places in sent],
            owned=_joint(record.unique[self.travelling], incoming),
        )


def _joined_gradients(now: list[PeerBuffer], late: list[PeerBuffer]) -> list[PeerBuffer]:
    return [
        PeerBuffer(one.peer, np.concatenate([one.gradients, other.gradients]), empty_int32(), empty_int32())
        for one, other in zip(now, late, strict=True)
    ]


def _exchange(transfers: Transfers, step: int) -> Int32:
    """Which of the three each transfer goes over with: gradients, rows, background."""
    is_row = (transfers.kind != Kind.GRAD).astype(np.int32)
    return np.where(transfers.deadline == step + 1, is_row, np.int32(BACKGROUND))


def _joint(travelling: Int32, incoming: list[PeerBuffer]) -> Joint:
    slots = np.unique(np.concatenate([peer_buffer.gradients for peer_buffer in incoming]))
    added = [np.searchsorted(slots, peer_buffer.gradients) for peer_buffer in incoming]
    return Joint(slots, np.searchsorted(travelling, slots), added)


class _Positions:
    """From slots to positions in `unique`."""

    def __init__(self, unique: Int32) -> None:
        self._num_unique = len(unique)
        self._place = np.full(int(unique.max(initial=-1)) + 1, NOT_HERE, np.int32)
        self._place[unique] = np.arange(len(unique), dtype=np.int32)

    def of(self, slots: Int32) -> Int32:
        return self._place[slots]

    def mark(self, slots: Int32) -> NDArray[np.bool_]:
        """[unique]: whether a position's slot is among these; slots that the step does not use count for nothing."""
        marks = np.zeros(self._num_unique + 1, np.bool_)
        marks[self._place[slots[slots < len(self._place)]]] = True  # NOT_HERE marks the entry beyond the last
        return marks[:-1]

    def without(self, slots: Int32, others: Int32) -> Int32:
        """Positions of slots that are not among the others."""
        positions = self.of(slots)
        return positions[~self.mark(others)[positions]]
