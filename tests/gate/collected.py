"""What runs have left, as digests by part. Reads files by their documented formats, with numpy and json alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

Parts = dict[str, Any]
TIMES = ("seconds", "samples_per_second", "wait_share", "edges_per_second", "nodes_per_second")
"""Keys of metrics.jsonl that clocks decide."""
WINDOWED = ("hit_rate",)


def digest(*contents: bytes) -> str:
    """Short digest of bytes, each with its length."""
    found = hashlib.sha256()
    for content in contents:
        found.update(len(content).to_bytes(8, "little"))
        found.update(content)
    return found.hexdigest()[:16]


def of_json(content: Any) -> str:
    """Digest of a JSON document."""
    return digest(json.dumps(content, sort_keys=True).encode())


def tables(folder: Path) -> Parts:
    """Rows of folded table folders, of all servers and widths, in the order of their paths."""
    arrays = sorted(folder.rglob("rows.npy"))
    assert arrays, f"{folder} has no table folder"
    fields: dict[str, list[bytes]] = {"values": [], "state": [], "versions": []}
    for path in arrays:
        log = path.with_name("log.bin")
        assert not log.exists() or not log.stat().st_size, f"{log} has rows that were not folded"
        rows = np.load(path)
        for name in rows.dtype.names:
            if name == "padding":
                continue
            key = {"state": "state", "version": "versions"}.get(name, "values")
            fields[key].append(np.ascontiguousarray(rows[name]).tobytes())
    names = ("rows.npy", "written.npy", "checksums.npy")
    raw = [path.with_name(name).read_bytes() for path in arrays for name in names]
    return {**{name: digest(*content) for name, content in fields.items()}, "table files": digest(*raw)}


def tensors(path: Path) -> dict[str, str]:
    """Digest of each tensor of a safetensors file, by name."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        low, high = entry["data_offsets"]
        described = json.dumps([entry["dtype"], entry["shape"]]).encode()
        found[name] = digest(described, content[begin + low : begin + high])
    return found


def checkpoint(run: Path) -> Parts:
    """Dense weights, optimizer state, the random state and the rest of the newest checkpoint."""
    newest = max((run / "checkpoints").iterdir())
    state = tensors(newest / "optimizer.safetensors")
    random = state.pop("torch_random_state", None)
    return {
        "step": int(newest.name.removeprefix("step-")), "dense": of_json(tensors(newest / "model.safetensors")),
        "optimizer": of_json(state), "random state": random, "loop state": digest((newest / "state.json").read_bytes()),
    }  # fmt: skip


def metrics(run: Path, *, counts: bool = True) -> Parts:
    """Lines of metrics.jsonl without what clocks decide; and the last loss and figures as numbers."""
    dropped = {*TIMES, *WINDOWED, *(() if counts else ("rows_fetched", "rows_written", "bytes_moved"))}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{key: it for key, it in line.items() if key not in dropped} for line in lines if line["kind"] != "commit"]
    last = {}
    for line in kept:
        last.update({key: value for key, value in line.items() if isinstance(value, float)})
    return {"metrics": of_json(kept), "last": last}


def run(folder: Path, *, counts: bool = True) -> Parts:
    """All of a run folder."""
    return {**tables(folder / "tables"), **checkpoint(folder), **metrics(folder, counts=counts)}


def files(folder: Path, *, leave_out: Iterable[str] = ()) -> str:
    """Names and bytes of all files below a folder."""
    found = [it for it in sorted(folder.rglob("*")) if it.is_file() and it.name not in leave_out]
    return digest(*(part for it in found for part in (str(it.relative_to(folder)).encode(), it.read_bytes())))


def run_file(run: Path) -> Parts:
    """Every key of a run file with its value, as the run folder keeps them; places are left out."""
    content = yaml.safe_load((run / "config.yaml").read_text())
    return {key: it for key, it in _flat("", content) if key not in ("log", "graph", "run")}


def _flat(path: str, content: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(content, dict) or not content:
        yield path, content
        return
    for key, value in content.items():
        yield from _flat(f"{path}.{key}" if path else str(key), value)


def plan(path: Path) -> str:
    """Content of a saved plan file: header, columns, counters. Not the bytes around them, which are Arrow's."""
    import pyarrow as pa

    with pa.OSFile(str(path)) as source, pa.ipc.open_stream(source) as stream:
        metadata = stream.schema.metadata
        content = [metadata[b"foresee.plan"], str(stream.schema.remove_metadata()).encode()]
        content += [json.dumps(batch.to_pylist()).encode() for batch in stream]
    return digest(*content)
