"""What a plan is made of: accesses in, records out.

In: for each step the rows its samples access (`Accesses`). Out: for each (step, worker) one `Record` that says what to
fetch, gather, send, receive, apply and write back, and in which slot. A row id stands only in `fetch` and `evict`;
everything else is slots. Nothing here knows what a row is: an embedding vector today, a partition of a graph later.

A version is 1 + the last step that updated the row; 0 is a row as it was initialised. A planner that starts in the
middle of a run, or has forgotten a row that left its window long ago, says UNKNOWN_VERSION.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.errors import PlanError
from foresee.plan.row_groups import RowGroup, divided, from_list

FORMAT_VERSION = 2
"""1 has no `evict.next_use`; such plans are read, too."""
UNKNOWN_VERSION = -1
NOT_KNOWN = -1
"""`next_use` of a row whose next use is not inside what the planner knows."""
NOTHING_BEFORE = -1
"""`not_before` of a fetch that has to wait for no step."""
Value = int | str | None
"""Of an option, in JSON."""


def empty_int32() -> Int32:
    return np.empty(0, dtype=np.int32)


def empty_int64() -> Int64:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Accesses:
    """The rows that the samples of one global batch access, in order."""

    rows: Int64  # [lookups]
    sample_offsets: Int32  # [samples + 1]: sample i accesses rows[sample_offsets[i]:sample_offsets[i + 1]]
    next_uses: Callable[[Int64], Int32] | None = None
    """(distinct rows in order of first access) -> the step that uses each next, or NOT_KNOWN; None: not looked for."""
    drained: bool = False
    """Nothing is in flight when its rows are read: all updates before this step are there, whatever may be stale."""
    is_last_known: bool = False
    """The next step's accesses are known only after this step is trained, so its record must not wait for them."""

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
    next_use: Int32 = field(default_factory=empty_int32)
    """The step that uses each row next, or NOT_KNOWN; empty: nobody knows any. A hint for stores: a store may lay a row
    beside others of that step, and no byte that it returns depends on it."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def known_next_use(self) -> Int32 | None:
        """`next_use` as stores take it: one for each row, or None."""
        return self.next_use if len(self.next_use) else None


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


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """Slots that a later step reads now, before the updates of this step and of those between: a batch in flight."""

    step: int
    slot: Int32
    """Of its distinct rows, in order of first access."""


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
    """Slots of the distinct rows its samples access, in order of first access."""
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
    """Slots that are free after the step without a write-back: of copies that served this step only, and of rows that
    are only read."""
    read_ahead: tuple[ReadAhead, ...] = ()
    """What later steps read in this one, once its fetch is in the slots; empty where training is synchronous."""

    @property
    def learns(self) -> bool:
        """Whether this worker's gradient is used, here or at the owner of a row."""
        return len(self.apply) > 0 or bool((self.send.kind == Kind.GRAD).any())

    @property
    def gradient_positions(self) -> Int32:
        """Positions in `unique` of rows that have a gradient: of all rows, or of none where rows are only read."""
        return np.arange(len(self.unique) if self.learns else 0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class ComparedRecord(Record):
    """A record of a protocol that is planned to be compared and that no engine runs: workers add at the store, or sum
    over replicas. Nothing here fits a saved plan; whoever keeps or runs records refuses this type (`refuse_compared`).
    """

    push: Push = field(default_factory=Push)
    refresh: Fetch = field(default_factory=Fetch)
    """Slots that hold the row already and get the store's value plus their own updates that were not pushed yet."""
    reduce: Reduce = field(default_factory=Reduce)


_NOTHING_MORE = (Push(), Fetch(), Reduce())


def compared_parts(record: Record) -> tuple[Push, Fetch, Reduce]:
    """(push, refresh, reduce) for whoever counts and checks records of every protocol alike; empty of a plain one."""
    if isinstance(record, ComparedRecord):
        return record.push, record.refresh, record.reduce
    return _NOTHING_MORE


def refuse_compared(record: Record, what: str) -> None:
    """A sentence for a record that only compares, where one is to be kept or run; `what` says which, as `kept`."""
    if isinstance(record, ComparedRecord):
        raise PlanError(
            f"step {record.step}, worker {record.worker}: its pushes, refreshes and sums over replicas cannot be "
            f"{what}; such plans are made to be compared, not trained: take lookahead or another that trains"
        )


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
class PlannerOptions:
    """What a planner is told beside the sizes of its header. None: as the planner thinks best."""

    window_steps: int | None = None
    """A fixed lookahead, instead of all that the cache can use."""
    window_bytes: int | None = None
    """What the batches of the window may take."""
    window_first_bytes: int | None = None
    """What they may take at first; from there on the window grows by what is planned. None: all of it at once."""
    remember_versions: bool = False
    """Predict the version of every fetched row, however long ago it was written."""
    placement: str | None = None
    placement_positions: tuple[int, ...] | None = None
    """The positions of lookups in a sample that placement looks at; None: all."""
    planned_from: int | None = None
    """The step at which the plan began, if it is entered at a later one and has to go on as it would have."""
    read_ahead_steps: int | None = None
    """Batches that may wait in memory, where they come from a source that is read only once."""
    staleness: int = 0
    """Updates that a read may miss: of replicas, in protocols that only compare; of batches in flight, in others."""
    read_only: bool = False
    """Nothing is applied, and rows that leave are dropped."""
    partition_rows: int = 1
    """Rows that come and go together, in slots that follow one another; 1: each row on its own."""
    uses_ahead_steps: int | None = None
    """Beyond the window, next uses are known so many steps ahead, or to the end; None: not beyond it. Decides nothing:
    it is what rows are written back with."""

    def to_dict(self) -> dict[str, Value]:
        """As JSON has it in saved plans, in run folders and between processes; some only where they are set."""
        positions = self.placement_positions
        content: dict[str, Value] = {
            "window_steps": self.window_steps,
            "window_bytes": self.window_bytes,
            "remember_versions": int(self.remember_versions),
            "placement": self.placement,
            "placement_positions": None if positions is None else ",".join(map(str, positions)),
            "planned_from": self.planned_from,
        }
        more: dict[str, Value] = {
            "window_first_bytes": self.window_first_bytes, "read_ahead_steps": self.read_ahead_steps,
            "staleness": self.staleness, "read_only": int(self.read_only),
            "partition_rows": self.partition_rows if self.partition_rows > 1 else None,
            "uses_ahead_steps": self.uses_ahead_steps,
        }  # fmt: skip
        return content | {name: value for name, value in more.items() if value}

    @classmethod
    def from_dict(cls, content: Mapping[str, object]) -> PlannerOptions:
        """Raises ValueError for anything that `to_dict` does not write; what is missing is left as it is by default."""
        unknown = sorted(content.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"there is no planner option {unknown[0][:40]!r}")
        given = {name: _option(name, value) for name, value in content.items() if value is not None}
        return cls(**given)


def _option(name: str, value: object) -> Any:
    if name == "placement" and isinstance(value, str):
        return value
    if name == "placement_positions" and isinstance(value, str):
        numbers = value.split(",")
        if all(number.isdecimal() and len(number) < 10 for number in numbers):
            return tuple(map(int, numbers))
    elif name not in ("placement", "placement_positions") and isinstance(value, int) and 0 <= value < 1 << 62:
        return bool(value) if name in ("remember_versions", "read_only") else value
    raise ValueError(f"the planner option {name} is {str(value)[:40]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a plan is for; stands before its records."""

    planner: str
    options: PlannerOptions = PlannerOptions()
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
    groups: tuple[RowGroup, ...] = ()
    """Of tables of several widths: which slots are for which rows. None: all slots are for all rows."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it, the options under `parameters`, and `groups` only where there are some."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        del content["options"]
        groups = [group.to_dict() for group in content.pop("groups")]
        content |= {"groups": groups} if groups else {}
        return {"planner": content.pop("planner"), "parameters": self.options.to_dict(), **content}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Header:
        """Raises ValueError for fields or values that no header has."""
        names = ["parameters" if field.name == "options" else field.name for field in fields(cls)]
        if sorted({"groups", *content}) != sorted(names):
            raise ValueError(f"it has the fields {sorted(content)}")
        for name, value in content.items():
            right = {"planner": str, "stream_digest": str, "parameters": dict, "groups": list}.get(name, int)
            if not isinstance(value, right) or isinstance(value, bool):
                raise ValueError(f"{name} is {value!r}")
        rest = {name: value for name, value in content.items() if name not in ("parameters", "groups")}
        groups = from_list(
            content.get("groups", []), capacity_rows=content["capacity_rows"], num_rows=content["num_rows"]
        )
        return cls(options=PlannerOptions.from_dict(content["parameters"]), groups=groups, **rest)

    def in_slots(self, capacity_rows: int) -> Header:
        """The same in another number of slots, divided anew among the groups."""
        if not self.groups:
            return replace(self, capacity_rows=capacity_rows)
        groups = divided(self.groups, capacity_rows)
        return replace(self, capacity_rows=sum(group.capacity_rows for group in groups), groups=groups)


class Planner(Protocol):
    """Accesses in, records out, in step order. A record may come out later than its accesses went in."""

    header: Header

    def push(self, accesses: Accesses) -> list[Record]:
        """Takes the next step's accesses; returns the records that are now decided.

        Args:
            accesses: The rows of each sample of the step's batch.
        """
        ...

    def finish(self) -> list[Record]:
        """The stream has ended: returns the remaining records. The last one writes everything back."""
        ...
