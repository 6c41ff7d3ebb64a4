"""A trained run as plain files for serving: weights and tables as safetensors, vocabularies as Parquet, one JSON.

    OUT/export.json                 what is what: model, features, transforms, tables, vocabularies
    OUT/model.safetensors           the dense part
    OUT/table-000.safetensors, …    `values` [rows, width], of the tables' dtype, one file for each; where most rows
                                    were never written, only the others, and `rows`, int64: which they are
    OUT/vocabulary-000.parquet, …   (id, value, count), copied from the log
    OUT/README.md                   the same in words

In: a run folder, as of its last commit, which is only read. Out: a folder that appears whole or not at all, if there is
room for it. Tables are written in pieces, so memory stays bounded however large they are. A row that was never written
has an initial value that follows from the seed. `exported.load_exported` reads the result without any of the rest.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as save_tensors
from torch import nn

from foresee.arrays import Int64
from foresee.data.click_log import ClickLog
from foresee.data.writer import DESCRIPTION_FILE
from foresee.engine.tables import Tables
from foresee.errors import StoreError
from foresee.io.folders import new_folder
from foresee.run import checkpoint
from foresee.run.build import build_model, open_log, row_optimizer, table_layout
from foresee.run.config import RunConfig
from foresee.run.dense_state import open_best
from foresee.run.folder import RunFolder, open_run
from foresee.run.tasks import tasks_of
from foresee.store.contract import Store, scan, written_rows
from foresee.store.halves import SAFETENSORS_DTYPES
from foresee.store.layout import Table, layout_to_dict
from foresee.store.registry import store_kind
from foresee.store.row_groups import group_of_table
from foresee.store.shard_folders import open_store

EXPORT_FILE = "export.json"
FORMAT_NAME = "foresee-export"
FORMAT_VERSION = 3
READABLE_VERSIONS = (1, 2, 3)
"""Version 1 wrote every row of every table, and did not say how raw cells were read. Version 3 has tasks; an export of
one task of clicks is still written as version 2."""
ROWS_AT_ONCE = 1 << 16
ROOM_BYTES = 1 << 20
"""For descriptions and headers."""

Progress = Callable[[int, int], None]
"""Called as progress(rows written, rows in all)."""


def export(run: Path, out: Path, progress: Progress | None = None, *, best: bool = False) -> dict[str, Any]:
    """Writes what a run has learned, into a new folder, as of its last commit or best; returns its description."""
    config = open_run(run)
    log = open_log(config)
    with trained(config, log, best=best) as tables, new_folder(out, replace=False, marker=DESCRIPTION_FILE) as folder:
        model, store = trained_model(config, log, tables, best=best), tables.store
        weights = save_tensors(checkpoint.own_copies(model.state_dict()))
        copied = [it.file for it in log.vocabularies.values() if it.file is not None]
        there = log.folder.sizes() if copied else {}
        pieces = table_pieces(store)
        sizes = [*(piece.num_bytes for piece in pieces), len(weights), *(there.get(name, 0) for name in copied)]
        _check_room(folder, out, sizes)
        (folder / checkpoint.MODEL_FILE).write_bytes(weights)
        entries = _write_tables(folder, pieces, progress)
        num_weights = sum(p.numel() for p in model.parameters())
        description = describe(config, log, store, entries, num_weights=num_weights)
        for name in copied:
            log.folder.copy(name, folder / name)
        (folder / EXPORT_FILE).write_text(json.dumps(description, indent=2) + "\n", "utf-8")
        (folder / "README.md").write_text(_readme(description), "utf-8")
    return description


def trained(config: RunConfig, log: ClickLog, *, best: bool = False) -> Tables:
    """The tables of a run that has kept something, for reading: nothing of the run is written.

    best: as of its best evaluation.
    """
    folder = config.tables_folder
    if best:
        best_store = open_best(RunFolder(config.run), table_layout(config, log))
        return Tables(best_store, row_optimizer(config.tables.optimizer))
    kind = store_kind(config.tables.store)
    if not kind.durable:
        raise StoreError(
            f"the rows of {config.run} were in memory and ended with their process; train with tables.store: disk"
        )
    if kind.in_folder and not folder.is_dir():
        raise StoreError(f"{folder} holds no tables yet; train first")
    store = open_store(folder, table_layout(config, log), kind, for_reading=True)
    try:
        checkpoint.open_newest(store, RunFolder(config.run).checkpoints)
    except BaseException:
        store.close()
        raise
    return Tables(store, row_optimizer(config.tables.optimizer))


def trained_model(config: RunConfig, log: ClickLog, tables: Tables, *, best: bool = False) -> nn.Module:
    """The model as of the tables' last commit; at step 0, as the seed gives it."""
    model, step, folder = build_model(config, log), tables.store.committed_step, RunFolder(config.run)
    if step:
        checkpoint.load_weights(folder.best_checkpoints if best else folder.checkpoints, step, model)
    return model


def describe(
    config: RunConfig, log: ClickLog, store: Store, tables: list[dict[str, Any]], *, num_weights: int
) -> dict[str, Any]:
    """Everything that serving has to know."""
    tasks = tasks_of(config.tasks, log).tasks
    plain = len(tasks) == 1 and tasks[0].loss == "binary"
    return {
        "format": FORMAT_NAME,
        "version": 2 if plain else FORMAT_VERSION,
        "step": store.committed_step,
        "log_digest": log.digest,
        "model": {
            **config.model.model_dump(exclude={"folder"}),
            "file": checkpoint.MODEL_FILE,
            "num_weights": num_weights,
        },
        "tasks": [{"name": it.name, "loss": it.loss, "classes": list(it.classes)} for it in tasks],
        "dense": [asdict(feature) for feature in log.dense],
        "features": [asdict(feature) for feature in log.features],
        "initial": {
            name: value
            for name, value in layout_to_dict(store.layout).items()
            if name in ("seed", "init_scale", "dtype", "rounding")
        },
        "tables": tables,
        "vocabularies": {name: asdict(vocabulary) for name, vocabulary in log.vocabularies.items()},
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePiece:
    """The rows of one table that its file holds."""

    table: Table
    store: Store
    """Of the rows of its width."""
    offset: int
    """Id of the table's first row in that store."""
    num_written: int
    """Rows that somebody has written; all rows if the file holds all."""
    width: int
    dtype: str = "float32"

    @property
    def value_bytes(self) -> int:
        """Of the values of a row."""
        return SAFETENSORS_DTYPES[self.dtype][1] * self.width

    @property
    def whole(self) -> bool:
        return self.num_written == self.table.num_rows

    @property
    def num_bytes(self) -> int:
        return self.num_written * (self.value_bytes + (0 if self.whole else 8))


def table_pieces(tables: Store) -> list[TablePiece]:
    """What to write of each table: all rows, or, where that takes less than half of the bytes, those ever written."""
    pieces = []
    for table in tables.layout.tables:
        store = group_of_table(tables, table.name)
        offset, layout = store.layout.offset_of(table.name), store.layout
        num_written = sum(len(rows) for rows in _written(store, offset, table.num_rows))
        piece = TablePiece(
            table=table, store=store, offset=offset, num_written=num_written, width=layout.width, dtype=layout.dtype
        )
        if 2 * piece.num_bytes >= piece.value_bytes * table.num_rows:
            piece = replace(piece, num_written=table.num_rows)
        pieces.append(piece)
    return pieces


def _written(store: Store, offset: int, num_rows: int) -> Iterator[Int64]:
    """The rows of a table that somebody has written, in pieces; ranges without any are passed over."""
    for begin in range(offset, offset + num_rows, ROWS_AT_ONCE):
        rows = written_rows(store, begin, min(begin + ROWS_AT_ONCE, offset + num_rows))
        if len(rows):
            yield rows


def _size(path: Path) -> int:
    return path.stat().st_size


def _check_room(folder: Path, out: Path, sizes: list[int]) -> None:
    needed, free = sum(sizes) + ROOM_BYTES, shutil.disk_usage(folder).free
    if needed > free:
        raise StoreError(
            f"{out}: this export takes {needed:,} bytes, the disk has {free:,} left; free some space, or give --out on "
            "a larger disk"
        )


def _write_tables(folder: Path, pieces: list[TablePiece], progress: Progress | None) -> list[dict[str, Any]]:
    entries, done, num_rows = [], 0, sum(piece.num_written for piece in pieces)
    for index, piece in enumerate(pieces):
        file = f"table-{index:03d}.safetensors"
        for num_new in write_table(folder / file, piece):
            done += num_new
            if progress is not None:
                progress(done, num_rows)
        entry = {"name": piece.table.name, "file": file, "num_rows": piece.table.num_rows, "width": piece.width}
        entries.append({**entry, "num_written": piece.num_written, "num_bytes": _size(folder / file)})
    return entries


def write_table(path: Path, piece: TablePiece) -> Iterator[int]:
    """One table as safetensors, piece by piece: the format is a length, a JSON header, and the bytes.

    Yields how many rows were written since it last did.
    """
    store, begin, num_rows = piece.store, piece.offset, piece.table.num_rows
    with open(path, "wb") as file:
        header = _header(piece)
        file.write(struct.pack("<Q", len(header)) + header)
        if not piece.whole:
            for written in _written(store, begin, num_rows):
                file.write((written - begin).astype("<i8", copy=False).data.cast("B"))
        for ids, rows in scan(store, begin, begin + num_rows, written_only=not piece.whole, block=ROWS_AT_ONCE):
            values = rows.values.view(np.uint8)[:, : piece.value_bytes]  # without what fills up a row of odd width
            file.write(np.ascontiguousarray(values).data.cast("B"))
            yield len(ids)


def _header(piece: TablePiece) -> bytes:
    begin = 0 if piece.whole else 8 * piece.num_written
    tensors: dict[str, Any] = {"__metadata__": {"table": piece.table.name}}
    if not piece.whole:
        tensors["rows"] = {"dtype": "I64", "shape": [piece.num_written], "data_offsets": [0, begin]}
    shape, end = [piece.num_written, piece.width], begin + piece.num_written * piece.value_bytes
    tensors["values"] = {"dtype": SAFETENSORS_DTYPES[piece.dtype][0], "shape": shape, "data_offsets": [begin, end]}
    header = json.dumps(tensors).encode()
    return header + b" " * (-len(header) % 8)  # so that the values are aligned for whoever maps the file


def _readme(description: dict[str, Any]) -> str:
    model, tables = description["model"], description["tables"]
    lines = [
        f"# {model['name']}, exported after step {description['step']}",
        "",
        f"`{model['file']}` holds the dense part ({model['num_weights']:,} weights), each table one file with the",
        f"tensor `values`, {description['initial'].get('dtype', 'float32')}. Where most rows of a table were never "
        "written its file",
        "has only the others, and the tensor `rows` with their ids; the values of the rest follow from `initial` in",
        "`export.json`. That file has the features, transforms and vocabularies too. To score raw samples:",
        "",
        '    foresee score "this folder" samples.csv',
        "",
        "or, in Python, with records, a dict of columns, a data frame, or Arrow:",
        "",
        "    from foresee import load_exported",
        "",
        '    model = load_exported("this folder")',
        "    model.score([{...}, {...}])        # one dict for each sample: feature name -> raw value",
        "",
        "| table | rows | in the file | width | file |",
        "|---|---|---|---|---|",
        *(
            f"| {it['name']} | {it['num_rows']:,} | {it['num_written']:,} | {it['width']} | {it['file']} |"
            for it in tables
        ),
    ]
    return "\n".join(lines) + "\n"
