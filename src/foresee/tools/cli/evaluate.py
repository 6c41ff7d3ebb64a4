"""`foresee evaluate`: how good a trained run is on a split of its log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from foresee.io.urls import place, shown
from foresee.tools.cli.options import RunPlace
from foresee.tools.cli.terminal import show, terminal

if TYPE_CHECKING:
    from foresee.run.metrics import Figures, Metrics
    from foresee.run.ranking_metrics import Ranking


def evaluate(
    run: RunPlace,
    split: Annotated[str, typer.Option(help="Split of the log: valid, test or train.")] = "valid",
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="NUM", help="Only about so many samples, from the split's beginning.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="As of the best evaluation (train.best.metric) instead of the last commit.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option(metavar="FEATURE", help="Also GAUC, NDCG@k and recall@k within groups of this feature's values."),
    ] = None,
    at: Annotated[list[int] | None, typer.Option("--at", min=1, metavar="K", help="The k of them; repeat it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """AUC, log loss, normalised entropy and calibration of a run, as of its last commit.

    Of a number RMSE and MAE, of classes accuracy and log loss; of several tasks, those of each.
    Figures within groups are those of the run file (train.ranking), or of --group and --at. Only reads the run: it may
    be on a disk that cannot be written.

    [bold]Examples[/]

      foresee evaluate runs/first
      foresee evaluate runs/first --split test --json
      foresee evaluate runs/first --best --group user --at 5 --at 10
    """
    from foresee.run.backup_shards import brought_run
    from foresee.run.build import open_log, training_device
    from foresee.run.evaluation import evaluate as evaluate_model
    from foresee.run.folder import open_run
    from foresee.run.given_metrics import given_metrics
    from foresee.run.serving.export import trained, trained_model
    from foresee.run.task_metrics import TaskFigures
    from foresee.run.tasks import tasks_of

    config = open_run(brought_run(place(run)))
    log = open_log(config)
    given = {"group": group, "at": sorted(set(at)) if at else None}
    ranking = config.train.ranking.model_copy(update={key: value for key, value in given.items() if value is not None})
    with trained(config, log, best=best) as tables:
        model, step = trained_model(config, log, tables, best=best), tables.store.committed_step
        figures = evaluate_model(
            model,
            tables.store,
            log,
            split=split,
            samples_max=samples,
            ranking=ranking,
            device=training_device(config),
            tasks=(tasks := tasks_of(config.tasks, log)),
            given=given_metrics(config.train.metrics, tasks),
        )
    if as_json:
        print(json.dumps({"run": shown(run), "step": step, "split": split, **figures.as_dict()}))
        return
    by_task = figures.by_task if isinstance(figures, TaskFigures) else {"": figures}
    for name, found in by_task.items():
        whose = f"{name}: " if name else ""
        show(terminal(), f"{whose}{shown(run)} after step {step:,}, {split} split, {_num_samples(found)} samples")
        _show(found)


def _num_samples(figures: Figures) -> str:
    return f"{int(figures.as_dict()['num_samples']):,}"


def _show(figures: Figures) -> None:
    from foresee.run.metrics import Metrics
    from foresee.run.task_metrics import WithMore

    if isinstance(figures, WithMore):
        _show(figures.own)
        for name, value in figures.more.items():
            show(terminal(), f"{name} {_shown(value) if not isinstance(value, list) else value}")
        return
    if isinstance(figures, Metrics):
        _show_clicks(figures)
        return
    content = figures.as_dict()
    if content.get("reason") is not None:
        show(terminal(), content["reason"])
    table = Table("figure", "value", "meaning")
    for name, meaning in MEANINGS.items():
        if name in content:
            table.add_row(_words(name), _shown(content[name]), meaning)
    show(terminal(), table)


MEANINGS = {
    "rmse": "root mean squared error, in units of the label",
    "mae": "mean absolute error, in units of the label",
    "r2": "1 is right, 0 is always saying the mean",
    "accuracy": "the likeliest class is the right one so often",
    "log_loss": "lower is better",
    "normalised_entropy": "log loss over that of always saying the mean",
    "mean_prediction": "of all predictions",
    "mean_label": "of all labels",
}


def _words(name: str) -> str:
    return name.upper() if name in ("rmse", "mae") else name.replace("_", " ")


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _show_clicks(metrics: Metrics) -> None:
    console = terminal()
    if metrics.reason is not None:
        show(console, metrics.reason)
    table = Table("figure", "value", "meaning")
    for name, value, meaning in (
        ("AUC", metrics.auc, "a click is ranked above a non-click so often; 0.5 is guessing"),
        ("log loss", metrics.log_loss, "lower is better"),
        ("normalised entropy", metrics.normalised_entropy, "log loss over that of always saying the mean"),
        ("calibration", metrics.calibration, "predicted clicks over clicks; 1 is right"),
        *_ranking_lines(metrics),
    ):
        table.add_row(name, _shown(value), meaning)
    show(console, table)
    if metrics.ranking is not None:
        console.print(_groups(metrics.ranking), highlight=False)
    deciles = Table("tenth of samples", "predicted", "clicked", title="calibration, from the least likely to the most")
    for index, decile in enumerate(metrics.calibration_by_decile, 1):
        deciles.add_row(str(index), f"{decile.mean_prediction:.4f}", f"{decile.mean_label:.4f}")
    show(console, deciles)


def _ranking_lines(metrics: Metrics) -> list[tuple[str, float | None, str]]:
    """Rows of the table for figures within groups."""
    meanings = {
        "gauc": "AUC within a group, by its samples",
        "ndcg": "clicks near the top of a group; 1 is perfect",
        "recall": "share of a group's clicks among its first k",
    }
    found = metrics.ranking.figures() if metrics.ranking is not None else {}
    return [
        (name.upper().replace("RECALL", "recall"), value, meanings[name.split("@")[0]]) for name, value in found.items()
    ]


def _groups(ranking: Ranking) -> str:
    """What the figures within groups are about."""
    share = "" if ranking.groups_share == 1 else f", {ranking.groups_share:.2%} of all, chosen by a hash"
    return f"groups: {ranking.num_groups:,} values of {ranking.group}{share}"
