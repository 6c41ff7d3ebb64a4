"""The table of `foresee plan`: what every policy would move, on the same steps and in the same cache.

In: a stream, a header, the layout of rows. Out: counters by policy, and these as text for a person or as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

from foresee.data.stream import LogStream
from foresee.io.machine import MemoryNeed
from foresee.plan import find, window_bytes
from foresee.plan.count import rows_moved
from foresee.plan.policy import Policy
from foresee.plan.record import Counters, Header
from foresee.plan.registry import DEFAULT
from foresee.run.memory import in_words, memory_needed, slots_of, window_in_words, window_is_cut, window_steps
from foresee.store.layout import Layout
from foresee.tools import forecast
from foresee.tools.cli.options import bar
from foresee.tools.report.frame import Column, Frame, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Policies side by side."""

    counters: dict[str, Counters]
    num_bytes: dict[str, int]
    """Of the rows that each policy moves."""
    header: Header
    layout: Layout
    num_steps: int
    """Compared steps."""
    num_steps_all: int
    batch_size: int
    window_steps: int
    """How far the run's planner sees beyond the step it plans."""
    window_is_cut: bool
    """By its bound on bytes."""
    window_words: str
    memory: MemoryNeed

    @classmethod
    def of(
        cls,
        stream: LogStream,
        header: Header,
        layout: Layout,
        *,
        num_steps: int | None,
        shuffle_samples: int,
        console: Console,
    ) -> Comparison:
        """Plans the first steps once for each policy."""
        compared = forecast.first_steps(stream, num_steps).num_steps
        counters, num_bytes = {}, {}
        for name in forecast.compared(header):
            with bar(console, name, compared) as advance:
                planned = forecast.same_for(header, name, num_steps=compared)
                counters[name], num_bytes[name] = forecast.traffic_of(stream, planned, layout, advance)
        first_batch = stream.batch(0)
        return cls(
            counters=counters,
            num_bytes=num_bytes,
            header=header,
            layout=layout,
            num_steps=compared,
            num_steps_all=stream.num_steps,
            batch_size=stream.options.batch_size,
            window_steps=window_steps(header, first_batch) - 1,
            window_is_cut=window_is_cut(header, first_batch),
            window_words=window_in_words(header, first_batch),
            memory=memory_needed(layout, header, first_batch, shuffle_samples),
        )

    def figures(self, name: str) -> dict[str, float]:
        """What a person asks of one policy."""
        counters, num_steps = self.counters[name], max(1, self.num_steps)
        slot_bytes = sum(slots * group.row_bytes for group, slots in slots_of(self.layout, self.header))
        critical = rows_moved(counters, self.header.num_workers).critical
        return {
            "hit_rate": counters.hit_rate,
            "fetched_per_step": counters.num_fetched / num_steps,
            "written_back_per_step": counters.num_evicted / num_steps,
            "from_peers_per_step": counters.num_received / num_steps,
            "critical_per_step": critical / num_steps,
            "bytes_per_step": self.num_bytes[name] / num_steps,
            "cache_bytes": counters.peak_slots * slot_bytes // self.header.capacity_rows,
        }


COLUMNS = (
    Column("policy", "policy"),
    Column("hit_rate", "hit rate", ".2%"),
    Column("fetched_per_step", "fetched a step", ",.1f"),
    Column("written_back_per_step", "written back", ",.1f"),
    Column("from_peers_per_step", "from peers", ",.1f"),
    Column("critical_per_step", "critical", ",.1f"),
    Column("bytes_per_step", "MB a step", ",.3f", 1e-6),
    Column("cache_bytes", "cache", ",.1f", 1e-6, " MB"),
)
AMONG_WORKERS = ("from_peers_per_step", "critical_per_step")


def as_json(comparison: Comparison) -> str:
    """One object on one line."""
    content: dict[str, Any] = {
        "planner": comparison.header.planner,
        "cache_rows": comparison.header.capacity_rows,
        "window_steps": comparison.window_steps,
        "window_bytes": window_bytes(comparison.header),
        "window_is_cut": comparison.window_is_cut,
        "memory_bytes": comparison.memory.total,
        "steps": comparison.num_steps,
        "of_steps": comparison.num_steps_all,
        "policies": {name: comparison.figures(name) for name in comparison.counters},
    }
    return json.dumps(content)


def _each(layout: Layout, header: Header) -> str:
    if not layout.widths:
        return f"{layout.row_bytes} bytes each"
    widths = (f"{slots:,} slots of {group.row_bytes} bytes" for group, slots in slots_of(layout, header))
    return f"as wide as their tables ({', '.join(widths)})"


def as_text(comparison: Comparison, log: str) -> list[RenderableType]:
    """What a person reads."""
    header, layout = comparison.header, comparison.layout
    whole = comparison.num_steps == comparison.num_steps_all
    steps = f"all {comparison.num_steps:,}" if whole else f"the first {comparison.num_steps:,}"
    lines: list[RenderableType] = [
        f"{log}: {steps} of {comparison.num_steps_all:,} steps of {comparison.batch_size:,} samples; cache of "
        f"{header.capacity_rows:,} of {layout.num_rows:,} rows, {_each(layout, header)}",
        _table(comparison),
    ]
    if header.planner == DEFAULT.name:
        lines.append(comparison.window_words)
    lines.append(in_words(comparison.memory))
    if not whole:
        lines.append("the first steps fill the cache and know little reuse; --steps all compares the whole run")
    if header.num_workers > 1:
        lines.append(
            f"rows of all {header.num_workers} workers together, the cache is that of each; foresee compare {log} "
            f"--trainers {header.num_workers} puts other systems' protocols beside them"
        )
    return lines


def meanings_of(policies: Iterable[Policy]) -> str:
    """What each policy does, each once: the line below a table of policies."""
    return "; ".join(dict.fromkeys(f"{policy.name}: {policy.meaning}" for policy in policies))


def _table(comparison: Comparison) -> Table:
    names = {name: f"{name} (this run)" for name in comparison.counters if name == comparison.header.planner}
    records: list[dict[str, Value]] = [
        {"policy": names.get(name, name), **comparison.figures(name)} for name in comparison.counters
    ]
    columns = COLUMNS if comparison.header.num_workers > 1 else [it for it in COLUMNS if it.key not in AMONG_WORKERS]
    table = Frame(columns, records).table(lambda record: "bold" if record["policy"] in names.values() else None)
    table.caption = meanings_of(map(find, comparison.counters))
    return table
