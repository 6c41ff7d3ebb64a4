"""A layout as JSON has it, in table folders, on the wire, and in the layout file of a server.

    {"tables": [{"name": "user", "num_rows": 6040}, {"name": "item", "num_rows": 3706}],
     "width": 64, "state_width": 1, "optimizer": "rowwise_adagrad", "seed": 0, "init_scale": 0.05}

In: a layout, or a JSON object that somebody else may have written. Out: the other; a sentence for what is no layout, or
describes tables that no memory or disk could hold. `foresee layout` writes the file for a run; `layout.json` of a table
folder has the same keys and can be given as it is.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from foresee.base import json_fields
from foresee.base.files import Files
from foresee.errors import ConfigError
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
    entries = json_fields.objects(content, "tables")
    if len(entries) > TABLES_MAX:
        raise ValueError(f"it has {len(entries):,} tables, more than {TABLES_MAX:,}")
    layout = Layout(
        tables=tuple(
            Table(json_fields.text_of(entry, "name"), json_fields.whole(entry, "num_rows", 0, json_fields.LARGE_MAX))
            for entry in entries
        ),
        width=json_fields.whole(content, "width", 0, WIDTH_MAX),
        state_width=json_fields.whole(content, "state_width", 0, WIDTH_MAX),
        optimizer=json_fields.text_of(content, "optimizer"),
        seed=json_fields.whole(content, "seed", -SEED_MAX, SEED_MAX),
        init_scale=json_fields.number(content, "init_scale", -1e30, 1e30),
    )
    if layout.num_rows * layout.row_bytes > json_fields.LARGE_MAX:
        raise ValueError(f"its {layout.num_rows:,} rows of {layout.row_bytes:,} bytes are more than any disk holds")
    return layout


def write_layout(path: Path, layout: Layout) -> None:
    """Appears whole; replaces only a file with the same tables."""
    content = json.dumps(layout_to_dict(layout), indent=2) + "\n"
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
        layout = layout_from_dict(json_fields.parse(path.read_bytes()))
    except OSError as error:
        raise ConfigError(f"the layout file {path} cannot be read ({error.strerror}); check its name") from error
    except ValueError as error:
        raise ConfigError(
            f"{path} is not a layout: {error}; it needs tables (name, num_rows), width, state_width, optimizer, "
            "seed and init_scale"
        ) from error
    if layout.num_rows < 1 or layout.width < 1 or layout.state_width < 0:
        raise ConfigError(
            f"{path} describes {layout.num_rows} rows of width {layout.width} and state {layout.state_width}; "
            "tables need rows, and rows at least one value"
        )
    return layout
