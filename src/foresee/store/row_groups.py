"""Tables of several widths: a store for each width, and the commit that all of them make together.

In: a layout whose tables have several widths, and how a store of one width is opened. Out: `RowGroups`, which commits,
goes back and closes as one store does; rows are read and written in its groups, each of which numbers its rows from 0
(`Layout.groups`). Whoever reads rows asks `groups_of`: a store of one width is its own only group. On disk a group is a
table folder `width-N` inside the folder of the tables.

A commit is prepared in all groups before it is settled in the first. Where no manifest of a dense half decides, a
commit that one group has settled stands, since all had prepared it: `bring_together` settles it in the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from foresee.errors import StoreError, UsageError
from foresee.store.contract import Store, TwoPhaseStore
from foresee.store.layout import Layout
from foresee.store.parts import ManyParts

FOLDER_PREFIX = "width-"


class RowGroups(ManyParts):
    """The stores of all widths of some tables. They are opened at one step, or `bring_together` brings them there."""

    def __init__(self, layout: Layout, groups: Sequence[Any]) -> None:
        """`groups`: a store for each of `layout.groups`."""
        super().__init__(groups)
        self.layout = layout

    @property
    def groups(self) -> tuple[Any, ...]:
        return self.members

    def bring_together(self) -> None:
        """To the newest commit that a group has settled, where no manifest says which one stands."""
        step = max(part.committed for part in self.parts)
        if any(step not in part.openable for part in self.parts):
            kept = "; ".join(f"width {it.layout.width}: {it.committed_step}" for it in self.groups)
            raise StoreError(f"the tables of several widths are at different steps ({kept}); restore all from one copy")
        self.open_at(step)

    @property
    def history(self) -> bytes | None:
        """What these tables were trained on: kept with the first group."""
        kept: bytes | None = getattr(self.groups[0], "history", None)
        return kept

    @history.setter
    def history(self, content: bytes | None) -> None:
        self.groups[0].history = content

    def read(self, rows: Any, out: Any) -> None:
        raise UsageError("rows of several widths are not read or written at once; use the store of each: store.groups")

    write = read


def groups_of(store: Any) -> tuple[Any, ...]:
    """The store of each row group: of one width it is the store itself."""
    return store.groups if isinstance(store, RowGroups) else (store,)


def group_folder(folder: Path, layout: Layout) -> Path:
    """Where a group lies inside the folder of the tables."""
    return folder / f"{FOLDER_PREFIX}{layout.width}"


def group_folders(folder: Path) -> list[Path]:
    """The folders of all groups that are there, by width; none where tables have one width."""
    found = [path for path in folder.glob(f"{FOLDER_PREFIX}*") if path.name.removeprefix(FOLDER_PREFIX).isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix(FOLDER_PREFIX)))


def open_groups(layout: Layout, folder: Path, open_one: Callable[[Path, Layout], Any]) -> Any:
    """The store of these tables: `open_one` opens a store of one width. All are closed again if one cannot be."""
    if not layout.widths:
        return open_one(folder, layout)
    opened: list[Any] = []
    try:
        for group in layout.groups:
            opened.append(open_one(group_folder(folder, group), group))
    except BaseException:
        for store in opened:
            store.close()
        raise
    return RowGroups(layout, opened)


def group_of_table(store: Store | TwoPhaseStore, name: str) -> Store:
    """The group that has a table; KeyError where none has."""
    for group in groups_of(store):
        if any(table.name == name for table in group.layout.tables):
            return cast("Store", group)
    raise KeyError(name)
