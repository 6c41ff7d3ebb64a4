"""`foresee explain`: why a row was fetched, kept, moved, written back; what a step did and waited for. In words."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from foresee.errors import ConfigError
from foresee.run.config import RunConfig
from foresee.run.config_file import load_run
from foresee.tools.cli.options import Set, bar
from foresee.tools.cli.terminal import show, terminal

if TYPE_CHECKING:
    from foresee.tools.explain.measured import MeasuredStep

STRIP_WIDTH_MAX = 96


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, or a run file.")],
    row: Annotated[
        str | None,
        typer.Option(metavar="TABLE:ID", help="A row: id as prepared, TABLE:=VALUE for a raw value, or a row number."),
    ] = None,
    step: Annotated[int | None, typer.Option(metavar="NUM", help="A step, counted from 0 over all epochs.")] = None,
    overrides: Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of sentences.")] = False,
) -> None:
    """Why a row was fetched, kept, moved and written back, or what a step did and waited for.

    The plan is made again from the run's log and cache, or read from the saved file: the same records every time.
    Nothing is trained, and a run file that was never trained can be asked too.

    [bold]Examples[/]

      foresee explain run --row C3:17
      foresee explain run.yaml --row user_id:=196
      foresee explain run --step 120
      foresee explain run.yaml --step 120 --set cache.rows=200000 --json
    """
    if (row is None) == (step is None):
        raise typer.BadParameter("ask about one thing: give either --row TABLE:ID or --step NUM")
    config, console = _config_of(run, overrides or ()), terminal(stderr=json)
    if row is not None:
        _explain_row(run, config, row, console, as_json=json)
    else:
        assert step is not None
        _explain_step(run, config, step, console, as_json=json)


def _config_of(run: Path, overrides: Sequence[str]) -> RunConfig:
    from foresee.run.folder import CONFIG_FILE

    if not run.is_dir():
        return load_run(run, overrides)
    if not (run / CONFIG_FILE).is_file():
        raise ConfigError(f"{run} holds no run ({CONFIG_FILE} is missing); give the folder of a run, or a run file")
    return load_run(run / CONFIG_FILE, overrides)


def _explain_row(run: Path, config: RunConfig, name: str, console: Console, *, as_json: bool) -> None:
    from foresee.tools.explain import RunPlan, explain_row
    from foresee.tools.explain.explain import place_now
    from foresee.tools.explain.sentences import AWAY, KEPT, USED, row_headline, row_paragraphs, strip

    plan = RunPlan.of(config)
    with bar(console, "planning", plan.header.num_steps) as advance:
        life = explain_row(plan, name, advance=advance)
    if as_json:
        figures = {"uses": life.uses, "num_fetched": life.num_fetched, "hit_rate": life.hit_rate}
        print(json_format.dumps({**asdict(life), **figures}))
        return
    lines = row_headline(life)
    if life.stays:
        width = min(STRIP_WIDTH_MAX, console.width - 2)
        lines += ["", strip(life, width), f"{USED} used   {KEPT} kept in a cache   {AWAY} away"]
    place = place_now(config, life.row) if run.is_dir() else None
    _print(console, lines, [*row_paragraphs(life), *([[place]] if place is not None else [])])


def _explain_step(run: Path, config: RunConfig, step: int, console: Console, *, as_json: bool) -> None:
    from foresee.tools.explain import RunPlan, explain_step
    from foresee.tools.explain.sentences import step_headline, step_paragraphs

    plan = RunPlan.of(config)
    with bar(console, "planning", plan.header.num_steps) as advance:
        account = explain_step(plan, step, advance=advance)
    if run.is_dir():
        account.measured = _recorded(run, step)
    if as_json:
        print(json_format.dumps(asdict(account)))
    else:
        _print(console, step_headline(account), step_paragraphs(account, plan.names))


def _recorded(run: Path, step: int) -> list[MeasuredStep]:
    """What the run recorded of this step: all of it, or nothing, as it records only some steps."""
    from foresee.tools.explain.measured import measured_step
    from foresee.tools.report.run_records import read_run

    found = [measured_step(worker.spans, step=step, worker=worker.worker) for worker in read_run(run).workers]
    return [measured for measured in found if measured is not None]


def _print(console: Console, head: list[str], groups: list[list[str]]) -> None:
    show(console, *head)
    for sentences in groups:
        show(console, "", *(f"  {sentence}" for sentence in sentences))
