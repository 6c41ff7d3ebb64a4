"""`foresee simulate`: step, bottleneck and memory of clusters that are not there, for a person's own log.

The tables of `foresee simulate`: a line for each number of trainers.

In: what was simulated. Out: flat records, which the CSV and the page are made of too, and these as tables for a
terminal. Every time of a step is called predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.table import Table

from foresee.errors import ConfigError, DataError
from foresee.io.optional import drawable
from foresee.io.units import counted
from foresee.tools.cli import bill, scenario
from foresee.tools.cli.options import bar
from foresee.tools.cli.terminal import show, terminal

if TYPE_CHECKING:
    from foresee.data.batch import BatchStream
    from foresee.data.click_log import ClickLog
    from foresee.store.layout import Layout
    from foresee.tools.comparison import CacheSize
    from foresee.tools.simulation import ClusterSpec, Planned, RowTimes

STEPS = 12
TRAINERS = "2,4,8,16,32,64"
GIGABIT = 1e9 / 8
EXPLANATION = (
    "predicted ms: compute, then what is not hidden behind it; of compute: share of a step that its own compute takes; "
    "fetched, critical KB and plan KB: of a trainer in a step, busiest: of the one with most; planning ms and cores: "
    "processor time of planning a step here, and cores like this one's that keep up with the predicted step"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """The cluster as a person says it."""

    servers: int | None
    compute_ms: float
    after_rows: float
    link_gbit: float
    server_link_gbit: float
    latency_us: float
    message_us: float
    wire_row_us: float
    server_cores: float
    dense_mb: float
    dense_hidden: float
    planners: int

    def check(self) -> None:
        for option in ("compute_ms", "link_gbit", "server_link_gbit", "server_cores"):
            scenario.positive(getattr(self, option), f"--{option.replace('_', '-')}")

    def cluster(self, num_trainers: int, times: RowTimes) -> ClusterSpec:
        """For so many trainers; rows cost what they cost a core of this machine."""
        from foresee.tools.cost import Speeds
        from foresee.tools.simulation import ClusterSpec

        wire = self.wire_row_us * scenario.MICROSECOND
        speeds = Speeds(
            compute_seconds=self.compute_ms * scenario.MILLISECOND,
            compute_after_rows_share=self.after_rows,
            trainer_bytes_per_second=self.link_gbit * GIGABIT,
            server_bytes_per_second=self.server_link_gbit * GIGABIT,
            latency_seconds=self.latency_us * scenario.MICROSECOND,
            num_servers=self.servers or max(1, num_trainers // 4),
            server_rows_per_second=self.server_cores / ((times.read + times.write) / 2 + wire),
            read_row_seconds=wire,
            write_row_seconds=wire,
            cache_row_seconds=times.cache,
            exchange_seconds=self.message_us * scenario.MICROSECOND,
            exchange_row_seconds=times.cache,
            dense_bytes=self.dense_mb * 1e6,
            dense_hidden_share=self.dense_hidden,
        )
        return ClusterSpec(speeds=speeds, num_planners=self.planners)

    def in_words(self, times: RowTimes) -> str:
        planned = f"planning on {counted(self.planners, 'core')}" if self.planners else "a plan that was made before"
        return (
            f"Predicted for {self.compute_ms:g} ms of compute a step, {self.after_rows:.0%} of it after the gradients "
            f"of rows, links of {self.link_gbit:g} Gbit/s (servers {self.server_link_gbit:g}) and "
            f"{self.latency_us:g} µs, {self.server_cores:g} cores a server, "
            f"{self.dense_mb:g} MB of dense gradients, {self.dense_hidden:.0%} of their sum hidden, {planned}. Timed "
            f"here: {1e6 * times.read:.2f} / {1e6 * times.write:.2f} µs to read / write a row, {1e6 * times.cache:.2f} "
            "to copy it."
        )


def simulate(
    log: Annotated[
        str | None, typer.Argument(metavar="[LOG]", help="A prepared log; or none, with --synthetic.")
    ] = None,
    synthetic: Annotated[
        float | None, typer.Option(metavar="ROWS", help="A synthetic log with about so many rows, such as 2e10.")
    ] = None,
    trainers: Annotated[
        str | None, typer.Option(metavar="N,N", help="Numbers of trainers. Default: 2,4,8,16,32,64; of nodes, 1 too.")
    ] = None,
    servers: Annotated[int | None, typer.Option(min=1, help="Default: one for four trainers, at least one.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a step of each trainer.")] = 512,
    cache: Annotated[
        str, typer.Option(metavar="SIZE", help="Slots of each trainer: 50000 rows, or 2x what two steps need.")
    ] = "1x",
    steps: Annotated[int, typer.Option(min=4, metavar="NUM", help="Plan so many steps from the start.")] = STEPS,
    policy: Annotated[str, typer.Option(help="lookahead, owner, none, or another of `foresee compare`.")] = "lookahead",
    dim: Annotated[int, typer.Option(min=1, help="Columns of a row.")] = 64,
    dtype: Annotated[str, typer.Option(help="Of the values: float32, bfloat16 or float16.")] = "float32",
    optimizer: Annotated[str, typer.Option(help="Of the rows: its state travels with them.")] = "rowwise_adagrad",
    compute_ms: Annotated[float, typer.Option(help="Forward and backward of one trainer, its rows at hand.")] = 8.0,
    after_rows: Annotated[
        float, typer.Option(min=0, max=1, help="Share of that after the gradients of rows, which travel meanwhile.")
    ] = 0.1,
    link_gbit: Annotated[float, typer.Option(help="Of every trainer, each way.")] = 25.0,
    server_link_gbit: Annotated[float | None, typer.Option(help="Of every server. Default: as a trainer's.")] = None,
    latency_us: Annotated[float, typer.Option(min=0, help="One way between two machines.")] = 20.0,
    message_us: Annotated[float, typer.Option(min=0, help="Sending a message to one more trainer.")] = 5.0,
    wire_row_us: Annotated[float, typer.Option(min=0, help="Packing a row for the wire, on one core.")] = 0.2,
    server_cores: Annotated[float, typer.Option(help="Of every server.")] = 16.0,
    dense_mb: Annotated[float, typer.Option(min=0, help="Dense gradients, summed over trainers in every step.")] = 2.0,
    dense_hidden: Annotated[float, typer.Option(min=0, max=1, help="Share of that behind backward.")] = 0.5,
    planners: Annotated[
        int, typer.Option(min=0, help="Cores that planning is spread over; 0: the plan was made before.")
    ] = 1,
    nodes: Annotated[
        Path | None,
        typer.Option(metavar="YAML", help="Node types with prices: what the run costs on how many of them."),
    ] = None,
    samples: Annotated[
        float | None, typer.Option(help="Samples of the whole run, for its cost. Default: the log's train split, once.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the figures as CSV.")] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=drawable, help="Also draw them: one HTML file.")
    ] = None,
) -> None:
    """What a cluster you do not have would do with your log: predicted step, bottleneck, memory.

    Plans some steps with the real planner for each number of trainers, times it, times what a row costs a core of this
    machine, and predicts the step with a cost model of links, latencies, servers and overlap. Planner times and memory
    are measured or counted; milliseconds of a step are predictions. The planned steps begin with empty caches, so a run
    would fetch less.

    [bold]Examples[/]

      foresee simulate data/criteo --trainers 2,4,8 --batch-size 32 --compute-ms 8
      foresee simulate --synthetic 2e10 --dim 128 --trainers 64 --servers 16 --compute-ms 8 --link-gbit 25
      foresee simulate data/criteo --nodes nodes.yaml --samples 4e9 --page bill.html

    [bold]Node types[/] are a list in YAML; every node has a trainer and a server, the
    first the planner, too. disk_gb, disk_reads_per_second, compute_ms may be left out:

      - {name: small, price: 0.8, cores: 16, memory_gb: 64, link_gbit: 10, disk_gb: 900}
    """
    from foresee.tools.bill import read_node_types
    from foresee.tools.simulation import simulate as predicted
    from foresee.tools.simulation import time_rows

    if nodes is not None and servers is not None:
        raise ConfigError("--servers: with --nodes there is one on every node; leave it out")
    assumed = Assumptions(
        servers=servers, compute_ms=compute_ms, after_rows=after_rows, link_gbit=link_gbit,
        server_link_gbit=link_gbit if server_link_gbit is None else server_link_gbit, latency_us=latency_us,
        message_us=message_us, wire_row_us=wire_row_us, server_cores=server_cores, dense_mb=dense_mb,
        dense_hidden=dense_hidden, planners=planners,
    )  # fmt: skip
    assumed.check()
    console, size = terminal(), _one_size(cache)
    many = scenario.numbers(trainers or (TRAINERS if nodes is None else bill.COUNTS), "--trainers")
    source = _Source.of(log, synthetic, batch_size, steps)
    layout = source.layout(dim, optimizer, dtype)
    times = time_rows(layout)
    terabytes = layout.num_rows * layout.row_bytes / 1e12
    about = (
        f"{source.name}: {layout.num_rows:,} rows of {layout.row_bytes} bytes, {terabytes:.3g} TB; "
        f"{steps} steps of {batch_size:,} samples a trainer planned by {policy}, from empty caches"
    )
    setting = assumed.in_words(times)
    if nodes is None:
        clusters = [assumed.cluster(count, times) for count in many]
        plans = [_planned(source, count, policy, size, layout, console) for count in many]
        records = [
            record_of(predicted(planned, cluster), cluster.speeds.compute_seconds)
            for planned, cluster in zip(plans, clusters, strict=True)
        ]
        show(console, about, *as_tables(records), EXPLANATION, setting)
    else:
        of_run = source.num_samples(samples)
        node_types, one_core = read_node_types(nodes), replace(assumed, server_cores=1.0)
        plans = [_planned(source, count, policy, size, layout, console) for count in many]
        bills = [
            bill.billed(planned, node, one_core.cluster(planned.sample.num_workers, times), of_run)
            for node in node_types
            for planned in plans
        ]
        said = bill.notes([it.line for it in bills])
        records = [
            {**bill.bill_fields(it.line, note), **record_of(it.found, it.compute_seconds)}
            for it, note in zip(bills, said, strict=True)
        ]
        about += f"; {of_run:,.0f} samples on nodes with a price"
        setting = bill.in_words(assumed)
        show(console, about, bill.as_bill(bills, said), bill.EXPLANATION, setting)
    _write(records, csv, page, about, setting, console)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where steps come from: a log, or a synthetic one of any size."""

    log: ClickLog | None
    synthetic: float | None
    batch_size: int
    num_steps: int

    @classmethod
    def of(cls, log: str | None, synthetic: float | None, batch_size: int, num_steps: int) -> _Source:
        from foresee.data.click_log import ClickLog

        if (log is None) == (synthetic is None):
            raise ConfigError("give a prepared log or --synthetic ROWS, one of the two")
        opened = None if log is None else ClickLog.open(log)
        return cls(log=opened, synthetic=synthetic, batch_size=batch_size, num_steps=num_steps)

    @property
    def name(self) -> str:
        return f"a synthetic log of {self.synthetic:g} rows" if self.log is None else str(self.log.folder.place)

    def layout(self, dim: int, optimizer: str, dtype: str) -> Layout:
        from foresee.tools.simulation import SyntheticStream

        if self.log is not None:
            return scenario.row_layout(self.log, dim, optimizer, dtype)
        stream = SyntheticStream(self.synthetic or 0, batch_size=1, num_steps=1)
        return scenario.row_layout(stream, dim, optimizer, dtype)

    def num_samples(self, given: float | None) -> float:
        """Of the whole run."""
        if given is not None:
            return scenario.positive(given, "--samples")
        if self.log is None:
            raise ConfigError("a synthetic log has no end: say with --samples how many the run trains on")
        return self.log.split_sizes.get("train", 0)

    def stream(self, num_trainers: int) -> BatchStream:
        """Global batches for so many trainers."""
        from foresee.tools.simulation import SyntheticStream

        size = num_trainers * self.batch_size
        if self.log is None:
            return SyntheticStream(self.synthetic or 0, batch_size=size, num_steps=self.num_steps)
        has = self.log.split_sizes.get("train", 0)
        if has < 4 * size:
            raise DataError(
                f"{self.log.folder.place}: its train split has {has:,} samples, too few for four steps of "
                f"{num_trainers} trainers with {self.batch_size} samples each; lower --batch-size or --trainers"
            )
        return self.log.batches(batch_size=size)


def _planned(
    source: _Source, num_trainers: int, policy: str, cache: CacheSize, layout: Layout, console: Console
) -> Planned:
    from foresee.tools.comparison import policies_named, take_sample
    from foresee.tools.simulation import plan_sample

    (chosen,) = policies_named([policy], (100,))
    reason = "cannot be run" if chosen.policy.is_bound else chosen.policy.absence(num_trainers)
    if reason is not None:
        raise ConfigError(f"--policy {policy} {reason} ({num_trainers} trainers); choose another, such as lookahead")
    with bar(console, f"{num_trainers} trainers", 2 * source.num_steps) as advance:
        sample = take_sample(source.stream(num_trainers), num_trainers, source.num_steps, advance)
        return plan_sample(sample, chosen, cache, layout, advance)


def _one_size(text: str) -> CacheSize:
    size, *more = scenario.cache_sizes(text)
    if more:
        raise typer.BadParameter(f"--cache {text}: give one size")
    return size


def _write(
    records: list[Record], csv: Path | None, page: Path | None, about: str, setting: str, console: Console
) -> None:
    from foresee.tools.report.simulation import as_csv, write_simulation_page

    if csv is not None:
        scenario.write_text(csv, as_csv(records))
        show(console, f"wrote {csv}")
    if page is not None:
        write_simulation_page(page, "A cluster on paper", records, introduction=about, setting=setting)
        show(console, f"drew {page}")


if TYPE_CHECKING:
    from foresee.tools.simulation import Simulated

Record = dict[str, str | int | float]


def record_of(found: Simulated, compute_seconds: float) -> Record:
    """One flat record."""
    from foresee.tools.cost import BEHIND, COMPUTE, DENSE, EXCHANGE, SERVER_LINK, SERVERS, TRAINER_LINK, WAITED

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
