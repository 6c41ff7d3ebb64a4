"""`foresee simulate`: step, bottleneck and memory of clusters that are not there, for a person's own log.

The tables of `foresee simulate`: a line for each number of trainers.

In: what was simulated. Out: flat records, which the CSV and the page are made of too, and these as tables for a
terminal. Every time of a step is called predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from foresee.errors import ConfigError, DataError
from foresee.io.units import counted
from foresee.tools.cli import bill, scenario
from foresee.tools.cli.options import bar, grouped
from foresee.tools.cli.scenario import Output, RowForm
from foresee.tools.cli.terminal import show, terminal
from foresee.tools.report.frame import Column, Frame, Value, as_csv

if TYPE_CHECKING:
    from foresee.data.batch import BatchStream
    from foresee.data.click_log import ClickLog
    from foresee.store.layout import Layout
    from foresee.tools.comparison import CacheSize
    from foresee.tools.report.frame import Record
    from foresee.tools.simulation import ClusterSpec, Planned, RowTimes, Simulated

STEPS = 12
TRAINERS = "2,4,8,16,32,64"
GIGABIT = 1e9 / 8
EXPLANATION = (
    "predicted ms: compute, then what is not hidden behind it; of compute: share of a step that its own compute takes; "
    "fetched, critical KB and plan KB: of a trainer in a step, busiest: of the one with most; planning ms and cores: "
    "processor time of planning a step here, and cores like this one's that keep up with the predicted step"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """What is planned, for how many trainers."""

    synthetic: Annotated[
        float | None, typer.Option(metavar="ROWS", help="A synthetic log with about so many rows, such as 2e10.")
    ] = None
    trainers: Annotated[
        str | None, typer.Option(metavar="N,N", help="Numbers of trainers. Default: 2,4,8,16,32,64; of nodes, 1 too.")
    ] = None
    servers: Annotated[int | None, typer.Option(min=1, help="Default: one for four trainers, at least one.")] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a step of each trainer.")] = 512
    cache: Annotated[
        str, typer.Option(metavar="SIZE", help="Slots of each trainer: 50000 rows, or 2x what two steps need.")
    ] = "1x"
    steps: Annotated[int, typer.Option(min=4, metavar="NUM", help="Plan so many steps from the start.")] = STEPS
    policy: Annotated[str, typer.Option(help="lookahead, owner, none, or another of `foresee compare`.")] = "lookahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The speeds of the cluster."""

    compute_ms: Annotated[float, typer.Option(help="Forward and backward of one trainer, its rows at hand.")] = 8.0
    after_rows: Annotated[
        float, typer.Option(min=0, max=1, help="Share of that after the gradients of rows, which travel meanwhile.")
    ] = 0.1
    link_gbit: Annotated[float, typer.Option(help="Of every trainer, each way.")] = 25.0
    server_link_gbit: Annotated[float | None, typer.Option(help="Of every server. Default: as a trainer's.")] = None
    latency_us: Annotated[float, typer.Option(min=0, help="One way between two machines.")] = 20.0
    message_us: Annotated[float, typer.Option(min=0, help="Sending a message to one more trainer.")] = 5.0
    wire_row_us: Annotated[float, typer.Option(min=0, help="Packing a row for the wire, on one core.")] = 0.2
    server_cores: Annotated[float, typer.Option(help="Of every server.")] = 16.0
    dense_mb: Annotated[float, typer.Option(min=0, help="Dense gradients, summed over trainers in every step.")] = 2.0
    dense_hidden: Annotated[float, typer.Option(min=0, max=1, help="Share of that behind backward.")] = 0.5
    planners: Annotated[
        int, typer.Option(min=0, help="Cores that planning is spread over; 0: the plan was made before.")
    ] = 1

    @property
    def server_gbit(self) -> float:
        return self.link_gbit if self.server_link_gbit is None else self.server_link_gbit

    def check(self) -> None:
        for option in ("compute_ms", "link_gbit", "server_link_gbit", "server_cores"):
            if (value := getattr(self, option)) is not None:
                scenario.positive(value, f"--{option.replace('_', '-')}")

    def cluster(self, num_trainers: int, servers: int | None, times: RowTimes) -> ClusterSpec:
        """For so many trainers; rows cost what they cost a core of this machine."""
        from foresee.tools.cost import Speeds
        from foresee.tools.simulation import ClusterSpec

        wire = self.wire_row_us * scenario.MICROSECOND
        speeds = Speeds(
            compute_seconds=self.compute_ms * scenario.MILLISECOND,
            compute_after_rows_share=self.after_rows,
            trainer_bytes_per_second=self.link_gbit * GIGABIT,
            server_bytes_per_second=self.server_gbit * GIGABIT,
            latency_seconds=self.latency_us * scenario.MICROSECOND,
            num_servers=servers or max(1, num_trainers // 4),
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
            f"of rows, links of {self.link_gbit:g} Gbit/s (servers {self.server_gbit:g}) and "
            f"{self.latency_us:g} µs, {self.server_cores:g} cores a server, "
            f"{self.dense_mb:g} MB of dense gradients, {self.dense_hidden:.0%} of their sum hidden, {planned}. Timed "
            f"here: {1e6 * times.read:.2f} / {1e6 * times.write:.2f} µs to read / write a row, {1e6 * times.cache:.2f} "
            "to copy it."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """What the run costs."""

    nodes: Annotated[
        Path | None,
        typer.Option(metavar="YAML", help="Node types with prices: what the run costs on how many of them."),
    ] = None
    samples: Annotated[
        float | None, typer.Option(help="Samples of the whole run, for its cost. Default: the log's train split, once.")
    ] = None


@grouped
def simulate(
    log: Annotated[
        str | None, typer.Argument(metavar="[LOG]", help="A prepared log; or none, with --synthetic.")
    ] = None,
    *,
    planning: Planning,
    rows: RowForm,
    network: Network,
    priced: Priced,
    output: Output,
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

    if priced.nodes is not None and planning.servers is not None:
        raise ConfigError("--servers: with --nodes there is one on every node; leave it out")
    network.check()
    console, size = terminal(), _one_size(planning.cache)
    many = scenario.numbers(planning.trainers or (TRAINERS if priced.nodes is None else bill.COUNTS), "--trainers")
    source = _Source.of(log, planning)
    layout = source.layout(rows)
    times = time_rows(layout)
    terabytes = layout.num_rows * layout.row_bytes / 1e12
    about = (
        f"{source.name}: {layout.num_rows:,} rows of {layout.row_bytes} bytes, {terabytes:.3g} TB; {planning.steps} "
        f"steps of {planning.batch_size:,} samples a trainer planned by {planning.policy}, from empty caches"
    )
    types, of_run = [], 0.0
    if priced.nodes is not None:
        of_run, types = source.num_samples(priced.samples), read_node_types(priced.nodes)
    plans = [_planned(source, count, planning.policy, size, layout, console) for count in many]
    if not types:
        records = []
        for planned in plans:
            cluster = network.cluster(planned.sample.num_workers, planning.servers, times)
            records.append(record_of(predicted(planned, cluster), cluster.speeds.compute_seconds))
        setting = network.in_words(times)
        show(console, about, Frame(STEP_COLUMNS, records).table(), Frame(NEED_COLUMNS, records).table())
        show(console, EXPLANATION, setting)
    else:
        records = bill.billed_records(plans, types, network, times, of_run)
        about += f"; {of_run:,.0f} samples on nodes with a price"
        setting = bill.in_words(network)
        show(console, about, Frame(bill.COLUMNS, records).table(), bill.EXPLANATION, setting)
    _write(records, output, about, setting, console)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Where steps come from: a log, or a synthetic one of any size."""

    log: ClickLog | None
    synthetic: float | None
    batch_size: int
    num_steps: int

    @classmethod
    def of(cls, log: str | None, planning: Planning) -> _Source:
        from foresee.data.click_log import ClickLog

        synthetic = planning.synthetic
        if (log is None) == (synthetic is None):
            raise ConfigError("give a prepared log or --synthetic ROWS, one of the two")
        opened = None if log is None else ClickLog.open(log)
        return cls(log=opened, synthetic=synthetic, batch_size=planning.batch_size, num_steps=planning.steps)

    @property
    def name(self) -> str:
        return f"a synthetic log of {self.synthetic:g} rows" if self.log is None else str(self.log.folder.place)

    def layout(self, rows: RowForm) -> Layout:
        from foresee.tools.simulation import SyntheticStream

        return rows.layout(self.log or SyntheticStream(self.synthetic or 0, batch_size=1, num_steps=1))

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


def _write(records: Sequence[Record], output: Output, about: str, setting: str, console: Console) -> None:
    if output.csv is not None:
        scenario.write_text(output.csv, as_csv(records))
        show(console, f"wrote {output.csv}")
    if output.page is not None:
        from foresee.tools.report.simulation import write_simulation_page

        write_simulation_page(output.page, "A cluster on paper", records, introduction=about, setting=setting)
        show(console, f"drew {output.page}")


def record_of(found: Simulated, compute_seconds: float) -> dict[str, Value]:
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


STEP_COLUMNS = (
    Column("trainers", "trainers", ",d"),
    Column("servers", "servers", ",d"),
    Column("step_ms", "predicted ms", ",.2f"),
    Column("bottleneck", "limited by"),
    Column("compute_ms", "compute", ",.2f"),
    Column("waited_ms", "waiting", ",.2f"),
    Column("exchange_ms", "exchange", ",.2f"),
    Column("dense_ms", "dense", ",.2f"),
    Column("samples_per_second", "samples/s", ",.0f"),
    Column("efficiency", "of compute", ".0%"),
)
NEED_COLUMNS = (
    Column("trainers", "trainers", ",d"),
    Column("cache_rows", "cache rows", ",d"),
    Column("hit_rate", "hit rate", ".1%"),
    Column("fetched_rows", "fetched", ",.0f"),
    Column("critical_kb", "critical KB", ",.0f"),
    Column("critical_kb_most", "busiest", ",.0f"),
    Column("plan_kb", "plan KB", ",.0f"),
    Column("trainer_gb", "trainer GB", ",.2f"),
    Column("server_gb", "server GB", ",.1f"),
    Column("planner_gb", "planner GB", ",.2f"),
    Column("planner_ms", "planning ms", ",.1f"),
    Column("planner_cores", "cores", ",.1f"),
)
