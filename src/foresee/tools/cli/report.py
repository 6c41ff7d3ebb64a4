"""`foresee report`: one HTML page of a run, or of a comparison of policies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foresee.io.optional import need
from foresee.io.urls import below, place

if TYPE_CHECKING:
    from foresee.data.click_log import ClickLog
    from foresee.tools.report.run_figures import Skew
    from foresee.tools.report.run_records import RunRecords

SKEW_SAMPLES = 200_000
BATCH_SIZE = 8192


def report(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CSV",
            help="Folder of a run, finished or not, as `run` in its run file names it, or its URL; or a file of "
            "`foresee compare --csv`.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE.HTML", help="Where the page goes. Left out: RUN/report.html, or beside the CSV."
        ),
    ] = None,
) -> None:
    """Make one HTML page of a run, or of a comparison, with everything in it.

    Loss and AUC; where the time of a step goes, beside the ideal; what every
    thread did in some steps, one under the other; the cache, the window, bytes
    by link, hit rate by table, and how unequal the log's rows are. The page
    needs no network, follows a light or dark setting, fits a phone, and prints.

    [bold]Examples[/]

      foresee report demo/run
      foresee report demo/run --out run.html
      foresee report policies.csv
    """
    need("plotly")
    from foresee.run.backup_shards import brought_run

    found = brought_run(place(source), tables=False)
    if found.is_file():
        target = out if out is not None else found.with_suffix(".html")
        _write_comparison(found, target)
    else:
        target = out if out is not None else found / "report.html"
        _write_run(found, target)
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB, open it in a browser")


def _write_comparison(source: Path, target: Path) -> None:
    from foresee.tools.report.comparison import read_comparison, write_comparison_page

    setting = "Predicted for the speeds that `foresee compare` was given."
    introduction = f"From {source.name}, as `foresee compare` wrote it."
    write_comparison_page(
        target, f"Policies of {source.stem}", read_comparison(source), introduction=introduction, setting=setting
    )


def _write_run(source: Path, target: Path) -> None:
    from foresee.tools.report.page import write_page
    from foresee.tools.report.run_page import introduction_of, run_sections, title_of
    from foresee.tools.report.run_records import read_run

    records = read_run(source)
    log = _log_of(records)
    best = log.best_auc.get("valid") if log is not None else None
    sections = run_sections(records, skew=_skew_of(log) if log is not None else None, best_auc=best)
    write_page(target, title_of(records), sections, introduction_of(records))


def _log_of(records: RunRecords) -> ClickLog | None:
    """The log that the run was trained on, if it is still where it was."""
    from foresee.data.click_log import ClickLog
    from foresee.errors import DataError

    if "log" not in records.config:
        return None
    try:
        return ClickLog.open(below(records.folder, records.config["log"]))
    except DataError:
        return None


def _skew_of(log: ClickLog) -> Skew | None:
    """From the first samples of a shuffled pass, which are a fair draw of all."""
    import numpy as np

    from foresee.errors import DataError
    from foresee.tools.report.run_figures import skew_of

    try:
        num_samples = log.split_sizes["train"]
        stream = log.batches(batch_size=min(BATCH_SIZE, num_samples), seed=0)
        seen, parts = 0, []
        for batch in stream.batches():
            parts.append(batch.rows)
            seen += batch.num_samples
            if seen >= SKEW_SAMPLES:
                break
    except (DataError, KeyError):
        return None
    _, counts = np.unique(np.concatenate(parts), return_counts=True)
    return skew_of(counts.astype(np.int64), num_rows=log.num_rows, num_samples=seen)
