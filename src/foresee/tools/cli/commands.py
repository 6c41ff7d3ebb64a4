"""The commands by name, in the order in which a person needs them, each with its line in `foresee --help`.

A command's module is imported when the command is invoked, so that help, `--version` and a misspelt name load neither
torch nor numba nor Arrow. A module `name.py` has either a function `name`, which is the command, or an `app` of
commands. The lines below are those that the commands say of themselves; a test compares.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from foresee.tools.cli.help import with_whole_help

COMMANDS = {
    "demo": "Watch a DLRM learn from a click log while its tables, larger than the cache, live on disk.",
    "prepare": "Turn a raw log into a prepared one: Criteo, Avazu, MovieLens, libfm, CSV or Parquet.",
    "init": "Write a run file for a prepared log, with sizes that work for it and a word on every key.",
    "plan": "What a run would move, without running it; `plan show` for a saved plan.",
    "compare": "Every policy on your log, side by side, without training.",
    "simulate": "What a cluster you do not have would do with your log: predicted step, bottleneck, memory.",
    "train": "Train a model whose tables may be far larger than memory.",
    "watch": "Follow a run from another terminal.",
    "evaluate": "AUC, log loss, normalised entropy and calibration of a run, as of its last commit.",
    "verify": "Train the first steps without a cache and with the run's plan, and compare every byte.",
    "check": "Check whether tables, runs, logs, plans and exports are whole. Never writes.",
    "fold": "Bring rows that are still in the log of table folders into plain arrays that numpy reads.",
    "explain": "Why a row was fetched, kept, moved and written back, or what a step did and waited for.",
    "report": "Make one HTML page of a run, or of a comparison, with everything in it.",
    "export": "Write a trained model and its tables for serving: safetensors, the vocabularies as Parquet, one JSON.",
    "score": "Score raw samples with an exported model: one probability a line, in the order of the file.",
    "layout": "Describe the tables of a run for its embedding servers: `foresee serve --layout`.",
    "serve": "Serve one shard of the embedding rows, in memory or on disk, until SIGTERM or Ctrl-C.",
    "plan-server": "Read the log, plan for all workers, and give each its own records, until SIGTERM or Ctrl-C.",
    "worker": "Train a share of every batch, together with the other workers.",
    "deploy": "Write what Slurm or Kubernetes needs to run a run file on many machines: a script, or manifests.",
    "status": "Show health and counters of embedding servers. Exits with 2 if one of them does not answer.",
    "graph": "Graphs whose nodes outgrow memory: prepare edges, then train, evaluate and ask, all from disk.",
    "cluster": "Plan a shared GPU cluster: who runs when, who is hurt, what if.",
}
_ELSEWHERE = {
    "verify": "foresee.tools.cli.check",
    "fold": "foresee.tools.cli.check",
    "score": "foresee.tools.cli.export",
    "layout": "foresee.tools.cli.serve",
    "worker": "foresee.tools.cli.train",
    "plan-server": "foresee.tools.cli.serve",
    "status": "foresee.tools.cli.serve",
    "graph": "foresee.tools.cli.graph",
    "cluster": "foresee.tools.cli.cluster",
}
_LOOK: dict[str, Any] = {"rich_markup_mode": "rich", "pretty_exceptions_enable": False, "add_completion": False}


class _Lazy(TyperGroup):
    """Shows a line for each command, and imports the one that is invoked."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with_whole_help(self).format_help(ctx, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


def load(name: str) -> Any:
    """The command itself, its module imported."""
    module = importlib.import_module(_ELSEWHERE.get(name, f"foresee.tools.cli.{name.replace('-', '_')}"))
    around = typer.Typer(**_LOOK)
    if hasattr(module, "app"):
        around.add_typer(module.app, name=name)
    else:
        around.command(name)(getattr(module, name.replace("-", "_")))
    return with_whole_help(typer.main.get_group(around).commands[name])


app = typer.Typer(
    cls=_Lazy,
    help="Train models whose embedding tables outgrow memory: plan every access first, then carry the plan out.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **_LOOK,
)


def _show_version(asked: bool) -> None:
    from foresee import __version__

    if asked:
        typer.echo(f"foresee {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Options of `foresee` itself."""


def _in_help_only() -> None:
    """Stands for a command whose module is not imported yet."""


for _name, _line in COMMANDS.items():
    app.command(_name, help=_line)(_in_help_only)
