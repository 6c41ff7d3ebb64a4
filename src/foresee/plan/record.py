"""What a plan is made of: touches in, records out.

In: for each step the rows its samples touch (`Accesses`). Out: for each (step, worker) one `Record` that says what to
fetch, gather, send, receive, apply and write back, and in which slot. A row id stands only in `fetch` and `evict`;
everything else is slots. Nothing here knows what a row is: an embedding vector today, a partition of a graph later.

A version is 1 + the last step that updated the row; 0 is a row as it was initialised. A planner that starts in the
middle of a run, or has forgotten a row that left its window long ago, says UNKNOWN_VERSION.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np

from foresee.base.arrays import Int32, Int64

FORMAT_VERSION = 1
UNKNOWN_VERSION = -1
NOTHING_BEFORE = -1
"""`not_before` of a fetch that has to wait for no step."""


def empty_int32() -> Int32:
    return np.empty(0, dtype=np.int32)


def empty_int64() -> Int64:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Accesses:
    """The rows that the samples of one global batch touch, in order."""

    rows: Int64  # [lookups]
    sample_offsets: Int32  # [samples + 1]: sample i touches rows[sample_offsets[i]:sample_offsets[i + 1]]

    @property
    def num_samples(self) -> int:
        return len(self.sample_offsets) - 1


@dataclass(frozen=True, slots=True)
class Fetch:
    """Rows to read from the store into slots."""

    row: Int64 = field(default_factory=empty_int64)
    slot: Int32 = field(default_factory=empty_int32)
    version: Int32 = field(default_factory=empty_int32)
    """The version each row must have in the store when it is read, or UNKNOWN_VERSION."""

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True)
class Evict:
    """Slots to write back to the store after the step; then they are free."""

    slot: Int32 = field(default_factory=empty_int32)
    row: Int64 = field(default_factory=empty_int64)
    version: Int32 = field(default_factory=empty_int32)

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True)
class Push:
    """Slots whose own updates since their last push are added to the store's rows after the step; the slots stay.

    Only protocols that add at the store push; `check_additive` has their rules. There an eviction is the push of a
    slot that is free afterwards.
    """

    slot: Int32 = field(default_factory=empty_int32)
    row: Int64 = field(default_factory=empty_int64)

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True)
class Reduce:
    """Slots of replicas whose gradients are summed over all workers; each then applies the sum to its own replica.

    Every worker lists the same rows in the same order.
    """

    slot: Int32 = field(default_factory=empty_int32)
    deadline: Int32 = field(default_factory=empty_int32)
    """The step that needs it, as for `Transfers`."""

    def __len__(self) -> int:
        return len(self.slot)


class Kind(IntEnum):
    """What travels between two workers."""

    VALUE = 0
    """A copy of the row for one step."""
    MOVE = 1
    """Value and optimiser state: ownership passes."""
    GRAD = 2
    """A summed gradient, to the row's owner."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """Rows that go to, or come from, other workers."""

    peer: Int32 = field(default_factory=empty_int32)
    slot: Int32 = field(default_factory=empty_int32)
    kind: Int32 = field(default_factory=empty_int32)
    deadline: Int32 = field(default_factory=empty_int32)
    """The step that needs it. The next step: on the critical path. A later one: in the background."""

    def __len__(self) -> int:
        return len(self.peer)


@dataclass(frozen=True, slots=True)
class Record:
    """Everything one worker does in one step."""

    step: int
    worker: int
    samples: Int32
    """Positions in the global batch that this worker trains."""
    unique: Int32
    """Slots of the distinct rows its samples touch, in order of first touch."""
    inverse: Int32
    """For each lookup of its samples, the position in `unique`."""
    fetch: Fetch
    not_before: int
    """The fetch may be issued once the write-backs of this step, and of all before it, are applied at the store."""
    apply: Int32
    """Slots whose optimiser step this worker performs."""
    evict: Evict
    digest: int
    """Checksum of the row ids of this worker's lookups, so that a plan cannot be run with other data."""
    recv: Transfers = field(default_factory=Transfers)
    """Rows that arrive after this step, for the step of their deadline; a GRAD belongs to this step's rows."""
    send: Transfers = field(default_factory=Transfers)
    """Rows that leave after this step, in the order in which the peer lists them in `recv`. A MOVE frees its slot."""
    drop: Int32 = field(default_factory=empty_int32)
    """Slots of copies that served this step only: free after it, without a write-back."""
    push: Push = field(default_factory=Push)
    refresh: Fetch = field(default_factory=Fetch)
    """Slots that hold the row already and get the store's value plus their own updates that were not pushed yet."""
    reduce: Reduce = field(default_factory=Reduce)


@dataclass(frozen=True, slots=True)
class Counters:
    """What a plan moves, counted; the same numbers whoever planned it."""

    num_steps: int = 0
    num_lookups: int = 0
    num_unique: int = 0
    """Distinct rows, summed over steps."""
    num_fetched: int = 0
    num_evicted: int = 0
    num_received: int = 0
    num_received_critical: int = 0
    peak_slots: int = 0
    """Most slots of one worker in use at once."""
    num_pushed: int = 0
    num_refreshed: int = 0
    num_fetched_critical: int = 0
    """Fetches and refreshes of rows that were written back or pushed after the step right before."""
    num_written_critical: int = 0
    """Write-backs and pushes of rows that are fetched in the step right after."""
    num_reduced: int = 0
    """Rows summed over all workers, counted by each of them."""
    num_reduced_critical: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the distinct rows of a step that were in the cache already."""
        return 1.0 - self.num_fetched / self.num_unique if self.num_unique else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a plan is for; stands before its records."""

    planner: str
    parameters: dict[str, int | float | str | None]
    num_workers: int
    capacity_rows: int
    """Slots of each worker."""
    num_rows: int
    """Rows of all tables: every row id is below this."""
    first_step: int
    num_steps: int
    fetch_ahead_steps: int
    """A fetch is issued at most this many steps before the step before its own; it bounds staging memory."""
    stream_digest: str
    """Identity of the batch stream the plan was made from."""
    format_version: int = FORMAT_VERSION


class Planner(Protocol):
    """Touches in, records out, in step order. A record may come out later than its touches went in."""

    header: Header

    def push(self, accesses: Accesses) -> list[Record]:
        """Takes the next step's touches; returns the records that are now decided."""
        ...

    def finish(self) -> list[Record]:
        """The stream has ended: returns the remaining records. The last one writes everything back."""
        ...
