"""`foresee plan`: what a run would move, without running it; the same beside other policies; a plan to keep.

Four commands under one name: `foresee plan RUN.yaml` plans, `foresee plan show FILE` shows a saved plan, `foresee plan
check` proves one, and `foresee plan features RUN.yaml` says which features are worth the time that placement takes to
look at them.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from foresee.errors import PlanError
from foresee.io.folders import write_whole
from foresee.io.optional import drawable
from foresee.io.urls import Place, brought, place, sent, shown
from foresee.run.config_file import load_run
from foresee.tools.cli.options import RunFile, Set, bar
from foresee.tools.cli.plan_comparison import Comparison, as_json, as_text
from foresee.tools.cli.terminal import show as show_all
from foresee.tools.cli.terminal import terminal

if TYPE_CHECKING:
    from foresee.data.batch import BatchStream
    from foresee.plan.check_step import Verdict
    from foresee.plan.record import Header

STEPS_COMPARED = 200


class _PlanUnlessShow(TyperGroup):
    """Whatever does not begin with another command's name is a run to be planned."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        named = args[:1] in (["show"], ["run"], ["check"], ["features"])
        return list(super().parse_args(ctx, args if named else ["run", *args]))


app = typer.Typer(cls=_PlanUnlessShow, help="What a run would move, without running it; `plan show` for a saved plan.")


@app.command("run")
def run(
    run_file: RunFile,
    overrides: Set = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Keep the plan of the whole run, here or at a URL; a folder for several workers."
        ),
    ] = None,
    steps: Annotated[
        str, typer.Option(metavar="NUM|all", help="Compare the policies on so many steps from the start.")
    ] = str(STEPS_COMPARED),
    curve: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw fetches over cache size for every policy: .html or .csv."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """What a run would move, without running it.

    Plans the run's own log and cache and prints the share of rows found in the cache, rows and bytes moved a step and
    the memory needed, beside the same for every other policy that can train it, no cache and Belady's bound among them.
    All of them would train to the same bytes.

    [bold]Examples[/]

      foresee plan run.yaml
      foresee plan run.yaml --set cache.rows=200000 --steps all --curve curve.html
      foresee plan run.yaml --out plan.arrow
      foresee plan show plan.arrow
    """
    from foresee.run.build import open_log, plan_header, table_layout, train_stream
    from foresee.tools.forecast import first_steps

    config, num_steps, console = load_run(run_file, overrides or ()), _number_of(steps), terminal(stderr=json)
    if curve is not None and curve.suffix not in (".html", ".csv"):
        raise typer.BadParameter(f"--curve {curve}: its name must end in .html or .csv")
    drawable(curve)
    log = open_log(config)
    stream, layout = train_stream(config, log), table_layout(config, log)
    header = plan_header(config, log, stream)
    if out is not None:
        _keep(place(out), stream, header, console)
    comparison = Comparison.of(
        stream, header, layout, num_steps=num_steps, shuffle_samples=config.train.shuffle_samples, console=console
    )
    if json:
        print(as_json(comparison))
    else:
        show_all(console, *as_text(comparison, str(config.log)))
    if curve is not None:
        _draw(curve, str(config.log), first_steps(stream, num_steps), header, console)


@app.command("show")
def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A plan saved by `foresee plan RUN.yaml --out FILE`.")],
    first: Annotated[int | None, typer.Option("--from", metavar="STEP", help="First step to show.")] = None,
    steps: Annotated[int, typer.Option(min=0, metavar="NUM", help="How many steps to show.")] = 5,
) -> None:
    """A saved plan: its header, what it moves in all, and a few of its steps."""
    from foresee.plan.format.folder import MANIFEST, open_plan

    plan = open_plan(brought(place(file), "plans", marker=MANIFEST))
    header, counters, console = plan.header, plan.counters, terminal()
    begin, end = header.first_step if first is None else first, header.first_step + header.num_steps
    if not header.first_step <= begin <= end:
        raise PlanError(f"{file}: there is no step {begin}; the plan has steps {header.first_step} to {end - 1}")
    table = Table("plan", str(file))
    for name, value in {**header.to_dict(), **asdict(counters), "hit_rate": f"{counters.hit_rate:.2%}"}.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    show_all(console, table)
    sample = Table("step", "worker", "samples", "lookups", "distinct", "fetched", "not before", "written back", "slots")
    for record, _ in zip(plan.records(begin), range(steps * header.num_workers), strict=False):
        sizes = (len(record.samples), len(record.inverse), len(record.unique), len(record.fetch))
        moves = (record.not_before, len(record.evict), _few(record.unique))
        sample.add_row(*map(str, (record.step, record.worker, *sizes, *moves)))
    show_all(console, sample)


@app.command("check")
def check(
    file: Annotated[
        Path, typer.Argument(metavar="RUN.YAML|FILE", help="A run, whose plan is proved, or a saved plan with --run.")
    ],
    overrides: Set = None,
    run_file: Annotated[
        Path | None, typer.Option("--run", metavar="RUN.YAML", help="The run that a saved plan was made for.")
    ] = None,
) -> None:
    """Proves a plan by its rules alone, or says where it is wrong (exit code 2).

    Plays every step of every worker through, without rows and without training, and holds each read, fetch, transfer,
    update and write-back against what synchronous training needs. Knows nothing of the planner that made the plan. The
    plan is the run's own, as `cache.plan_file` keeps it or as it would be planned, or the one in FILE.

    [bold]Examples[/]

      foresee plan check run.yaml
      foresee plan check run.yaml --set distributed.workers=4
      foresee plan check plan.arrow --run run.yaml
    """
    from foresee.engine.planned_step import planned_records
    from foresee.run.build import open_log, plan_header, saved_plan, train_stream
    from foresee.tools.forecast import proved

    if run_file is None and file.suffix not in (".yaml", ".yml"):
        raise PlanError(
            f"{file}: a plan is proved against the batches it is for; give their run: foresee plan check {file} "
            "--run RUN.yaml"
        )
    config, console = load_run(run_file or file, overrides or ()), Console()
    if run_file is not None:
        config = config.model_copy(update={"cache": config.cache.model_copy(update={"plan_file": file})})
    log = open_log(config)
    stream = train_stream(config, log)
    saved = saved_plan(config, stream)
    header = plan_header(config, log, stream) if saved is None else saved.header
    records = planned_records(stream, header) if saved is None else saved.records()
    with bar(console, "proving", header.num_steps) as advance:
        verdict = proved(stream, header, records, None if saved is None else saved.counters, advance)
    if not verdict.right:
        shown = "; ".join(verdict.violations[:3])
        raise PlanError(
            f"{file}: the plan is wrong, it breaks {verdict.num_violations:,} rules, first: {shown}; do not train with "
            "it: plan again"
        )
    console.print(_what_was_proved(str(file), header, verdict), highlight=False, markup=False, soft_wrap=True)


@app.command("features")
def features(
    run_file: RunFile,
    overrides: Set = None,
    budget_ms: Annotated[
        float | None, typer.Option(min=0.0, metavar="MS", help="Milliseconds a step that placement may take.")
    ] = None,
    steps: Annotated[int, typer.Option(min=2, metavar="NUM", help="Look at so many steps from the start.")] = 20,
) -> None:
    """Which features placement should look at when it may not take the time for all.

    For each feature: the transfers a step that routing samples by it can save, and how long placement takes with this
    feature and all above it. With --budget-ms, ends with the line for run.yaml that keeps to it.

    [bold]Example[/]

      foresee plan features run.yaml --set distributed.workers=8 --budget-ms 2
    """
    from foresee.run.build import open_log, plan_header, train_stream
    from foresee.tools.forecast import measure

    config, console = load_run(run_file, overrides or ()), terminal()
    log = open_log(config)
    stream = train_stream(config, log)
    names = [feature.name for feature in log.features]
    if config.distributed.workers < 2 or log.multi_valued:
        raise PlanError(
            f"{config.log}: features are chosen for two workers or more and a log with one id a feature; give --set "
            "distributed.workers=NUM"
        )
    with bar(console, "placing", steps) as advance:
        found = measure(stream, plan_header(config, log, stream), num_steps=steps, advance=advance)
    table = Table("feature", "can save", "placement up to here")
    for choice in found:
        table.add_row(names[choice.position], f"{choice.saved:,.0f} a step", f"{1e3 * choice.seconds:.2f} ms a step")
    show_all(console, table)
    if budget_ms is not None:
        chosen = [names[choice.position] for choice in found if 1e3 * choice.seconds <= budget_ms and choice.saved > 0]
        if not chosen:
            raise PlanError(f"{budget_ms} ms a step pay for no feature; give more, or choose placement contiguous")
        line = f"distributed.placement_features: [{', '.join(chosen)}]"
        show_all(console, line)


def _what_was_proved(name: str, header: Header, verdict: Verdict) -> str:
    counters, workers = verdict.counters, header.num_workers
    among = f", {counters.num_received:,} sent between workers, none before it is final" if workers > 1 else ""
    return (
        f"{name}: proved, {counters.num_steps:,} steps of {workers} worker{'s' * (workers > 1)}, planned by "
        f"{header.planner} for caches of {header.capacity_rows:,} rows:\n"
        f"  every sample is trained once; {counters.num_lookups:,} lookups find their own rows\n"
        f"  {counters.num_unique:,} reads see every earlier update, {verdict.stale_reads} are stale\n"
        f"  {counters.num_fetched:,} rows are fetched, none before its last write-back{among}\n"
        f"  every row that a step touches, and no other, is updated once, with every gradient\n"
        f"  {counters.num_evicted:,} write-backs leave no update behind; at most {counters.peak_slots:,} slots are used"
    )


def _number_of(steps: str) -> int | None:
    if steps == "all":
        return None
    if steps.isdecimal() and int(steps) > 0:
        return int(steps)
    raise typer.BadParameter(f"--steps {steps}: give a whole number from 1 up, or all")


def _few(numbers: Any) -> str:
    return " ".join(str(number) for number in numbers[:4]) + (" …" if len(numbers) > 4 else "")


def _keep(out: Place, stream: BatchStream, header: Header, console: Console) -> None:
    from foresee.engine.planned_step import planned_records
    from foresee.plan.format.folder import MANIFEST, open_plan, save_plan

    with sent(out, marker=MANIFEST, replace=True) as path:
        with bar(console, f"{header.planner}, to keep", header.num_steps) as advance:
            counters = save_plan(path, header, planned_records(stream, header, advance), from_planner=True)
        num_bytes = open_plan(path).num_bytes
    console.print(
        f"saved the plan of all {header.num_steps:,} steps in {shown(out)} ({num_bytes / 1e6:,.1f} MB), hit "
        f"rate {counters.hit_rate:.2%}; train with it: foresee train RUN.yaml --plan {out}",
        highlight=False,
        soft_wrap=True,
    )


def _draw(path: Path, log: str, stream: BatchStream, header: Header, console: Console) -> None:
    from foresee.plan import find
    from foresee.tools import forecast
    from foresee.tools.report.comparison import Style, as_page, curve_csv

    with bar(console, "counting rows", stream.num_steps) as advance:
        demand = forecast.demand_of(stream.batches(), advance)
    capacities = forecast.curve_capacities(demand, header.capacity_rows)
    with bar(console, "curve", stream.num_steps * len(capacities) * len(forecast.compared(header))) as advance:
        fetched = forecast.curve(stream, header, capacities, advance)
    note = (
        f"Rows fetched a step over {stream.num_steps:,} steps, which touch {len(demand.rows):,} different rows. Caches "
        "from the smallest that holds the largest batch to one that holds everything."
    )
    if path.suffix == ".csv":
        text = curve_csv(capacities, fetched)
    else:
        own, num_steps = header.capacity_rows, stream.num_steps
        title = f"Fetches over cache size: {log}"
        styles = {name: Style(policy.colour, policy.is_bound) for name, policy in ((it, find(it)) for it in fetched)}
        text = as_page(title, note, capacities, fetched, styles=styles, capacity_rows=own, num_steps=num_steps)
    write_whole(path, text, "the curve")
    console.print(f"drew {path}", highlight=False, soft_wrap=True)
