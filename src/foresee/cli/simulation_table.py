"""The tables of `foresee simulate`: a line for each number of trainers.

In: what was simulated. Out: flat records, which the CSV and the page are made of too, and these as tables for a
terminal. Every time of a step is called predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

if TYPE_CHECKING:
    from foresee.engine.simulation import Simulated

Record = dict[str, str | int | float]


def record_of(found: Simulated, compute_seconds: float) -> Record:
    """One flat record."""
    from foresee.plan.cost import BEHIND, COMPUTE, DENSE, EXCHANGE, SERVER_LINK, SERVERS, TRAINER_LINK, WAITED

    prediction = found.prediction
    names = {"compute_ms": COMPUTE, "waited_ms": WAITED, "exchange_ms": EXCHANGE, "dense_ms": DENSE, "late_ms": BEHIND}
    parts = {name: 1e3 * prediction.parts[part] for name, part in names.items()}
    busy = {"trainer_link_ms": TRAINER_LINK, "server_link_ms": SERVER_LINK, "servers_ms": SERVERS}
    return {
        "trainers": found.num_trainers,
        "servers": found.num_servers,
        "batch_size": found.batch_size,
        "steps_planned": found.num_steps,
        "cache_rows": found.cache_rows,
        "step_ms": 1e3 * prediction.step_seconds,
        "bottleneck": prediction.bottleneck,
        **parts,
        "bound_ms": max(0.0, 1e3 * prediction.step_seconds - sum(parts.values())),
        **{name: 1e3 * prediction.lanes[lane] for name, lane in busy.items()},
        "samples_per_second": found.samples_per_second,
        "efficiency": compute_seconds / prediction.step_seconds,
        "unique_rows": found.num_unique,
        "hit_rate": found.hit_rate,
        "fetched_rows": found.fetched_rows,
        "critical_kb": found.critical_bytes / 1e3,
        "critical_kb_most": found.critical_bytes_most / 1e3,
        "plan_kb": found.plan_bytes / 1e3,
        "planner_ms": 1e3 * found.planner_seconds,
        "planner_cores": found.planner_cores,
        "trainer_gb": found.trainer_bytes / 1e9,
        "server_gb": found.server_bytes / 1e9,
        "planner_gb": found.planner_bytes / 1e9,
    }


def as_tables(records: Sequence[Record]) -> list[RenderableType]:
    """Two tables: the step, and what everybody needs."""
    step = _table(
        records,
        {
            "trainers": ("trainers", ",d"),
            "servers": ("servers", ",d"),
            "predicted ms": ("step_ms", ",.2f"),
            "limited by": ("bottleneck", ""),
            "compute": ("compute_ms", ",.2f"),
            "waiting": ("waited_ms", ",.2f"),
            "exchange": ("exchange_ms", ",.2f"),
            "dense": ("dense_ms", ",.2f"),
            "samples/s": ("samples_per_second", ",.0f"),
            "of compute": ("efficiency", ".0%"),
        },
    )
    needs = _table(
        records,
        {
            "trainers": ("trainers", ",d"),
            "cache rows": ("cache_rows", ",d"),
            "hit rate": ("hit_rate", ".1%"),
            "fetched": ("fetched_rows", ",.0f"),
            "critical KB": ("critical_kb", ",.0f"),
            "busiest": ("critical_kb_most", ",.0f"),
            "plan KB": ("plan_kb", ",.0f"),
            "trainer GB": ("trainer_gb", ",.2f"),
            "server GB": ("server_gb", ",.1f"),
            "planner GB": ("planner_gb", ",.2f"),
            "planning ms": ("planner_ms", ",.1f"),
            "cores": ("planner_cores", ",.1f"),
        },
    )
    return [step, needs]


def _table(records: Sequence[Record], columns: dict[str, tuple[str, str]]) -> Table:
    table = Table(*columns)
    for column in table.columns:
        column.justify = "left" if column.header == "limited by" else "right"
    for record in records:
        table.add_row(*(format(record[name], form) for name, form in columns.values()))
    return table
