"""Everything a distributed run leaves, as bytes, and how far a run is that is under way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from foresee.run.build import open_log, open_tables
from foresee.run.folder import open_run
from foresee.store.contract import Rows, Store
from foresee.store.remote import RemoteStore
from foresee.store.row_groups import groups_of

Bytes = dict[str, bytes]


def rows_of(store: Store) -> Bytes:
    found: Bytes = {"values": b"", "state": b"", "versions": b""}
    for group in groups_of(store):
        rows = Rows.empty(group.layout.num_rows, group.layout)
        group.read(np.arange(group.layout.num_rows), rows)
        found = {name: before + getattr(rows, name).tobytes() for name, before in found.items()}
    return found


def rows_on_servers(addresses: Sequence[str]) -> Bytes:
    store = RemoteStore(addresses)
    try:
        return rows_of(store)
    finally:
        store.close()


def rows_in_folders(run: Path) -> Bytes:
    config = open_run(run)
    with open_tables(config, open_log(config)) as tables:
        return rows_of(tables.store)


def dense_half(run: Path, step: int) -> Bytes:
    """Weights and optimiser. The random state is left out: workers draw by step, whatever was drawn before."""
    folder = run / "checkpoints" / f"step-{step:09d}"
    return {"model": (folder / "model.safetensors").read_bytes()}


def num_steps_done(run: Path) -> int:
    """As metrics.jsonl has it; 0 before there is one."""
    file = run / "metrics.jsonl"
    if not file.exists():
        return 0
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    return max((line["step"] for line in lines if line["kind"] == "train"), default=0)
