"""`foresee cluster`: plan, simulate, compare, frontier, analyse.

In: files of jobs and options. Out: tables on the terminal, and files where asked for.
Never: decide anything itself; each command reads, calls one function of this folder and shows what it returned.
Errors are ForeseeErrors and pass through to whoever runs the app.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, RenderableType
from rich.progress import Progress
from rich.text import Text

from foresee.cluster.analysis import analyse as analyse_records
from foresee.cluster.estimators import DEFAULT_ESTIMATOR, assumed_error, estimator_named, with_error
from foresee.cluster.exports import export
from foresee.cluster.formats import READERS, JobFile, read_jobs
from foresee.cluster.job import Cluster, Job
from foresee.cluster.metrics import measure, measure_by
from foresee.cluster.plan import Plan, make_plan
from foresee.cluster.policies import DEFAULT_POLICY, POLICIES, policy_named
from foresee.cluster.questions import Answer, admit, explain, what_if
from foresee.cluster.questions import frontier as frontier_points
from foresee.cluster.simulation import Run
from foresee.cluster.simulation import simulate as simulate_jobs
from foresee.errors import InputError
from foresee.io.optional import drawable
from foresee.io.units import counted
from foresee.tools.cli import cluster_tables
from foresee.tools.cli.terminal import show, terminal

app = typer.Typer(help="Plan a shared GPU cluster: who runs when, who is hurt, what if.", no_args_is_help=True)

File = Annotated[
    Path,
    typer.Argument(
        help="Jobs: CSV, JSON, a Shockwave, Philly, Helios, PAI or Gavel trace, sacct -P, Kueue or Volcano export."
    ),
]
Gpus = Annotated[int | None, typer.Option(help="GPUs of the cluster; a Shockwave trace brings its own.")]
Format = Annotated[str | None, typer.Option(help=f"Format of the file, if it is not recognised: {', '.join(READERS)}.")]
Policy = Annotated[str, typer.Option(help=f"One of {', '.join(POLICIES)}.")]
Estimator = Annotated[str, typer.Option(help="What policies know of run times: oracle, regimes or reactive.")]
RoundSeconds = Annotated[float, typer.Option("--round", help="Seconds of a round.")]
RestartSeconds = Annotated[float, typer.Option("--restart", help="Seconds lost when a job starts or comes back.")]
Servers = Annotated[
    int | None, typer.Option("--server-gpus", help="GPUs per server; without it place does not matter.")
]
Penalty = Annotated[float, typer.Option("--penalty", help="Share of speed lost by a gang on more servers than needed.")]
Rows = Annotated[int, typer.Option("--rows", help="Rows of long tables; 0 shows all.")]
PageFile = Annotated[
    Path | None,
    typer.Option("--page", callback=drawable, help="Write one HTML page with Gantt chart and distributions."),
]
JobsMax = Annotated[int | None, typer.Option("--jobs", min=1, help="Only the first so many jobs to arrive.")]


def _show(*parts: RenderableType) -> None:
    show(terminal(), *parts)


def _bars() -> Progress:
    """In a terminal: a file would get an empty line for each bar."""
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def _progress(text: str, num_jobs: int) -> Iterator[Callable[[float, int], None]]:
    """A bar of finished jobs on the error stream, gone when done."""
    with _bars() as progress:
        task = progress.add_task(text, total=num_jobs)
        yield lambda now, finished: progress.update(task, completed=finished)


def _load(
    file: Path,
    format: str | None,
    gpus: int | None,
    round_seconds: float,
    restart_seconds: float,
    server_gpus: int | None,
    penalty: float,
    jobs_max: int | None = None,
) -> tuple[JobFile, Cluster]:
    read = read_jobs(file, format)
    for note in read.notes:
        _show(Text(note, "yellow"))
    if jobs_max is not None:
        read = replace(read, records=read.records[:jobs_max])
    if gpus is None:
        if read.cluster is None:
            raise InputError(f"{file} does not say how many GPUs there are: give --gpus")
        gpus = read.cluster.gpus
    cluster = Cluster(
        gpus=gpus,
        round_seconds=round_seconds,
        restart_seconds=restart_seconds,
        gpus_per_server=server_gpus,
        locality_penalty=penalty,
    )
    return read, cluster


@app.command()
def plan(
    file: File,
    gpus: Gpus = None,
    policy: Policy = DEFAULT_POLICY,
    estimator: Estimator = DEFAULT_ESTIMATOR,
    format: Format = None,
    round_seconds: RoundSeconds = 120.0,
    restart_seconds: RestartSeconds = 20.0,
    server_gpus: Servers = None,
    penalty: Penalty = 0.0,
    jobs_max: JobsMax = None,
    explain_job: Annotated[
        list[str] | None, typer.Option("--explain", help="Say in words what happens to this job.")
    ] = None,
    what_if_changes: Annotated[
        list[str] | None,
        typer.Option("--what-if", help="Such as gpus=40 or policy=srtf; several are applied together."),
    ] = None,
    admit_file: Annotated[Path | None, typer.Option("--admit", help="Jobs to add: who would be hurt?")] = None,
    export_format: Annotated[
        str | None, typer.Option("--export", help="Order for slurm, kueue, volcano or ray.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="File for --export; without it the order is printed.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the plan as JSON.")] = None,
    intervals: Annotated[
        bool, typer.Option(help="Between what each job starts and ends four times in five, from nine futures.")
    ] = True,
    error: Annotated[
        float | None,
        typer.Option(min=0.0, help="Log-normal spread of the run times given; without it 0.05, with oracle 0."),
    ] = None,
    page_file: PageFile = None,
    rows: Rows = 20,
) -> None:
    """When each job starts and ends, how fair that is, and how far from the best possible."""
    read, cluster = _load(file, format, gpus, round_seconds, restart_seconds, server_gpus, penalty, jobs_max)
    with _progress("planning", len(read.jobs)) as on_round:
        made = make_plan(
            read.jobs,
            cluster,
            policy=policy,
            estimator=estimator,
            start_seconds=read.now_seconds,
            intervals=intervals and export_format is None,
            error=error,
            history=_arrived(read),
            on_round=on_round,
        )
    if export_format is not None:
        return _write_order(export(made, export_format), out)
    _show(cluster_tables.plan_table(made, rows))
    _show(_summary(made))
    for id in explain_job or []:
        _show(Text(explain(made, id), "bold"))
    if what_if_changes:
        _show_answer(f"What if {', '.join(what_if_changes)}", what_if(made, what_if_changes), rows)
    if admit_file is not None:
        _show_admission(admit(made, read_jobs(admit_file).jobs), rows)
    if json_file is not None:
        json_file.write_text(json.dumps(_plan_content(made), indent=1) + "\n")
    if page_file is not None:
        _write_page(page_file, f"Plan of {file.name} on {counted(cluster.gpus, 'GPU')}", {policy: made.run}, made)


def _arrived(read: JobFile) -> list[Job]:
    """What arrived before the plan begins: the like of it is to be expected."""
    return [record.job for record in read.records if record.job.arrival_seconds < read.now_seconds]


def _summary(made: Plan) -> str:
    metrics = made.metrics
    return (
        f"{counted(len(made.rounds), 'round')}; ends at {metrics.makespan_seconds:,.0f} s, and no plan can end before "
        f"{metrics.bound_seconds:,.0f} s (gap {metrics.gap:.1%}). Mean JCT {metrics.jct_mean_seconds:,.0f} s, worst ρ "
        f"{metrics.worst_rho:.2f}, unfair {metrics.unfair_share:.1%}, GPUs used {metrics.utilisation:.1%}."
    )


def _show_answer(title: str, answer: Answer, rows: int) -> None:
    _show(cluster_tables.metrics_table(title, {"as planned": answer.before.metrics, "what if": answer.after.metrics}))
    helped, hurt = counted(len(answer.helped()), "job"), counted(len(answer.hurt()), "job")
    _show(f"Ending more than a round sooner: {helped}; later: {hurt}.")
    if answer.shifts():
        _show(cluster_tables.shift_table("Who is hurt and who is helped", answer, rows))


def _show_admission(answer: Answer, rows: int) -> None:
    for id in answer.after.fates.keys() - answer.before.fates.keys():
        _show(Text(explain(answer.after, id), "bold"))
    _show_answer("If it is admitted", answer, rows)


def _write_order(text: str, out: Path | None) -> None:
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text)
        _show(f"order written to {out}")


def _plan_content(made: Plan) -> dict[str, object]:
    jobs = [
        {
            "id": fate.job.id,
            "gpus": fate.job.gpus,
            "start_seconds": fate.start_seconds,
            "finish_seconds": fate.finish_seconds,
            "rho": fate.rho,
            "rho_themis": fate.rho_themis,
            "num_starts": fate.num_starts,
            "interval": None if fate.interval is None else asdict(fate.interval),
        }
        for fate in made.in_order()
    ]
    return {
        "policy": made.policy,
        "cluster": asdict(made.cluster),
        "metrics": {**asdict(made.metrics), "gap": made.metrics.gap},
        "jobs": jobs,
        "rounds": made.rounds,
    }


def _write_page(path: Path, title: str, runs: dict[str, Run], made: Plan | None = None) -> None:
    from foresee.tools.report.cluster import sections_of  # plotly takes half a second to import
    from foresee.tools.report.page import write_page

    write_page(path, title, sections_of(runs, made))
    _show(f"page written to {path}")


@app.command()
def simulate(
    file: File,
    gpus: Gpus = None,
    policy: Policy = DEFAULT_POLICY,
    estimator: Estimator = DEFAULT_ESTIMATOR,
    format: Format = None,
    round_seconds: RoundSeconds = 120.0,
    restart_seconds: RestartSeconds = 20.0,
    server_gpus: Servers = None,
    penalty: Penalty = 0.0,
    jobs_max: JobsMax = None,
    error: Annotated[
        float, typer.Option(min=0.0, help="Log-normal spread of a lasting error in every estimate.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of those errors.")] = 0,
    page_file: PageFile = None,
) -> None:
    """Run a policy on a trace with estimates that can be wrong, and measure it, per user and per class."""
    read, cluster = _load(file, format, gpus, round_seconds, restart_seconds, server_gpus, penalty, jobs_max)
    run = _simulated(read, cluster, policy, estimator, error, seed)
    _show(cluster_tables.metrics_table(f"{file.name} on {counted(cluster.gpus, 'GPU')}", {policy: measure(run)}))
    if any(job.user for job in read.jobs):
        _show(cluster_tables.group_table("Per user", measure_by(run, lambda job: job.user)))
    if any(job.kind for job in read.jobs):
        _show(cluster_tables.group_table("Per class", measure_by(run, lambda job: job.kind)))
    if page_file is not None:
        _write_page(page_file, f"{file.name} on {counted(cluster.gpus, 'GPU')}", {policy: run})


def _simulated(read: JobFile, cluster: Cluster, policy: str, estimator: str, error: float = 0.0, seed: int = 0) -> Run:
    estimate = estimator_named(estimator)
    estimate = with_error(estimate, sigma=error, seed=seed) if error else estimate
    order = policy_named(policy)(cluster)
    with _progress(policy, len(read.jobs)) as on_round:
        return simulate_jobs(
            read.jobs,
            cluster,
            order,
            estimator=estimate,
            start_seconds=read.now_seconds,
            assumed_error=assumed_error(estimator),
            on_round=on_round,
        )


@app.command()
def compare(
    file: File,
    gpus: Gpus = None,
    policies: Annotated[str, typer.Option(help="Names with commas between, or all (without shockwave_highs).")] = "all",
    estimator: Estimator = DEFAULT_ESTIMATOR,
    format: Format = None,
    round_seconds: RoundSeconds = 120.0,
    restart_seconds: RestartSeconds = 20.0,
    server_gpus: Servers = None,
    penalty: Penalty = 0.0,
    jobs_max: JobsMax = None,
    page_file: PageFile = None,
) -> None:
    """The policies side by side on the same jobs."""
    read, cluster = _load(file, format, gpus, round_seconds, restart_seconds, server_gpus, penalty, jobs_max)
    quick = [name for name in POLICIES if name != "shockwave_highs"]
    names = quick if policies == "all" else [name.strip() for name in policies.split(",")]
    runs = {name: _simulated(read, cluster, name, estimator) for name in names}
    title = f"{file.name}, {counted(len(read.jobs), 'job')} on {counted(cluster.gpus, 'GPU')}, estimates {estimator}"
    _show(cluster_tables.metrics_table(title, {name: measure(run) for name, run in runs.items()}))
    if page_file is not None:
        _write_page(page_file, title, runs)


@app.command()
def frontier(
    file: File,
    gpus: Gpus = None,
    policies: Annotated[
        str, typer.Option(help="Policies to show beside the guarded ones, commas between.")
    ] = "shockwave",
    estimator: Estimator = DEFAULT_ESTIMATOR,
    format: Format = None,
    round_seconds: RoundSeconds = 120.0,
    restart_seconds: RestartSeconds = 20.0,
    server_gpus: Servers = None,
    penalty: Penalty = 0.0,
    jobs_max: JobsMax = None,
) -> None:
    """What more fairness of the guarded policy buys for the worst treated and costs in completion time."""
    read, cluster = _load(file, format, gpus, round_seconds, restart_seconds, server_gpus, penalty, jobs_max)
    names = [name.strip() for name in policies.split(",") if name.strip()]
    with _bars() as progress:
        task = progress.add_task("frontier", total=None)
        points = frontier_points(
            read.jobs,
            cluster,
            policies=names,
            estimator=estimator,
            start_seconds=read.now_seconds,
            on_point=lambda name: progress.update(task, description=name),
        )
    _show(cluster_tables.frontier_table(points))


@app.command()
def analyse(
    file: File,
    gpus: Gpus = None,
    policy: Policy = "fifo",
    format: Format = None,
    jobs_max: JobsMax = None,
    server_gpus: Servers = None,
) -> None:
    """Who asks for what, who waits, how GPUs are used; with --gpus also the queueing a policy would cause."""
    read = read_jobs(file, format)
    records = read.records if jobs_max is None else read.records[:jobs_max]
    study = analyse_records(records)
    _show(
        f"{counted(study.num_jobs, 'job')} over {study.span_seconds / 86400:.1f} days, "
        f"{study.gpu_seconds / 3600:,.0f} GPU hours; {study.mean_demand_gpus:,.0f} GPUs would be busy all the time."
    )
    for table in cluster_tables.analysis_tables(study):
        _show(table)
    if gpus is not None:
        run = _simulated(
            replace(read, records=records), Cluster(gpus=gpus, gpus_per_server=server_gpus), policy, "oracle"
        )
        by_gang = measure_by(run, lambda job: counted(job.gpus, "GPU"))
        _show(cluster_tables.group_table(f"Queueing by size of gang on {gpus} GPUs, simulated with {policy}", by_gang))
