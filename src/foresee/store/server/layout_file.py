"""The tables of a server, described in a JSON file that a launcher or a person writes.

    {"tables": [{"name": "user", "num_rows": 6040}, {"name": "item", "num_rows": 3706}],
     "width": 64, "state_width": 1, "optimizer": "rowwise_adagrad", "seed": 0, "init_scale": 0.05}

`foresee layout` writes it for a run. The same keys as `layout.json` of a table folder, which can be given as it is.
"""

from __future__ import annotations

import json
from pathlib import Path

from foresee import documents
from foresee.errors import ConfigError
from foresee.store.contract import Layout
from foresee.store.disk.files import Files
from foresee.store.layouts import layout_from_dict, layout_to_dict


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
        layout = layout_from_dict(documents.parse(path.read_bytes()))
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
