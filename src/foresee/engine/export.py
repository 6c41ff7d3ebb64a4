"""A trained run as plain files for serving: weights and tables as safetensors, vocabularies as Parquet, one JSON.

    OUT/export.json                 what is what: model, features, transforms, tables, vocabularies
    OUT/model.safetensors           the dense part
    OUT/table-000.safetensors, …    `values`, float32 [rows, width], one file for each table
    OUT/vocabulary-000.parquet, …   (id, value, count), copied from the log
    OUT/README.md                   the same in words

In: a run folder, as of its last commit. Out: a folder that appears whole or not at all. Tables are written in pieces,
so memory stays bounded however large they are. `exported.load_exported` reads the result without any of the rest.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as save_tensors
from torch import nn

from foresee.config import RunConfig
from foresee.data.click_log import ClickLog
from foresee.data.folder import new_folder
from foresee.engine import checkpoint
from foresee.engine.best_folder import open_best
from foresee.engine.parts import build_model, open_log, open_tables, row_optimizer, table_layout
from foresee.engine.run_folder import RunFolder, open_run
from foresee.engine.tables import Tables
from foresee.errors import StoreError
from foresee.store.contract import Rows, Store, Table

EXPORT_FILE = "export.json"
FORMAT_NAME = "foresee-export"
FORMAT_VERSION = 1
ROWS_AT_ONCE = 1 << 16

Progress = Callable[[int, int], None]
"""Called as progress(rows written, rows in all)."""


def export(run: Path, out: Path, progress: Progress | None = None, *, best: bool = False) -> dict[str, Any]:
    """Writes what a run has learned into a new folder, as of its last commit or best; returns its description."""
    config = open_run(run)
    log = open_log(config)
    with trained(config, log, best=best) as tables, new_folder(out, replace=False) as folder:
        model = trained_model(config, log, tables, best=best)
        step = tables.store.committed_step
        (folder / checkpoint.MODEL_FILE).write_bytes(save_tensors(checkpoint.own_copies(model.state_dict())))
        entries = _write_tables(folder, tables.store, progress)
        description = describe(config, log, step, entries, num_weights=sum(p.numel() for p in model.parameters()))
        for vocabulary in log.vocabularies.values():
            if vocabulary.file is not None:
                shutil.copyfile(log.path / vocabulary.file, folder / vocabulary.file)
        (folder / EXPORT_FILE).write_text(json.dumps(description, indent=2) + "\n", "utf-8")
        (folder / "README.md").write_text(_readme(description), "utf-8")
    return description


def trained(config: RunConfig, log: ClickLog, *, best: bool = False) -> Tables:
    """The tables of a run that has kept something; best: as of its best evaluation."""
    if best:
        store = open_best(RunFolder(config.run), table_layout(config, log))
        return Tables(store, row_optimizer(config.tables.optimizer))
    if config.tables.store == "memory":
        raise StoreError(
            f"the rows of {config.run} were in memory and ended with their process; train with tables.store: disk"
        )
    if not config.tables_folder.is_dir():
        raise StoreError(f"{config.tables_folder} holds no tables yet; train first")
    return open_tables(config, log)


def trained_model(config: RunConfig, log: ClickLog, tables: Tables, *, best: bool = False) -> nn.Module:
    """The model as of the tables' last commit; at step 0, as the seed gives it."""
    model, step, folder = build_model(config, log), tables.store.committed_step, RunFolder(config.run)
    if step:
        checkpoint.load_weights(folder.best_checkpoints if best else folder.checkpoints, step, model)
    return model


def describe(
    config: RunConfig, log: ClickLog, step: int, tables: list[dict[str, Any]], *, num_weights: int
) -> dict[str, Any]:
    """Everything that serving has to know."""
    return {
        "format": FORMAT_NAME,
        "version": FORMAT_VERSION,
        "step": step,
        "log_digest": log.digest,
        "model": {
            **config.model.model_dump(exclude={"folder"}), "file": checkpoint.MODEL_FILE, "num_weights": num_weights,
        },
        "dense": [asdict(feature) for feature in log.dense],
        "features": [asdict(feature) for feature in log.features],
        "tables": tables,
        "vocabularies": {name: asdict(vocabulary) for name, vocabulary in log.vocabularies.items()},
    }


def _write_tables(folder: Path, store: Store, progress: Progress | None) -> list[dict[str, Any]]:
    entries, offset, num_rows = [], 0, store.layout.num_rows
    for index, table in enumerate(store.layout.tables):
        file = f"table-{index:03d}.safetensors"
        done_before = offset

        def report(done: int, before: int = done_before) -> None:
            if progress is not None:
                progress(before + done, num_rows)

        write_table(folder / file, store, table, offset, report)
        entries.append({"name": table.name, "file": file, "num_rows": table.num_rows, "width": store.layout.width})
        offset += table.num_rows
    return entries


def write_table(path: Path, store: Store, table: Table, offset: int, report: Callable[[int], None]) -> None:
    """One table as safetensors, piece by piece: the format is a length, a JSON header, and the bytes."""
    width = store.layout.width
    num_bytes = 4 * table.num_rows * width
    entry = {"dtype": "F32", "shape": [table.num_rows, width], "data_offsets": [0, num_bytes]}
    header = json.dumps({"__metadata__": {"table": table.name}, "values": entry}).encode()
    header += b" " * (-len(header) % 8)  # so that the values are aligned for whoever maps the file
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for begin in range(0, table.num_rows, ROWS_AT_ONCE):
            end = min(begin + ROWS_AT_ONCE, table.num_rows)
            rows = Rows.empty(end - begin, store.layout)
            store.read(np.arange(offset + begin, offset + end), rows)
            file.write(rows.values.astype("<f4", copy=False).data.cast("B"))
            report(end)


def _readme(description: dict[str, Any]) -> str:
    model, tables = description["model"], description["tables"]
    lines = [
        f"# {model['name']}, exported after step {description['step']}",
        "",
        f"`{model['file']}` holds the dense part ({model['num_weights']:,} weights), each table one file with the",
        "tensor `values`, float32. `export.json` has the features, transforms and vocabularies. To score raw samples:",
        "",
        "    from foresee.engine.exported import load_exported",
        "",
        "    model = load_exported(\"this folder\")",
        "    model.score([{...}, {...}])        # one dict for each sample: feature name -> raw value",
        "",
        "| table | rows | width | file |",
        "|---|---|---|---|",
        *(f"| {it['name']} | {it['num_rows']:,} | {it['width']} | {it['file']} |" for it in tables),
    ]
    return "\n".join(lines) + "\n"
