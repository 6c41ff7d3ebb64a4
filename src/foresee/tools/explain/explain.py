"""Answers `foresee explain`: one row's life or one step, from the run's configuration alone.

In: a `RunPlan`, made from a configuration, and a step or a row's name: TABLE:ID as the prepared log numbers rows,
TABLE:=VALUE as the raw log wrote them, or a plain row id. Out: a `RowLife` or a `StepAccount`, or a DataError that says
what the log has instead. The plan is the run's own: the saved file if the configuration names one, else planned again
from the log, which gives the same records every time. A resumed run began with an empty cache where it went on; the
answer here is that of a run that never stopped.
"""

from __future__ import annotations

import bisect
import difflib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow.compute as pc

from foresee.arrays import Int64
from foresee.data.click_log import ClickLog
from foresee.data.stream import LogStream
from foresee.engine.next_uses import looking_ahead
from foresee.engine.planned_step import Advance, accesses_of, too_large
from foresee.errors import DataError, PlanError, StoreError
from foresee.plan import find, make_planner
from foresee.plan.baselines.ranked_eviction import BatchTooLargeError
from foresee.plan.format.folder import SavedPlan
from foresee.plan.record import Accesses, Header, Record
from foresee.plan.replay import Replay
from foresee.run.build import open_log, plan_header, saved_plan, table_layout, train_stream
from foresee.run.config import RunConfig
from foresee.store.disk import DiskReader
from foresee.store.registry import DISK
from foresee.tools.explain.figures import FetchGuard, PlannedStep, RowFollower, RowLife, StepAccount, StepFollower
from foresee.tools.explain.paper_log import PaperLog, StoreSettings

TABLES_SHOWN = 8


class RowNames:
    """The names of one log's rows."""

    def __init__(self, log: ClickLog) -> None:
        self._log = log
        self._vocabularies: dict[str, Any] = {}

    @cached_property
    def _offsets(self) -> list[int]:
        return list(self._log.table_offsets.values())

    def find(self, name: str) -> int:
        """The row of TABLE:ID, TABLE:=VALUE or a plain row id."""
        if name.isdecimal():
            return self._checked(int(name))
        table, separator, value = name.partition(":=")
        if separator:
            return self._log.table_offsets[self._table(table, name)] + self._id_of_value(table, value)
        table, separator, number = name.rpartition(":")
        if not separator:
            raise DataError(f"--row {name}: this names no row; give TABLE:ID, TABLE:=VALUE or a row id")
        num_rows = dict(self._log.tables)[self._table(table, name)]
        if not number.isdecimal() or int(number) >= num_rows:
            raise DataError(
                f"--row {name}: {number!r} is no id of table {table}, whose ids are 0 to {num_rows - 1}; "
                f"for a value of the raw log write {table}:={number}"
            )
        return self._log.table_offsets[table] + int(number)

    def name(self, row: int) -> str:
        """TABLE:ID of a row."""
        table, number = self._split(row)
        return f"{table}:{number}"

    def value(self, row: int) -> str | None:
        """What the raw log had for this row; None if that is not known, or if the row stands for all rare values."""
        table, number = self._split(row)
        vocabulary = self._vocabulary(table)
        return None if vocabulary is None else vocabulary.column("value")[number].as_py()

    def _split(self, row: int) -> tuple[str, int]:
        # An empty table begins where the next one does: the last that begins here is the one that holds the row.
        place = bisect.bisect_right(self._offsets, row) - 1
        return self._log.tables[place].name, row - self._offsets[place]

    def _checked(self, row: int) -> int:
        if row >= self._log.num_rows:
            raise DataError(f"--row {row}: the log's rows are 0 to {self._log.num_rows - 1}; give one of these")
        return row

    def _table(self, table: str, name: str) -> str:
        known = [entry.name for entry in self._log.tables]
        if table in known:
            return table
        close = difflib.get_close_matches(table, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known[:TABLES_SHOWN])}"
        hint += f" and {len(known) - TABLES_SHOWN} more" if not close and len(known) > TABLES_SHOWN else ""
        raise DataError(f"--row {name}: the log {self._log.path} has no table {table!r}; {hint}")

    def _id_of_value(self, table: str, value: str) -> int:
        vocabulary = self._vocabulary(table)
        if vocabulary is None:
            kind = self._log.vocabularies[table].kind
            why = "its values were hashed" if kind == "hash" else "its values are ids already"
            raise DataError(f"--row {table}:={value}: table {table} keeps no values ({why}); give {table}:ID")
        place = pc.index(vocabulary.column("value"), value).as_py()
        if place < 0:
            raise DataError(
                f"--row {table}:={value}: the vocabulary of {table} has no value {value!r}; rare and unseen values "
                f"share the row {table}:0"
            )
        return int(vocabulary.column("id")[place].as_py())

    def _vocabulary(self, table: str) -> Any:
        if table not in self._vocabularies:
            self._vocabularies[table] = self._log.vocabulary(table)
        return self._vocabularies[table]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run's plan, ready to be played through."""

    header: Header
    stream: LogStream
    names: RowNames
    saved: SavedPlan | None
    store: StoreSettings | None = None
    """None: it is not on disk."""

    @classmethod
    def of(cls, config: RunConfig) -> RunPlan:
        log = open_log(config)
        stream = train_stream(config, log)
        file = saved_plan(config, stream)
        if file is None:
            header = plan_header(config, log, stream)
            # Versions change no decision, and without them nothing says when a fetched row was last used.
            header = replace(header, options=replace(header.options, remember_versions=True))
            return cls(header, stream, RowNames(log), None, store_settings(config, log))
        return cls(file.header, stream, RowNames(log), file, store_settings(config, log))

    def steps(self, advance: Advance | None) -> Iterator[PlannedStep]:
        """Replay the plan: every step, in order."""
        header, decided = self.header, self._decided(advance)
        replay = Replay(header.num_workers, header.capacity_rows)
        # A guard names a write-back of at most this many steps ago.
        written: deque[tuple[int, Int64]] = deque(maxlen=header.fetch_ahead_steps + 2)
        for first, known_until in decided:
            records = [first, *(next(decided)[0] for _ in range(header.num_workers - 1))]
            guards = [_guard(record, written) for record in records]
            step = replay.play(records)
            written.append((step.step, np.concatenate([record.evict.row for record in records])))
            yield PlannedStep(
                step.step, records, step.used, step.arrived, step.sent, known_until, guards, replay.kept()
            )

    def _decided(self, advance: Advance | None) -> Iterator[tuple[Record, int]]:
        """Every record, with the last step that the planner knew when it decided what leaves after it."""
        if self.saved is None:
            yield from self._planned_again(advance)
            return
        last, ahead = self.header.first_step + self.header.num_steps - 1, _window_of(self.header)
        for record in self.saved.records():
            yield record, last if ahead is None else min(last, record.step + 1 + ahead)

    def _planned_again(self, advance: Advance | None) -> Iterator[tuple[Record, int]]:
        header, stream = self.header, self.stream

        def accesses(num_steps: int) -> Iterator[Accesses]:
            for batch, _ in zip(stream.batches(header.first_step), range(num_steps), strict=False):
                yield accesses_of(batch)

        planner = make_planner(header, accesses)
        # With several workers a record waits for one more step's transfers after its evictions are decided.
        late = int(header.num_workers > 1)
        with looking_ahead(stream, header) as with_uses:
            for step, touched in enumerate(accesses(header.num_steps), start=header.first_step):
                try:
                    records = planner.push(with_uses(step, touched))
                except BatchTooLargeError as error:
                    raise too_large(step, error.num_distinct, error.capacity_rows, stream) from None
                yield from ((record, step - late) for record in records)
                if advance is not None:
                    advance()
            last = header.first_step + header.num_steps - 1
            yield from ((record, last) for record in planner.finish())


def _guard(record: Record, written: Iterable[tuple[int, Int64]]) -> FetchGuard:
    rows = [rows for step, rows in written if step == record.not_before]
    return FetchGuard(
        record.not_before, np.intersect1d(record.fetch.row, np.concatenate([np.empty(0, np.int64), *rows]))
    )


def store_settings(config: RunConfig, log: ClickLog) -> StoreSettings | None:
    """How the store of a run lays rows down; None if it does not."""
    if config.tables.store != DISK.name:
        return None
    return StoreSettings(
        layout=table_layout(config, log),
        num_shards=max(1, config.num_servers),
        commit_every_steps=config.train.commit_every_steps,
        evaluate_every_steps=config.train.evaluate_every_steps,
    )


def place_now(config: RunConfig, row: int) -> str | None:
    """Where a row lies in the tables of a run, in words; None if they are not there, elsewhere or in use."""
    if config.tables.store != DISK.name or config.num_servers:
        return None
    try:
        reader = DiskReader.open(config.tables_folder)
    except StoreError:
        return None
    try:
        return f"after the commit of step {reader.committed_step:,} {reader.place_of(row)}"
    finally:
        reader.close()


def explain_row(plan: RunPlan, name: str, *, advance: Advance | None = None) -> RowLife:
    """What happens to a row over all steps of a run, and why."""
    row = plan.names.find(name)
    follower = _follower_of(plan, row)
    ahead = plan.header.fetch_ahead_steps
    paper = (
        None
        if plan.store is None or plan.store.layout.widths
        else PaperLog(plan.store, row, fetch_ahead_steps=ahead, name=plan.names.name)
    )
    for played in plan.steps(advance):
        follower.add(played)
        if paper is not None:
            paper.add(played)
    lays = {} if paper is None else paper.finish()
    for stay in follower.life.stays:
        stay.lay = lays.get(stay.fetched_for)
    return follower.life


def explain_rows(plan: RunPlan, rows: Sequence[int], *, advance: Advance | None = None) -> list[RowLife]:
    """The lives of several rows, from one pass over the plan."""
    followers = [_follower_of(plan, row) for row in rows]
    for played in plan.steps(advance):
        for follower in followers:
            follower.add(played)
    return [follower.life for follower in followers]


def _follower_of(plan: RunPlan, row: int) -> RowFollower:
    header = plan.header
    life = RowLife(
        row=row,
        name=plan.names.name(row),
        value=plan.names.value(row),
        num_rows=header.num_rows,
        planner=header.planner,
        window_steps=_fixed_window(header),
        num_workers=header.num_workers,
        first_step=header.first_step,
        num_steps=header.num_steps,
    )
    foresighted = find(header.planner).foresight_steps != 0
    return RowFollower(life, keeps_expired=life.window_steps is None, knows_the_future=foresighted)


def explain_step(plan: RunPlan, step: int, *, advance: Advance | None = None) -> StepAccount:
    """What a step of a run does and waits for, and why."""
    header = plan.header
    last = header.first_step + header.num_steps - 1
    if not header.first_step <= step <= last:
        raise PlanError(f"--step {step}: the run has steps {header.first_step} to {last}; give one of these")
    account = StepAccount(
        step=step,
        last_step=last,
        planner=header.planner,
        window_steps=_fixed_window(header),
        capacity_rows=header.capacity_rows,
        fetch_ahead_steps=header.fetch_ahead_steps,
        known_until=last,
        workers=[],
    )
    follower = StepFollower(account)
    for played in plan.steps(advance):
        follower.add(played)
        if follower.done and played.step > step:
            break
    return account


def _fixed_window(header: Header) -> int | None:
    """Steps after which a row without a known use leaves at once; None: rows stay until their slots are needed."""
    policy = find(header.planner)
    if policy.keeps_nothing:
        return 0
    if not policy.foresight_steps or header.num_workers > 1:
        return None
    return header.options.window_steps


def _window_of(header: Header) -> int | None:
    """How far a saved plan's planner read ahead; None: to the end."""
    fixed = _fixed_window(header)
    if fixed is not None:
        return fixed - 1
    return find(header.planner).foresight_steps
