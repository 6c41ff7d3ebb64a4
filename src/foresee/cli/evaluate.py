"""`foresee evaluate`: how good a trained run is on a split of its log."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from foresee.cli.options import RunFolder


def evaluate(
    run: RunFolder,
    split: Annotated[str, typer.Option(help="Split of the log: valid, test or train.")] = "valid",
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="NUM", help="Only about so many samples, from the split's beginning.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """AUC, log loss, normalised entropy and calibration of a run, as of its last commit.

    Only reads the run: it may be on a disk that cannot be written.

    [bold]Examples[/]

      foresee evaluate runs/first
      foresee evaluate runs/first --split test --json
    """
    from foresee.engine.evaluation import evaluate as evaluate_model
    from foresee.engine.export import trained, trained_model
    from foresee.engine.parts import open_log, training_device
    from foresee.engine.run_folder import open_run

    config = open_run(run)
    log = open_log(config)
    with trained(config, log) as tables:
        model, step = trained_model(config, log, tables), tables.store.committed_step
        metrics = evaluate_model(
            model, tables.store, log, split=split, samples_max=samples, device=training_device(config)
        )
    if as_json:
        print(json.dumps({"run": str(run), "step": step, "split": split, **metrics.as_dict()}))
        return
    console = Console()
    console.print(f"{run} after step {step:,}, {split} split, {metrics.num_samples:,} samples", highlight=False)
    if metrics.reason is not None:
        console.print(metrics.reason, highlight=False)
    table = Table("figure", "value", "meaning")
    for name, value, meaning in (
        ("AUC", metrics.auc, "a click is ranked above a non-click so often; 0.5 is guessing"),
        ("log loss", metrics.log_loss, "lower is better"),
        ("normalised entropy", metrics.normalised_entropy, "log loss over that of always saying the mean"),
        ("calibration", metrics.calibration, "predicted clicks over clicks; 1 is right"),
    ):
        table.add_row(name, "-" if value is None else f"{value:.4f}", meaning)
    console.print(table)
    deciles = Table("tenth of samples", "predicted", "clicked", title="calibration, from the least likely to the most")
    for index, decile in enumerate(metrics.calibration_by_decile, 1):
        deciles.add_row(str(index), f"{decile.mean_prediction:.4f}", f"{decile.mean_label:.4f}")
    console.print(deciles)
