"""`foresee watch`: a run under way, or over, in the terminal; and the display of `foresee train --watch`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from foresee.errors import InputError
from foresee.io.urls import Place, place
from foresee.tools.cli.options import RunPlace

if TYPE_CHECKING:
    from foresee.run.progress import Reading
    from foresee.tools.report.run_records import RunRecords

REFRESH_SECONDS = 1.0
LINE_SECONDS = 10.0


def watch(
    run: RunPlace,
    once: Annotated[bool, typer.Option("--once", help="Show the run as it is now, and end.")] = False,
) -> None:
    """Follow a run from another terminal.

    Loss and AUC, where the time of a step goes, hit rate, cache, how far ahead
    planner and fetches are, bytes on every link; of one process or of many.
    Ends when the run is done, or with Ctrl-C, which does nothing to the run.
    In a pipe it prints a line now and then.

    [bold]Examples[/]

      foresee watch demo/run
      foresee watch demo/run --once
    """
    from foresee.tools.report.run_live import live_view

    console, where = Console(), place(run)
    try:
        if once:
            console.print(live_view(_records(where)))
        elif console.is_terminal:
            _follow(where, console)
        else:
            _print_lines(where, console)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _records(run: Place) -> RunRecords:
    """As they are now: those of a run at a URL are as of its last commit there."""
    from foresee.run.backup_shards import brought_run
    from foresee.tools.report.run_records import read_run

    return read_run(brought_run(run, tables=False), spans=False)


def _follow(run: Place, console: Console) -> None:
    from foresee.tools.report.run_live import live_view

    pause = REFRESH_SECONDS if isinstance(run, Path) else LINE_SECONDS
    records = _records(run)
    with Live(live_view(records), console=console, auto_refresh=False) as live:
        while not records.finished:
            time.sleep(pause)
            records = _records(run)
            live.update(live_view(records), refresh=True)


def _print_lines(run: Place, console: Console) -> None:
    from foresee.tools.report.run_live import live_line

    last = ""
    while True:
        records = _records(run)
        if (line := live_line(records)) != last:
            console.print(line, soft_wrap=True, highlight=False)
            last = line
        if records.finished:
            return
        time.sleep(LINE_SECONDS)


class WatchDisplay:
    """A `Display` that shows the run as `foresee watch` would, from the trainer's own terminal."""

    def __init__(self, console: Console, run: Path) -> None:
        self._run = run
        self._live = Live(Text("planning the first steps …"), console=console, auto_refresh=False)
        self._last = time.monotonic()

    def __enter__(self) -> WatchDisplay:
        self._live.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._live.stop()

    def due(self) -> bool:
        return time.monotonic() - self._last >= REFRESH_SECONDS

    def show(self, reading: Reading) -> None:
        from foresee.tools.report.run_live import live_view
        from foresee.tools.report.run_records import read_run

        self._last = time.monotonic()
        try:
            view = live_view(read_run(self._run, spans=False), reading.line(), reading.step)
            self._live.update(view, refresh=True)
        except InputError:
            self._live.update(Text(reading.line()), refresh=True)

    def say(self, text: str) -> None:
        self._live.console.print(text, highlight=False)
