"""What a run costs on machines with a price: pure functions from predicted speeds to lines of a bill, and the knee.

In: node types (read from YAML), the samples of a run, and for a number of nodes what `simulation` predicts and what
every node has to hold. Out: lines with hours and cost; a line whose node is too small says so and has no place among
the others. Every node carries one trainer and one server, the first one the planner as well.

The *knee* is the line with the least cost × hours: from there, paying more buys less than its share of time, and saving
more costs more than its share. For nodes of one type that is where efficiency over time is greatest (Eager, Zahorjan
and Lazowska, 1989); between types it is the same trade. No other line is both cheaper and faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from foresee.errors import ConfigError

GIGABYTE = 1e9
HOUR_SECONDS = 3600.0
PART_BYTES = 1.1e9
"""A process with torch, its model and its connections, before it holds a row."""
INDEX_BYTES = 8
"""What a row on disk takes of its server's memory."""
DISK_FACTOR = 3.0
"""A table folder beside its rows: a log of about twice what changed, and the undo of one commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeType:
    """A machine that can be had, as a person describes it."""

    name: str
    price: float
    """Of an hour, in any currency."""
    cores: float
    memory_gb: float
    link_gbit: float
    """Each way; its trainer and its server have half of it each."""
    disk_gb: float = 0.0
    """0: rows are kept in memory."""
    disk_reads_per_second: float = math.inf
    compute_ms: float | None = None
    """Forward and backward of a trainer's share of a step on it; none: what the command says of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the fullest node of a cluster has to hold."""

    memory_bytes: float
    disk_bytes: float


def need_of(
    node: NodeType, *, trainer_bytes: float, planner_bytes: float, server_bytes: float, server_rows: float
) -> Need:
    """One trainer, one server and the planner; rows are on the disk if there is one."""
    beside = trainer_bytes + planner_bytes + 3 * PART_BYTES
    if node.disk_gb:
        return Need(memory_bytes=beside + server_rows * INDEX_BYTES, disk_bytes=DISK_FACTOR * server_bytes)
    return Need(memory_bytes=beside + server_bytes, disk_bytes=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A number of nodes of one type."""

    node: NodeType
    num_nodes: int
    hours: float
    need: Need

    @property
    def cost(self) -> float:
        return self.num_nodes * self.hours * self.node.price

    @property
    def refusal(self) -> str | None:
        """Why it cannot be: a sentence."""
        for what, need, has in (
            ("memory", self.need.memory_bytes, self.node.memory_gb),
            ("disk", self.need.disk_bytes, self.node.disk_gb),
        ):
            if need > has * GIGABYTE:
                return f"a node needs {need / GIGABYTE:,.1f} GB of {what} and {self.node.name} has {has:g}"
        return None


def line(node: NodeType, num_nodes: int, *, num_samples: float, samples_per_second: float, need: Need) -> Line:
    hours = num_samples / samples_per_second / HOUR_SECONDS
    return Line(node=node, num_nodes=num_nodes, hours=hours, need=need)


def that_fit(lines: Sequence[Line]) -> list[Line]:
    """Those that can be; a sentence if there is none."""
    fitting = [it for it in lines if it.refusal is None]
    if not fitting:
        last = max(lines, key=lambda it: it.num_nodes)
        raise ConfigError(
            f"nothing fits: with {last.num_nodes} nodes {last.refusal}; give more nodes (--trainers), larger ones, or "
            "disks (disk_gb)"
        )
    return fitting


def knee(lines: Sequence[Line]) -> Line:
    """Least cost × hours; the fewest nodes of those that are alike."""
    return min(that_fit(lines), key=lambda it: (it.cost * it.hours, it.num_nodes))


def read_node_types(path: Path) -> list[NodeType]:
    """A YAML list, one mapping for each type."""
    try:
        content = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give a file with node types") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML ({' '.join(str(error).split())}); see docs/scale.md") from None
    if not isinstance(content, list) or not content:
        raise ConfigError(f"{path}: give a list of node types, each with {', '.join(_required())}")
    found = [_node_type(entry, f"{path}, node type {place}") for place, entry in enumerate(content, start=1)]
    names = [it.name for it in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path}: {name} is there {names.count(name)} times; give every node type its own name")
    return found


def _required() -> list[str]:
    return ["name", "price", "cores", "memory_gb", "link_gbit"]


def _node_type(entry: Any, where: str) -> NodeType:
    known = [field.name for field in fields(NodeType)]
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: {entry!r} is not a mapping; give {', '.join(_required())}")
    if unknown := [key for key in entry if key not in known]:
        raise ConfigError(f"{where}: there is no {unknown[0]!r}; choose of {', '.join(known)}")
    if absent := [key for key in _required() if key not in entry]:
        raise ConfigError(f"{where}: {absent[0]} is missing; give {', '.join(_required())}")
    name = entry["name"]
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{where}: name is {name!r}; give a word")
    return NodeType(name=name, **{key: _number(entry[key], key, f"{where} ({name})") for key in entry if key != "name"})


def _number(value: Any, key: str, where: str) -> float:
    least = 0.0 if key == "disk_gb" else math.ulp(0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        raise ConfigError(f"{where}: {key} is {value!r}; give a number {'from' if least == 0 else 'above'} 0")
    return float(value)
