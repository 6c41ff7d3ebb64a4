"""What plans move, as the commands that plan without training print it."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import collected
import forked
from collected import Parts
from gate_graph_runs import write_graph_run
from gate_runs import write_run

TRAFFIC: dict[str, Callable[[Path, Path], Parts]] = {}
MEASURED = (
    "waited_ms", "exchange_ms", "late_ms", "bound_ms", "step_ms", "compute_ms", "servers_ms", "samples_per_second",
    "efficiency", "planner_ms", "planner_cores", "trainer_gb", "bottleneck",
)  # fmt: skip
"""Columns of `foresee simulate --csv` that follow from timing this machine."""


def traffic(name: str) -> Callable[[Callable[[Path, Path], Parts]], None]:
    """Add what a command counts by its name."""

    def added(function: Callable[[Path, Path], Parts]) -> None:
        TRAFFIC[f"traffic: {name}"] = function

    return added


def printed(folder: Path, *arguments: object) -> Any:
    """The JSON object that a command prints."""
    return json.loads(forked.foresee(*arguments, folder=folder))


def lines(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@traffic("plan, policies of one worker by cache size")
def _(folder: Path, data: Path) -> Parts:
    found: Parts = {}
    for rows in (100, 140, 250):
        write_run(folder, data, cache={"rows": rows})
        for policy, counts in printed(folder, "plan", "run.yaml", "--json")["policies"].items():
            found[f"{policy}, {rows} rows"] = counts
    return found


@traffic("plan, 2 and 3 workers by placement and width")
def _(folder: Path, data: Path) -> Parts:
    found: Parts = {}
    for workers, placement, dim in (
        (2, "herald", 4),
        (3, "location_aware", 4),
        (3, "contiguous", {"user": 6, "default": 3}),
    ):
        model = {"name": "dcn_v2", "dim": dim, "options": {}}
        distributed = {"workers": workers, "servers": 2, "placement": placement}
        write_run(folder, data, model=model, distributed=distributed, cache={"rows": 130, "window_steps": 12})
        for policy, counts in printed(folder, "plan", "run.yaml", "--json")["policies"].items():
            found[f"{policy}, {workers} workers, {placement}"] = counts
    return found


@traffic("compare, all policies with 1, 2 and 8 trainers")
def _(folder: Path, data: Path) -> Parts:
    sizes = ("--trainers", "1,2,8", "--cache", "1.5x,0.5", "--steps", 6, "--batch-size", 12, "--staleness", 4)
    forked.foresee("compare", data / "clicks", *sizes, "--csv", "compare.csv", folder=folder)
    return {
        f"{it['policy']}, {it['trainers']} trainers, {it['cache']}": _compared(it)
        for it in lines(folder / "compare.csv")
    }


def _compared(line: dict[str, str]) -> Any:
    return {key: value for key, value in line.items() if key not in ("policy", "trainers", "cache") and value}


@traffic("simulate, counts without what is timed")
def _(folder: Path, data: Path) -> Parts:
    sizes = ("--trainers", "2,4", "--batch-size", 12, "--steps", 6)
    forked.foresee("simulate", data / "clicks", *sizes, "--csv", "simulate.csv", folder=folder)
    found = lines(folder / "simulate.csv")
    return {f"{it['trainers']} trainers": {key: it[key] for key in it if key not in MEASURED} for it in found}


@traffic("explain, steps and rows")
def _(folder: Path, data: Path) -> Parts:
    write_run(folder, data)
    found = {f"step {step}": printed(folder, "explain", "run.yaml", "--step", step, "--json") for step in (0, 12, 41)}
    found["row"] = printed(folder, "explain", "run.yaml", "--row", "user:=u3", "--json")
    return {name: collected.of_json(content) for name, content in found.items()}


@traffic("graph plan, orders by rows and partitions")
def _(folder: Path, data: Path) -> Parts:
    found: Parts = {}
    for name in ("random", "ring", "beta", "comet"):
        order = {"name": name} if name == "random" else {"name": name, "partitions": 8, "buffer": 4}
        write_graph_run(
            folder, data, order=order, cache={"unit": "rows", **({"share": 0.95} if name == "random" else {})}
        )
        content = printed(folder, "graph", "plan", "run.yaml", "--json")
        units = {it.pop("name"): it for it in content.pop("units")}
        found |= {name: content, **{f"{name}, {unit}": counts for unit, counts in units.items()}}
    return found
