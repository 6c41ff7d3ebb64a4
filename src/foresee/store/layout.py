"""The tables that a store holds: names, sizes, widths, dtype and seed; as an object and as a JSON document.

`Layout` fixes the bytes of a new store: two stores with equal layouts start with equal rows. `read_layout` checks a
document from outside and names what is wrong in it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from foresee.arrays import Float32
from foresee.errors import ConfigError
from foresee.io import bounded_json
from foresee.io.files import Files
from foresee.io.hashing import key_of
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
    """What the values are: one of `store.halves.DTYPES`. The state is float32 in any case."""
    rounding: str = "stochastic"
    """How values of two bytes are rounded: one of `store.halves.ROUNDINGS`."""
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
