"""`foresee simulate --nodes`: what a run costs on 1, 2, 4, … machines of each type, as records and as a table.

In: node types and what was planned for each number of nodes. Out: the flat records of `simulate` with node, hours and
cost in front, and the bill for a terminal. What fits nowhere is one sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from foresee.io.units import counted
from foresee.tools.cli import scenario
from foresee.tools.report.frame import Column, Value

if TYPE_CHECKING:
    from foresee.tools.bill import Line, NodeType
    from foresee.tools.cli.simulate import Network
    from foresee.tools.simulation import ClusterSpec, Planned, RowTimes, Simulated

COUNTS = "1,2,4,8,16,32,64"
GIGABIT = 1e9 / 8
EXPLANATION = (
    "cost: nodes × hours × price of an hour; knee: the least cost × hours, beyond which nodes cost more than they "
    "save; memory GB: of the fullest node, which has a trainer, a server and the planner. A trainer's batch stays as "
    "it is, so more nodes train with larger batches"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """A line, and what was predicted for it."""

    line: Line
    found: Simulated
    compute_seconds: float


def on_nodes(cluster: ClusterSpec, node: NodeType, num_nodes: int) -> ClusterSpec:
    """A trainer and a server on every node, the planner on the first; on one node nothing crosses a link."""
    speeds = cluster.speeds
    half = node.link_gbit * GIGABIT / 2 if num_nodes > 1 else inf
    per_core = speeds.server_rows_per_second
    known = replace(
        speeds,
        compute_seconds=speeds.compute_seconds if node.compute_ms is None else node.compute_ms * scenario.MILLISECOND,
        trainer_bytes_per_second=half,
        server_bytes_per_second=half,
        latency_seconds=speeds.latency_seconds if num_nodes > 1 else 0.0,
        num_servers=num_nodes,
        cores=node.cores,
        planner_cores_here=min(1.0, cluster.num_planners / num_nodes),
        server_rows_per_second=min(max(1.0, node.cores / 2) * per_core, node.disk_reads_per_second),
    )
    return replace(cluster, speeds=known)


def in_words(assumed: Network) -> str:
    """What holds for nodes of every type."""
    planned = f"planning on {counted(assumed.planners, 'core')}" if assumed.planners else "a plan that was made before"
    return (
        f"Predicted for {assumed.compute_ms:g} ms of compute a step where a type says nothing else, links of "
        f"{assumed.latency_us:g} µs, half of a node's for its trainer and half for its server, "
        f"{assumed.dense_mb:g} MB of dense gradients, {planned}."
    )


def billed(planned: Planned, node: NodeType, cluster: ClusterSpec, num_samples: float) -> Billed:
    """`cluster`: as for any machine, its servers with one core."""
    from foresee.tools.bill import line, need_of
    from foresee.tools.simulation import simulate

    num_nodes = planned.sample.num_workers
    on = on_nodes(cluster, node, num_nodes)
    found = simulate(planned, on)
    need = need_of(
        node,
        trainer_bytes=found.trainer_bytes,
        planner_bytes=found.planner_bytes if cluster.num_planners else 0.0,
        server_bytes=found.server_bytes,
        server_rows=planned.layout.num_rows / num_nodes,
    )
    speed = found.samples_per_second
    of_line = line(node, num_nodes, num_samples=num_samples, samples_per_second=speed, need=need)
    return Billed(line=of_line, found=found, compute_seconds=on.speeds.compute_seconds)


def notes(lines: Sequence[Line]) -> list[str]:
    """What is to be said of each line: knee of its type, best of all, or why it cannot be."""
    from foresee.tools.bill import knee, that_fit

    fitting = that_fit(lines)
    best = {"cheapest": min(fitting, key=lambda it: it.cost), "fastest": min(fitting, key=lambda it: it.hours)}
    said = []
    for it in lines:
        words = [word for word, of in best.items() if of is it]
        of_type = [other for other in fitting if other.node == it.node]
        if it in fitting and knee(of_type) is it:
            words.insert(0, "knee of all" if knee(fitting) is it else "knee")
        said.append(it.refusal or ", ".join(words))
    return said


COLUMNS = (
    Column("node", "node"),
    Column("nodes", "nodes", ",d"),
    Column("price", "price", "g"),
    Column("samples_per_second", "samples/s", ",.0f"),
    Column("bottleneck", "limited by"),
    Column("memory_gb", "memory GB", ",.1f"),
    Column("hours", "hours", ",.2f"),
    Column("cost", "cost", ",.2f"),
    Column("note", ""),
)


def billed_records(
    plans: Sequence[Planned], types: Sequence[NodeType], network: Network, times: RowTimes, num_samples: float
) -> list[dict[str, Value]]:
    """Return one record for each number of nodes of each type: what it costs, and what `simulate` says of it.

    A line that does not fit has neither hours nor cost.
    """
    from foresee.tools.cli.simulate import record_of

    one_core = replace(network, server_cores=1.0)
    bills = [
        billed(planned, node, one_core.cluster(planned.sample.num_workers, None, times), num_samples)
        for node in types
        for planned in plans
    ]
    records = []
    for it, note in zip(bills, notes([it.line for it in bills]), strict=True):
        line, fits = it.line, it.line.refusal is None
        records.append(
            {
                "node": line.node.name,
                "nodes": line.num_nodes,
                "price": line.node.price,
                "hours": line.hours if fits else None,
                "cost": line.cost if fits else None,
                "memory_gb": line.need.memory_bytes / 1e9,
                "disk_gb": line.need.disk_bytes / 1e9,
                "note": note,
                **record_of(it.found, it.compute_seconds),
            }
        )
    return records
