"""One table of a folder as a plain numpy array, for whoever wants to look.

In: a table folder and a table's name. Out: a read-only memory map with the fields value, state and version, as of the
last commit. Rows that were never written read as zeros here, with version 0: only a store knows their initial values
(`DiskStore.initialise_all` writes them). The array changes while a store commits to the folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from foresee.errors import StoreError
from foresee.store.disk.base import ROWS_FILE, open_array, row_dtype
from foresee.store.disk.manifest import read_manifest


def open_table(path: str | Path, name: str) -> np.memmap[Any, np.dtype[Any]]:
    """The rows of one table, e.g. open_table("tables", "user")["value"]: [rows, width]."""
    manifest = read_manifest(Path(path))
    sizes = {table.name: table.num_rows for table in manifest.layout.tables}
    if name not in sizes:
        raise StoreError(f"{path} has no table '{name}'; it has {', '.join(sizes)}")
    if manifest.journal is not None:
        raise StoreError(
            f"the last commit of {path} was interrupted and is not yet in its arrays; open it once with "
            "DiskStore.open(path).close() to finish it"
        )
    file, dtype = Path(path) / ROWS_FILE, row_dtype(manifest.layout)
    try:
        descriptor, begin = open_array(file, dtype, manifest.layout.num_rows, os.O_RDONLY)
        os.close(descriptor)
        rows: np.memmap[Any, np.dtype[Any]] = np.memmap(file, dtype, "r", begin, (manifest.layout.num_rows,))
    except OSError as error:
        raise StoreError(f"{file} cannot be read ({error.strerror}); check the folder's permissions") from error
    offset = manifest.layout.offset_of(name)
    return rows[offset : offset + sizes[name]]  # type: ignore[return-value] # a slice of a map is one
