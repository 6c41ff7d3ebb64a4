"""The contracts of a store: where rows live when no worker holds them; and their layout, also as JSON.

A row is `width` values, float32 or halves (`base.halves`), `state_width` float32 of optimiser state, and a version (see
plan.record); stores carry the values as words of 4 bytes and look at none. Reads of a row nobody has written give its
initial value, which follows from (seed, row) alone, version 0 and a zero state. Writes assign, never add, and a write
with a lower version than the stored one is refused row by row (the stored row stays): so a retry after a lost reply is
harmless. A request is checked before anything is touched.

`Store` is what a loop needs; `TwoPhaseStore` commits rows together with a dense half, by the decisions of `commits`;
`guarded.GuardedStore` names the write-backs a read depends on. A store whose class says `takes_next_use = True` is told
when rows are used next: `write(rows, source, next_use=...)`. `foresee.testing` has each as executable tests:
`StoreSuite`, `TwoPhaseStoreSuite`, `GuardedStoreSuite`. A layout from a file or wire that somebody else wrote is
refused with a sentence where it is none, or no disk could hold it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from foresee.arrays import Float32, Int32, Int64
from foresee.errors import ConfigError, StoreError, UsageError
from foresee.io import bounded_json
from foresee.io.disk_stats import DiskFigures
from foresee.io.files import Files
from foresee.io.hashing import key_of
from foresee.store.commits import Instruction, Message, OpenAt, Part, Prepare, Settle, decide
from foresee.store.halves import DTYPES, ROUNDINGS, unpacked, words_of_width


@dataclass(frozen=True, slots=True)
class Table:
    """A named range of rows."""

    name: str
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What rows a store holds and how a row looks. Two stores with equal layouts start with equal bytes."""

    tables: tuple[Table, ...]
    width: int
    """Values of a row (embedding columns plus extra columns such as first-order weights)."""
    state_width: int
    """float32 of optimiser state of a row."""
    optimizer: str
    """Name of the optimiser the state belongs to."""
    seed: int = 0
    init_scale: float = 0.01
    """Initial values are uniform in [-init_scale, init_scale)."""
    dtype: str = "float32"
    """What the values are: one of `base.halves.DTYPES`. The state is float32 in any case."""
    rounding: str = "stochastic"
    """How values of two bytes are rounded: one of `base.halves.ROUNDINGS`."""
    widths: tuple[tuple[int, int], ...] = ()
    """(width, state_width) of each table, where they differ: then `width` and `state_width` are 0, and the rows lie in
    `groups`. No store holds them as one."""

    @property
    def groups(self) -> tuple[Layout, ...]:
        """The layout of each row group: the tables of one width, numbered from 0, in the order of their first table."""
        if not self.widths:
            return (self,)
        return tuple(self._group(width, state_width) for width, state_width in dict.fromkeys(self.widths))

    def _group(self, width: int, state_width: int) -> Layout:
        tables = tuple(it for it, widths in zip(self.tables, self.widths, strict=True) if widths[0] == width)
        # Row 0 of one group must not begin as row 0 of another does.
        seed = key_of(self.seed, width)
        return replace(self, tables=tables, width=width, state_width=state_width, widths=(), seed=seed)

    @property
    def value_words(self) -> int:
        """Words of 4 bytes that the values of a row take: two halves each."""
        return words_of_width(self.width, self.dtype)

    @property
    def num_rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in a store or on a wire: values, state, version. Of several widths: the mean of all rows."""
        if self.widths:
            return round(self.num_bytes / max(1, self.num_rows))
        return 4 * (self.value_words + self.state_width + 1)

    def unpack(self, values: Float32) -> Float32:
        """[rows, width]: values as `Rows` has them, as float32."""
        return unpacked(values, self.width, self.dtype)

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return sum(group.num_rows * group.row_bytes for group in self.groups)

    def offset_of(self, name: str) -> int:
        """First global row id of a table."""
        offset = 0
        for table in self.tables:
            if table.name == name:
                return offset
            offset += table.num_rows
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Rows:
    """Values, state and versions of some rows, as parallel arrays that the caller owns."""

    values: Float32  # [rows, value_words]: the values, or as many words that hold halves
    state: Float32  # [rows, state_width]
    versions: Int32  # [rows]

    @classmethod
    def empty(cls, num_rows: int, layout: Layout) -> Rows:
        return cls(
            np.empty((num_rows, layout.value_words), np.float32),
            np.empty((num_rows, layout.state_width), np.float32),
            np.empty(num_rows, np.int32),
        )

    def __len__(self) -> int:
        return len(self.versions)

    def first(self, num_rows: int) -> Rows:
        """A view of the first rows: staging buffers are allocated once and used in part."""
        return self.part(slice(num_rows))

    def part(self, which: slice) -> Rows:
        """A view of some rows."""
        return Rows(self.values[which], self.state[which], self.versions[which])


class Store(Protocol):
    """Rows by global id. One writer thread and one reader thread may use it at once, on disjoint rows."""

    @property
    def layout(self) -> Layout: ...

    @property
    def committed_step(self) -> int:
        """Number of steps contained in the last commit; 0 for a fresh store."""
        ...

    def read(self, rows: Int64, out: Rows) -> None:
        """Fills `out` with the rows, in the order asked.

        Args:
            rows: Distinct ids.
            out: Where values, state and versions go.
        """
        ...

    def write(self, rows: Int64, source: Rows) -> None:
        """Assigns the rows. On return a read of them sees what was written.

        Args:
            rows: Distinct ids.
            source: Their values, state and versions.
        """
        ...

    def commit(self, step: int) -> None:
        """Makes everything written so far durable.

        Args:
            step: The number of steps that it is the state after.
        """
        ...

    def close(self) -> None:
        """Releases files and memory; what was written since the last commit is given up. May be called twice."""
        ...


@runtime_checkable
class TwoPhaseStore(Store, Protocol):
    """A store whose commits belong together with something else."""

    @property
    def parts(self) -> Sequence[Part]:
        """What each part has, for `step_to_open`."""
        ...

    def prepare(self, step: int) -> None:
        """Makes everything written so far durable as the state after `step` steps; the last commit stays."""
        ...

    def settle(self, step: int) -> None:
        """The prepared step is the last commit; the one before can still be opened."""
        ...

    def open_at(self, step: int) -> None:
        """Goes to a commit that all parts have, and gives up everything after it."""
        ...


class SinglePart(Protocol):
    """A store that is one part."""

    @property
    def parts(self) -> Sequence[Part]: ...

    def carry_out(self, instruction: Instruction) -> None: ...


@runtime_checkable
class PartStore(TwoPhaseStore, SinglePart, Protocol):
    """A two-phase store that is one part, alone or as a shard of a server."""


def written_rows(store: Store, begin: int, end: int) -> Int64:
    """The rows of a range that somebody has written, ascending: those of a version above 0."""
    if hasattr(store, "written"):
        written: Int64 = store.written(begin, end)
        return written
    rows = np.arange(begin, end, dtype=np.int64)
    found = Rows.empty(len(rows), store.layout)
    store.read(rows, found)
    return rows[found.versions > 0]


def disks_of(store: object) -> list[DiskFigures]:
    """What a store has read from disks and written to them so far, one entry for each; empty if it does not say."""
    ask = getattr(store, "disks", None)
    return list(ask()) if ask is not None else []


def prepare_part(store: SinglePart, step: int) -> None:
    _obey(store, Prepare(run=None, step=step, on=store.parts[0].committed))


def settle_part(store: SinglePart, step: int) -> None:
    _obey(store, Settle(run=None, step=step))


def open_part(store: SinglePart, step: int) -> None:
    part = store.parts[0]
    _obey(store, OpenAt(run="this process", incarnation=part.incarnation, epoch=part.epoch, step=step))


def _obey(store: SinglePart, message: Message) -> None:
    decision = decide(store.parts[0], message)
    decision.check()
    for instruction in decision.instructions:
        store.carry_out(instruction)


def check_request(layout: Layout, rows: Int64, buffers: Rows) -> None:
    """Raises StoreError for a row id outside the tables, UsageError for buffers that do not fit."""
    _check_buffers(layout, rows, buffers)
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= layout.num_rows):
        outside = rows[(rows < 0) | (rows >= layout.num_rows)]
        raise StoreError(outside_sentence(layout, int(outside[0])))


def outside_sentence(layout: Layout, row: int) -> str:
    """Says where the tables end, for a row id that is in none of them."""
    first, last = layout.tables[0], layout.tables[-1]
    if row < 0:
        place = f"rows start at 0 with table '{first.name}'"
    else:
        begin = layout.num_rows - last.num_rows
        place = f"the last table '{last.name}' holds rows {begin} to {layout.num_rows - 1}"
    return f"row {row} is in no table: {place}; check that the log and the tables belong together"


def row_name(layout: Layout, row: int) -> str:
    """Such as "row 12 of table 'user'"."""
    first = 0
    for table in layout.tables:
        if row < first + table.num_rows:
            return f"row {row - first} of table '{table.name}'"
        first += table.num_rows
    return f"row {row}"


def _check_buffers(layout: Layout, rows: Int64, buffers: Rows) -> None:
    if rows.dtype != np.int64 or rows.ndim != 1:
        raise UsageError(f"row ids must be one int64 array, got {rows.dtype} with {rows.ndim} dimensions")
    expected = (
        ("values", buffers.values, (len(rows), layout.value_words), np.float32),
        ("state", buffers.state, (len(rows), layout.state_width), np.float32),
        ("versions", buffers.versions, (len(rows),), np.int32),
    )
    for name, array, shape, dtype in expected:
        if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
            raise UsageError(
                f"{name} must be a contiguous {np.dtype(dtype)} array of shape {shape}, "
                f"got {array.dtype} of shape {array.shape}; use Rows.empty(len(rows), store.layout)"
            )


WIDTH_MAX = 1 << 20
TABLES_MAX = 1 << 20
SEED_MAX = (1 << 64) - 1
HALF_KEYS = ("dtype", "rounding")


def layout_to_dict(layout: Layout) -> dict[str, Any]:
    """The same keys as `layout.json` of a table folder; `widths` only where tables have several, `dtype` where it is
    not float32."""
    content = asdict(layout)
    left_out = (() if layout.widths else ("widths",)) + (() if layout.dtype != "float32" else HALF_KEYS)
    return {name: value for name, value in content.items() if name not in left_out}


def layout_from_dict(content: Any) -> Layout:
    """Raises ValueError for what is not a layout."""
    if not isinstance(content, dict):
        raise ValueError("a layout is an object")
    entries = bounded_json.objects(content, "tables")
    if len(entries) > TABLES_MAX:
        raise ValueError(f"it has {len(entries):,} tables, more than {TABLES_MAX:,}")
    layout = Layout(
        tables=tuple(
            Table(bounded_json.text_of(entry, "name"), bounded_json.whole(entry, "num_rows", 0, bounded_json.LARGE_MAX))
            for entry in entries
        ),
        width=bounded_json.whole(content, "width", 0, WIDTH_MAX),
        state_width=bounded_json.whole(content, "state_width", 0, WIDTH_MAX),
        optimizer=bounded_json.text_of(content, "optimizer"),
        seed=bounded_json.whole(content, "seed", -SEED_MAX, SEED_MAX),
        init_scale=bounded_json.number(content, "init_scale", -1e30, 1e30),
        dtype=one_of(content, "dtype", DTYPES),
        rounding=one_of(content, "rounding", ROUNDINGS),
        widths=_widths(content, len(entries)),
    )
    if layout.num_bytes > bounded_json.LARGE_MAX:
        raise ValueError(f"its {layout.num_rows:,} rows of {layout.row_bytes:,} bytes are more than any disk holds")
    return layout


def one_of(content: dict[str, Any], name: str, known: tuple[str, ...]) -> str:
    """A word out of JSON, the first known one if it is not there; ValueError for any other."""
    value = content.get(name, known[0])
    if value not in known:
        raise ValueError(f"{name} is {repr(value)[:40]}, not one of {', '.join(known)}")
    return str(value)


def _widths(content: dict[str, Any], num_tables: int) -> tuple[tuple[int, int], ...]:
    """Of each table; equal widths have equal states."""
    given = content.get("widths", [])
    if not isinstance(given, list | tuple) or (given and len(given) != num_tables):
        raise ValueError("widths are not one for each table")
    for pair in given:
        sound = isinstance(pair, list | tuple) and len(pair) == 2
        if not sound or not all(type(it) is int and 0 <= it <= WIDTH_MAX for it in pair) or not pair[0]:
            raise ValueError("widths are not pairs of whole numbers")
    widths = tuple((int(width), int(state)) for width, state in given)
    if len(set(widths)) != len({width for width, _ in widths}):
        raise ValueError("tables of one width have states of several")
    return widths


def layout_text(layout: Layout) -> str:
    """What a layout file has in it."""
    return json.dumps(layout_to_dict(layout), indent=2) + "\n"


def write_layout(path: Path, layout: Layout) -> None:
    """Appears whole; replaces only a file with the same tables."""
    content = layout_text(layout)
    try:
        if path.exists():
            if path.read_text("utf-8", "replace") == content:
                return
            raise ConfigError(f"{path} exists and is not the layout of this run; remove it, or give another name")
        Files().publish(path, content.encode())
    except OSError as error:
        raise ConfigError(
            f"the layout file {path} cannot be written ({error.strerror}); give a folder that can be written"
        ) from error


def read_layout(path: Path) -> Layout:
    try:
        layout = layout_from_dict(bounded_json.parse(path.read_bytes()))
    except OSError as error:
        raise ConfigError(f"the layout file {path} cannot be read ({error.strerror}); check its name") from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is not a layout: {error}; it needs tables (name, num_rows), width, state_width, optimizer, "
            "seed and init_scale"
        ) from error
    if layout.num_rows < 1 or (layout.width < 1 and not layout.widths) or layout.state_width < 0:
        raise ConfigError(
            f"{path} describes {layout.num_rows} rows of width {layout.width} and state {layout.state_width}; "
            "tables need rows, and rows at least one value"
        )
    return layout
