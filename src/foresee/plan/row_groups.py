"""Rows of several widths in one plan: which group a row belongs to, and its number there.

In: for each group its slots and the tables that it has, as runs of rows. Out: numbers of rows in a group and back, the
slots of a group in records, and how many slots each gets of a cache. A record numbers rows and slots over all groups:
rows as the log does, slots group after group. So whoever counts, checks, keeps or explains a plan knows nothing of
groups. No group at all means one, of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Int32, Int64


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows of one width."""

    name: str
    """For sentences, such as "width 16"."""
    capacity_rows: int
    """Slots of each worker for these rows."""
    tables: tuple[tuple[int, int], ...]
    """(first row, number of rows) of each table, ascending. The group numbers them from 0 in this order."""
    weights: tuple[int, ...]
    """What each table wants of a cache, compared with the others: such as its distinct rows in a batch."""

    @property
    def num_rows(self) -> int:
        return sum(size for _, size in self.tables)

    def to_dict(self) -> dict[str, object]:
        tables = [[first, size, weight] for (first, size), weight in zip(self.tables, self.weights, strict=True)]
        return {"name": self.name, "capacity_rows": self.capacity_rows, "tables": tables}


def from_list(content: object, *, capacity_rows: int, num_rows: int) -> tuple[RowGroup, ...]:
    """What `to_dict` gave of each group; raises ValueError where they are no parts of these slots and rows."""
    if not isinstance(content, list):
        raise ValueError("its groups are no list")
    groups = tuple(_group(it) for it in content)
    covered = 0
    for first, size in sorted(table for group in groups for table in group.tables):
        if first != covered or size < 1:
            raise ValueError("its groups do not cover the rows")
        covered += size
    if groups and (covered != num_rows or sum(group.capacity_rows for group in groups) != capacity_rows):
        raise ValueError("its groups do not cover rows and slots")
    return groups


def _group(content: object) -> RowGroup:
    if not isinstance(content, dict) or sorted(content) != ["capacity_rows", "name", "tables"]:
        raise ValueError("a group has other fields")
    name, capacity, tables = content["name"], content["capacity_rows"], content["tables"]
    sound = isinstance(name, str) and _is_size(capacity) and capacity > 0 and isinstance(tables, list) and tables
    if not sound or not all(isinstance(it, list) and len(it) == 3 and all(map(_is_size, it)) for it in tables):
        raise ValueError("a group has impossible values")
    sizes, weights = tuple((first, size) for first, size, _ in tables), tuple(max(1, weight) for _, _, weight in tables)
    return RowGroup(name[:80], capacity, sizes, weights)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


class Numbering:
    """From rows and slots over all groups to those of a group, and back."""

    def __init__(self, groups: Sequence[RowGroup]) -> None:
        self.groups = tuple(groups)
        places = sorted(
            (first, size, number, local)
            for number, group in enumerate(groups)
            for (first, size), local in zip(
                group.tables, accumulate((size for _, size in group.tables), initial=0), strict=False
            )
        )
        self._ends = np.array([first + size for first, size, _, _ in places], np.int64)
        self.group_of_table: Int64 = np.array([number for _, _, number, _ in places], np.int64)
        """[tables], in the order of rows."""
        self._shift = np.array([local - first for first, _, _, local in places], np.int64)
        self.first_slot: tuple[int, ...] = tuple(accumulate((it.capacity_rows for it in groups), initial=0))
        """Of each group, and the number of all slots."""
        self._firsts = [np.array([first for first, _ in group.tables], np.int64) for group in groups]
        self._locals = [np.array([*accumulate((size for _, size in it.tables), initial=0)][:-1]) for it in groups]

    def of_rows(self, rows: Int64) -> tuple[Int64, Int64]:
        """The group of each row, and its number there. Rows have to be rows of the tables."""
        tables = np.searchsorted(self._ends, rows, side="right")
        return self.group_of_table[tables], rows + self._shift[tables]

    def rows_of(self, group: int, local: Int64) -> Int64:
        """The rows of a group, as the log numbers them."""
        tables = np.searchsorted(self._locals[group], local, side="right") - 1
        rows: Int64 = local - self._locals[group][tables] + self._firsts[group][tables]
        return rows

    def has_slot(self, group: int, slots: Int32) -> NDArray[np.bool_]:
        """Which of these slots are the group's."""
        return (slots >= self.first_slot[group]) & (slots < self.first_slot[group + 1])

    def features(self, tables: Int64) -> list[Int64]:
        """The features of each group, given the table of each feature."""
        of_feature = self.group_of_table[tables]
        return [np.flatnonzero(of_feature == group) for group in range(len(self.groups))]


@lru_cache(maxsize=16)
def numbering_of(groups: tuple[RowGroup, ...]) -> Numbering:
    return Numbering(groups)


def divided(groups: Sequence[RowGroup], capacity_rows: int) -> tuple[RowGroup, ...]:
    """The groups with their part of so many slots: every table as its weight says, or all of its rows if fewer.

    So small tables stay cached whole, and the rest is for the large ones. A group has at least one slot.
    """
    tables = [
        (size, weight, number)
        for number, group in enumerate(groups)
        for (_, size), weight in zip(group.tables, group.weights, strict=True)
    ]
    left, weights = capacity_rows, sum(weight for _, weight, _ in tables)
    slots = [0 for _ in groups]
    for size, weight, number in sorted(tables, key=lambda it: it[0] / it[1]):
        given = min(size, left * weight // weights)
        slots[number] += given
        left, weights = left - given, weights - weight
    slots = [max(1, it) for it in slots]
    return tuple(replace(group, capacity_rows=it) for group, it in zip(groups, slots, strict=True))


def demand_of(groups: Sequence[RowGroup], rows: Int64) -> tuple[RowGroup, ...]:
    """The groups with the distinct rows of a batch as the weights of their tables."""
    distinct = np.unique(rows)

    def count(first: int, size: int) -> int:
        begin, end = np.searchsorted(distinct, [first, first + size])
        return max(1, int(end - begin))

    return tuple(replace(group, weights=tuple(count(*table) for table in group.tables)) for group in groups)
