"""Rows that are only read, such as features of nodes: any planner's plan, with nothing applied or written back.

A row that leaves is dropped instead of evicted. The store never changes, so a fetch waits for no write-back and the
planner knows no version of any row. Which rows are fetched when, into which slots, is the planner's own choice.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foresee.plan.record import UNKNOWN_VERSION, Accesses, Evict, Header, Kind, Planner, Record, Transfers, empty_int32


class ReadOnly:
    """The planner of rows that are only read, made of one for rows that learn."""

    def __init__(self, header: Header, inner: Planner) -> None:
        self.header = header
        self._inner = inner

    def push(self, accesses: Accesses) -> list[Record]:
        return [self._only_reading(record) for record in self._inner.push(accesses)]

    def finish(self) -> list[Record]:
        return [self._only_reading(record) for record in self._inner.finish()]

    def _only_reading(self, record: Record) -> Record:
        unknown = np.full(len(record.fetch), UNKNOWN_VERSION, np.int32)
        return replace(
            record,
            fetch=replace(record.fetch, version=unknown),
            not_before=max(record.step - 1 - self.header.fetch_ahead_steps, -1),
            apply=empty_int32(),
            evict=Evict(),
            drop=np.concatenate([record.drop, record.evict.slot]),
            send=_without_gradients(record.send),
            recv=_without_gradients(record.recv),
        )


def _without_gradients(transfers: Transfers) -> Transfers:
    rows = transfers.kind != Kind.GRAD
    return Transfers(transfers.peer[rows], transfers.slot[rows], transfers.kind[rows], transfers.deadline[rows])
