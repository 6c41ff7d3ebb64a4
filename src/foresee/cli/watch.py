"""`foresee watch`: a run under way, or over, in the terminal; and the display of `foresee train --watch`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from foresee.base.places import place
from foresee.cli.options import RunPlace
from foresee.errors import InputError

if TYPE_CHECKING:
    from foresee.run.progress import Reading

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
    from foresee.run.stored_shards import brought_run

    console, folder = Console(), brought_run(place(run), tables=False)
    try:
        if once:
            _show_once(folder, console)
        elif console.is_terminal:
            _follow(folder, console)
        else:
            _print_lines(folder, console)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _show_once(run: Path, console: Console) -> None:
    from foresee.report.run_live import live_view
    from foresee.report.run_records import read_run

    console.print(live_view(read_run(run, spans=False)))


def _follow(run: Path, console: Console) -> None:
    from foresee.report.run_live import live_view
    from foresee.report.run_records import read_run

    records = read_run(run, spans=False)
    with Live(live_view(records), console=console, auto_refresh=False) as live:
        while not records.finished:
            time.sleep(REFRESH_SECONDS)
            records = read_run(run, spans=False)
            live.update(live_view(records), refresh=True)


def _print_lines(run: Path, console: Console) -> None:
    from foresee.report.run_live import live_line
    from foresee.report.run_records import read_run

    last = ""
    while True:
        records = read_run(run, spans=False)
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
        from foresee.report.run_live import live_view
        from foresee.report.run_records import read_run

        self._last = time.monotonic()
        try:
            view = live_view(read_run(self._run, spans=False), reading.line(), reading.step)
            self._live.update(view, refresh=True)
        except InputError:
            self._live.update(Text(reading.line()), refresh=True)

    def say(self, text: str) -> None:
        self._live.console.print(text, highlight=False)
