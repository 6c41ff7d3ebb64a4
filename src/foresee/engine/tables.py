"""The rows of a model, as a person opens them: tables of a log, a width, an optimiser, where they live.

    tables = Tables.on_disk("tables", log, dim=64, optimizer=RowwiseAdagrad(lr=0.05))

Every categorical feature of the log has a table; `dim` is a number, or one for each table by its name. Stores with
equal layouts start with equal bytes, wherever they are. With their commits tables keep a short list of what they were
trained on (`sources.json`): an entry is written before its steps are committed, and counts once a later step is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, get_args, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from foresee.engine.history import Trained, written_down
from foresee.engine.optimizers import Optimizer, check_row_optimizer
from foresee.errors import ConfigError, StoreError, UsageError
from foresee.store.contract import Store, scan
from foresee.store.disk import DiskStore
from foresee.store.disk.folder import FoldAtEnd, FoldLines, kept_log_words, tell
from foresee.store.disk.manifest import MANIFEST_FILE
from foresee.store.halves import DTYPES, ROUNDINGS, packed, rounding_for
from foresee.store.layout import Layout, Table
from foresee.store.memory import MemoryStore
from foresee.store.row_groups import RowGroups, group_folders, groups_of, open_groups

Dims = int | Mapping[str, int]
"""The width of all tables, or of each by its name, `default` standing for those that are not named."""
DEFAULT = "default"


class HasTables(Protocol):
    """The part of a log that tables are made from."""

    @property
    def tables(self) -> Sequence[Any]:
        """Each with a name and num_rows, in the order of row ids."""
        ...


class Loop(Protocol):
    """A run whose cache is ahead of the store."""

    steps_done: int
    failed: bool

    def flush(self) -> None: ...


@runtime_checkable
class KeepsHistory(Protocol):
    """A store that keeps a small document with its rows."""

    history: bytes | None


@runtime_checkable
class GoesBack(Protocol):
    """A store that can give up what was written since its last commit."""

    def open_at(self, step: int) -> None: ...


class Tables:
    """The rows of a model: a store, and the optimiser whose state it keeps. Use it as a context manager, or close it.

    Args:
        store: Where rows live; `in_memory` and `on_disk` make one.
        optimizer: What updates rows, such as `RowwiseAdagrad(lr=0.05)`.

    Raises:
        ConfigError: The optimiser is none for rows.
    """

    def __init__(self, store: Store, optimizer: Optimizer) -> None:
        check_row_optimizer(optimizer)
        self.store = store
        self.optimizer = optimizer
        self.failure: BaseException | None = None
        """Why the commit at the end of the last loop failed, if it did."""
        self._loop: tuple[Loop, int] | None = None
        """The loop that is under way, and its thread."""
        self._left_at = 0
        """The step at which the last loop ended: if it is not committed, the next one has to go back."""
        self._in_disorder = False
        """That loop failed: the store may have rows that are of no step."""
        self._folder: Path | None = None
        self._history: bytes | None = None
        """What these tables were trained on, where the store does not keep it."""

    @classmethod
    def in_memory(
        cls,
        log: HasTables,
        *,
        dim: Dims,
        optimizer: Optimizer,
        seed: int = 0,
        init_scale: float = 0.05,
        dtype: str | None = None,
        rounding: str = "stochastic",
    ) -> Tables:
        """Tables in this process's memory; gone when it ends.

        Args:
            log: A `ClickLog` or `EmbeddingBags`: anything with `tables`, each with a name and a number of rows.
            dim: Values of a row; or by table, such as `{"country": 4, "default": 64}`.
            optimizer: What updates rows.
            seed: Of the rows' initial values, which follow from it, the row and the column.
            init_scale: Initial values are between minus this and this.
            dtype: Of values: float32, bfloat16 or float16. Left out: what `EmbeddingBags` say, else float32.
            rounding: How values of two bytes are rounded: stochastic, or nearest.

        Returns:
            Tables at step 0.

        Raises:
            ConfigError: A value cannot be used.
        """
        layout = layout_for(log, dim, optimizer, seed, init_scale, dtype, rounding)
        return cls(open_groups(layout, Path(), lambda folder, group: MemoryStore(group)), optimizer)

    @classmethod
    def on_disk(
        cls,
        path: str | Path,
        log: HasTables,
        *,
        dim: Dims,
        optimizer: Optimizer,
        seed: int = 0,
        init_scale: float = 0.05,
        dtype: str | None = None,
        rounding: str = "stochastic",
        fold: FoldAtEnd = "auto",
    ) -> Tables:
        """Open tables in a folder, made if it is not there. Only rows that were written take space.

        Args:
            path: The folder.
            log: A `ClickLog` or `EmbeddingBags`: anything with `tables`, each with a name and a number of rows.
            dim: Values of a row; or by table, such as `{"country": 4, "default": 64}`.
            optimizer: What updates rows.
            seed: Of the rows' initial values, which follow from it, the row and the column.
            init_scale: Initial values are between minus this and this.
            dtype: Of values: float32, bfloat16 or float16. Left out: what `EmbeddingBags` say, else float32.
            rounding: How values of two bytes are rounded: stochastic, or nearest.
            fold: Whether `close` writes the rows of the log to `rows.npy`, which numpy reads: "auto", if the log is at
                most 256 MB; "always"; or "never". `foresee fold` does it at any time; everything else reads the log.

        Returns:
            Tables as of their last commit.

        Raises:
            ConfigError: A value cannot be used.
            StoreError: The folder holds tables of another log, width, seed or optimiser, or cannot be written.
        """
        if fold not in get_args(FoldAtEnd):
            raise ConfigError(f"fold is {fold!r}; give one of {', '.join(get_args(FoldAtEnd))}")
        layout = layout_for(log, dim, optimizer, seed, init_scale, dtype, rounding)
        check_one_kind(Path(path), layout)
        store = open_groups(layout, Path(path), DiskStore.open_or_create)
        if isinstance(store, RowGroups):
            store.bring_together()
        for group in groups_of(store):
            group.fold_at_end, group.fold_progress = fold, FoldLines(Path(path))
        tables = cls(store, optimizer)
        tables._folder = Path(path)
        return tables

    @property
    def layout(self) -> Layout:
        return self.store.layout

    def values(self, name: str) -> NDArray[np.float32]:
        """The values of one table with every update so far, also inside a loop.

        Args:
            name: Of the table.

        Returns:
            [rows, dim] as float32, a copy.

        Raises:
            ConfigError: There is no such table.
        """
        self.bring_up_to_date()
        table, store = self._table(name)
        out = np.empty((table.num_rows, store.layout.width), np.float32)
        offset = store.layout.offset_of(name)
        for ids, rows in scan(store, offset, offset + table.num_rows):
            out[ids - offset] = store.layout.unpack(rows.values)
        return out

    def set_values(self, name: str, values: NDArray[np.float32]) -> None:
        """Gives one table other values, such as those of a model trained elsewhere, and commits them.

        Optimiser states and versions stay. Tables of two-byte values take the nearest ones.

        Args:
            name: Of the table.
            values: [rows, dim].

        Raises:
            ConfigError: There is no such table, or it has another shape.
            UsageError: A loop runs: its cache would not know.
        """
        if self._loop is not None:
            raise UsageError(f"table {name!r} cannot be given other values inside a loop; leave the loop first")
        self.bring_up_to_date()
        table, store = self._table(name)
        if values.shape != (table.num_rows, store.layout.width):
            raise ConfigError(
                f"values of table {name!r} have shape {values.shape}; the table is "
                f"{(table.num_rows, store.layout.width)}"
            )
        offset = store.layout.offset_of(name)
        for ids, rows in scan(store, offset, offset + table.num_rows):
            rows.values[:] = packed(values[ids - offset], store.layout.dtype)
            store.write(ids, rows)
        self.store.commit(self.store.committed_step)

    @property
    def history(self) -> bytes | None:
        """What these tables were trained on (see `history`)."""
        return self.store.history if isinstance(self.store, KeepsHistory) else self._history

    def commit(self, step: int, trained: Trained | None = None) -> None:
        """Makes everything written so far durable. A loop does so when it ends; inside one use `Run.flush` first.

        Args:
            step: This is the state after so many steps.
            trained: What was trained on since, to be written down beside the rows.
        """
        if trained is not None and step > self.store.committed_step:
            history = written_down(self.history, trained, self.store.committed_step)
            if history is not None and isinstance(self.store, KeepsHistory):
                self.store.history = history
            elif history is not None:
                self._history = history
        self.store.commit(step)

    @contextmanager
    def used_by(self, loop: Loop) -> Iterator[None]:
        """While a loop runs, whoever reads these tables gets what it has learned.

        Args:
            loop: Whose cache is ahead of the store.

        Raises:
            UsageError: Another loop over these tables has not ended.
        """
        if self._loop is not None:
            raise UsageError("these tables are in a loop that has not ended; leave that loop, or close its iterator")
        self._go_back()
        self.failure, self._loop = None, (loop, threading.get_ident())
        try:
            yield
        finally:
            self._loop = None
            self._left_at, self._in_disorder = loop.steps_done, loop.failed

    @property
    def is_trained_here(self) -> bool:
        """Whether a loop of this process has trained these tables since they were opened."""
        return self._left_at > 0

    def bring_up_to_date(self) -> None:
        """The store gets what a running loop has learned; after a loop that failed, it goes back to the last commit."""
        if self._loop is not None:
            loop, thread = self._loop
            if threading.get_ident() != thread:
                raise UsageError("a loop updates these tables in another thread; read them in the thread of the loop")
            loop.flush()
        elif self._in_disorder:
            self._go_back()

    def _go_back(self) -> None:
        """To the last commit, if the last loop left something else: a loop begins where a commit is."""
        if self._left_at <= self.store.committed_step and not self._in_disorder:
            return
        if not isinstance(self.store, GoesBack):
            raise UsageError(
                f"the last loop ended at step {self._left_at} without a commit; open the store again at its last one"
            )
        self.store.open_at(self.store.committed_step)
        self._left_at, self._in_disorder = 0, False

    def close(self) -> None:
        """Release the store. The last loop has committed what it did. Folds tables on disk as `fold` says.

        Raises:
            BaseException: Why that commit failed, if it did.
        """
        kept = None if self._folder is None else kept_log_words(self.store, self._folder)
        self.store.close()
        if kept is not None:
            tell(kept)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def _table(self, name: str) -> tuple[Table, Store]:
        """The table, and the store of the rows of its width."""
        for store in groups_of(self.store):
            for table in store.layout.tables:
                if table.name == name:
                    return table, store
        known = ", ".join(table.name for table in self.layout.tables)
        raise ConfigError(f"there is no table {name!r}; the tables are {known}")

    def __enter__(self) -> Tables:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def layout_for(
    log: HasTables, dim: Dims, optimizer: Optimizer, seed: int, init_scale: float, dtype: str | None = None,
    rounding: str = "stochastic",
) -> Layout:  # fmt: skip
    """How the rows of this log look with these widths and this optimiser; without a dtype, the log's own or float32."""
    check_row_optimizer(optimizer)
    dtype = dtype or str(getattr(log, "dtype", None) or "float32")
    for name, given, known in (("dtype", dtype, DTYPES), ("rounding", rounding, ROUNDINGS)):
        if given not in known:
            raise ConfigError(f"{name} is {given!r}; rows have one of {', '.join(known)}")
    tables = tuple(Table(table.name, table.num_rows) for table in log.tables)
    dims = dims_of([table.name for table in tables], dim)
    widths = tuple((width, optimizer.state_width(width)) for width in dims)
    width, state_width = widths[0] if len(set(widths)) == 1 else (0, 0)
    return Layout(
        tables=tables, width=width, state_width=state_width, optimizer=optimizer.name, seed=seed,
        init_scale=init_scale, widths=() if width else widths, dtype=dtype, rounding=rounding_for(dtype, rounding),
    )  # fmt: skip


def dims_of(tables: Sequence[str], dim: Dims, key: str = "dim") -> list[int]:
    """The width of each table."""
    if isinstance(dim, Mapping):
        unknown = [name for name in dim if name not in (*tables, DEFAULT)]
        if unknown:
            raise ConfigError(f"{key}: there is no table {unknown[0]!r}; the tables are {', '.join(tables)}")
        missing = [name for name in tables if name not in dim and DEFAULT not in dim]
        if missing:
            raise ConfigError(f"{key}: it says nothing of table {missing[0]!r}; give it, or {DEFAULT!r} for the rest")
    given = {name: dim.get(name, dim.get(DEFAULT)) if isinstance(dim, Mapping) else dim for name in tables}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            where = f" of table {name!r}" if isinstance(dim, Mapping) else ""
            raise ConfigError(f"{key}{where} is {value!r}; give the width of a row as a whole number of at least 1")
    return [given[name] or 0 for name in tables]


def check_one_kind(folder: Path, layout: Layout) -> None:
    """Refuses a folder whose tables have one width where several are wanted, or the other way round."""
    holds_one, holds_several = (folder / MANIFEST_FILE).exists(), bool(group_folders(folder))
    if (layout.widths and holds_one) or (not layout.widths and holds_several):
        have, want = ("one width", "several") if holds_one else ("several widths", "one")
        raise StoreError(
            f"the tables in {folder} have {have}, this run wants {want}; use the settings the tables were made with, "
            "or another folder"
        )
