"""A layout as JSON has it, in table folders, layout files and on the wire.

In: a layout, or a JSON object that somebody else may have written. Out: the other; a ValueError in a few words for what
is no layout, or describes tables that no memory or disk could hold.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from foresee import documents
from foresee.store.contract import Layout, Table

WIDTH_MAX = 1 << 20
TABLES_MAX = 1 << 20
SEED_MAX = (1 << 64) - 1


def layout_to_dict(layout: Layout) -> dict[str, Any]:
    """The same keys as `layout.json` of a table folder."""
    return asdict(layout)


def layout_from_dict(content: Any) -> Layout:
    """Raises ValueError for what is not a layout."""
    if not isinstance(content, dict):
        raise ValueError("a layout is an object")
    entries = documents.objects(content, "tables")
    if len(entries) > TABLES_MAX:
        raise ValueError(f"it has {len(entries):,} tables, more than {TABLES_MAX:,}")
    layout = Layout(
        tables=tuple(
            Table(documents.text_of(entry, "name"), documents.whole(entry, "num_rows", 0, documents.LARGE_MAX))
            for entry in entries
        ),
        width=documents.whole(content, "width", 0, WIDTH_MAX),
        state_width=documents.whole(content, "state_width", 0, WIDTH_MAX),
        optimizer=documents.text_of(content, "optimizer"),
        seed=documents.whole(content, "seed", -SEED_MAX, SEED_MAX),
        init_scale=documents.number(content, "init_scale", -1e30, 1e30),
    )
    if layout.num_rows * layout.row_bytes > documents.LARGE_MAX:
        raise ValueError(f"its {layout.num_rows:,} rows of {layout.row_bytes:,} bytes are more than any disk holds")
    return layout
