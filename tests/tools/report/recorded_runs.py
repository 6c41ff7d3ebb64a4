"""Runs for the tests of reports: one process and two workers, trained once, recorded whole; and one written by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from foresee.data import ClickLog
from foresee.run.config_file import make_run
from foresee.run.session import train


def train_recorded(log: ClickLog, run: Path, **sections: dict[str, Any]) -> Path:
    """A run of 25 steps, evaluated twice, every step in its timeline."""
    content: dict[str, Any] = {
        "log": str(log.path),
        "run": str(run),
        "model": {"name": "dlrm", "dim": 4, "options": {"bottom": [8], "top": [8]}},
        "cache": {"rows": 150},
        "train": {"batch_size": 32, "num_threads": 1, "log_every_steps": 5, "evaluate_every_steps": 15},
        "report": {"timeline_steps": 1000},
    }
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section}
    train(make_run(content, where="test"), console=Console(file=io.StringIO()))
    return run


START = {
    "kind": "start", "format_version": 1, "step": 0, "num_workers": 2, "num_steps": 100, "num_servers": 2,
    "planner": "lookahead", "capacity_rows": 1000, "row_bytes": 72, "tables": ["user", "item"],
    "table_rows": [4000, 6000], "series_every_steps": 10,
}  # fmt: skip


def write_two_workers(folder: Path) -> Path:
    """Fifty steps of two workers, with numbers that can be added up by hand."""
    (folder / "timeline").mkdir(parents=True)
    for worker in range(2):
        lines = [{**START, "worker": worker, "wall_seconds": 1000.0 + worker}]
        for point in range(5):
            lines += [_point(worker, point), *_spans(worker, point * 10 + 5)]
        tables = {"kind": "tables", "step": 50, "steps": 5, "unique": [100, 300], "fetched": [10, 150]}
        text = "".join(json.dumps(line) + "\n" for line in [*lines, tables])
        (folder / "timeline" / f"worker-{worker}.jsonl").write_text(text)
    return folder


def _point(worker: int, number: int) -> dict[str, Any]:
    train = {
        "wait_rows": 0.01, "fill": 0.01, "gather": 0.02, "forward": 0.2, "backward": 0.3, "dense": 0.1, "update": 0.08,
        "evict": 0.01, "exchange": 0.2, "other": 0.07,
    }  # fmt: skip
    others = {"planner": {"plan": 0.1}, "reader": {"fetch": 0.2}, "writer": {"write_back": 0.1}}
    peer_bytes = [[0, 0, 0, 0], [0, 0, 0, 0]]
    peer_bytes[1 - worker] = [4000, 4000, 2000, 2000]
    return {
        "kind": "series", "step": 10 * (number + 1), "steps": 10, "seconds": 1.0, "lanes": {"train": train, **others},
        "lookups": 5000, "unique": 2000, "fetched": 200 if number else 2000, "evicted": 100, "received": 300,
        "occupied": 900 + worker, "ahead": {"planned": 20, "fetched": 8},
        "store_bytes": [[3000, 1000], [5000, 1000]], "peer_bytes": peer_bytes,
        "loss": 0.7 - 0.05 * number + 0.02 * worker,
    }  # fmt: skip


def _spans(worker: int, first_step: int) -> list[dict[str, Any]]:
    """Three steps of 100 ms each: 10 ms wait, 40 forward, 40 backward, 10 exchange; a fetch of 30 ms beside each."""
    lines = []
    for step in range(first_step, first_step + 3):
        begin = 0.1 * step - worker  # worker 1's clock began a second later
        for what, length in (("wait_rows", 0.01), ("forward", 0.04), ("backward", 0.04), ("exchange", 0.01)):
            lines.append(_span("train", what, step, begin, begin + length, 0))
            begin += length
        lines.append(_span("reader", "fetch", step + 8, begin - 0.08, begin - 0.05, 7200))
    return lines


def _span(lane: str, what: str, step: int, begin: float, end: float, num_bytes: int) -> dict[str, Any]:
    times = {"begin": round(begin, 6), "end": round(end, 6)}
    return {"kind": "span", "lane": lane, "what": what, "step": step, **times, "bytes": num_bytes}
