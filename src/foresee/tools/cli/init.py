"""`foresee init`: a run file for a prepared log, with sizes that work for it and a word on every key.

In: a prepared log. Out: a YAML file to look at, change and train. Sizes follow from the log: batches so that an epoch
has some hundred steps, and a cache that holds the largest batch, found by reading the log once.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from foresee.errors import ConfigError
from foresee.io.folders import replace_text
from foresee.io.urls import Place, shown
from foresee.tools.cli.options import Log, bar, invocation
from foresee.tools.cli.terminal import show, terminal

if TYPE_CHECKING:
    from foresee.data.click_log import ClickLog

BATCH_SIZE_MAX, BATCH_SIZE_MIN, STEPS_WANTED = 2048, 16, 100
WORDS_AT = 30
SMALL_ROWS, LARGE_SAMPLES = 10_000, 5_000_000
RUN_FILE = """\
# A run on {log_words}.
# Train it:  {command} train {file}
# Paths start at this file's folder. docs/run-file.md has every key, with its default.

log: {log}
run: {run}                      # tables, checkpoints and metrics.jsonl of this run go here

model:
  name: dlrm                    # or deepfm, wide_and_deep, dcn_v2, ncf, or your own as package.module:Class
  dim: {dim}                       # width of an embedding; more can learn more, and takes more of everything
  options: {options}   # hidden widths of the two MLPs

{tasks}tables:
  store: disk                   # rows live in the run folder; `memory` for tables that fit there and need not stay
  optimizer: {{name: rowwise_adagrad, lr: 0.05}}   # or sgd, adagrad, lazy_adam; only rows of the batch learn
  init_scale: 0.05              # rows begin uniformly between -init_scale and +init_scale

cache:
  # Rows in memory, of {num_rows:,} in all. The largest batch touches {largest:,}: not less than that. A larger
  # train.batch_size needs a larger cache. More rows save fetches and change no bit of the result.
  rows: {cache_rows}
  planner: lookahead            # all others give the same bytes and move more; foresee plan compares them

train:
  batch_size: {batch_size}               # samples of a step; {num_steps:,} steps an epoch
  epochs: 1                     # passes over the train split
  seed: 0                       # the order of samples and the first weights follow from it
  optimizer: {{name: adam, lr: 0.001}}   # of the MLPs
{evaluate}"""
EVALUATE = """\
  evaluate_every_steps: {every}     # AUC, RMSE and such on the valid split so often, and at the end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What suits a log."""

    batch_size: int
    num_steps: int
    largest_batch: int
    """Distinct rows of the largest batch: a smaller cache does not work."""
    cache_rows: int
    dim: int
    widths: str


def init(
    log: Log,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The run file to write.")] = Path("run.yaml"),
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the run. Left out: runs/LOG beside the file.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Write over a file that is already there.")] = False,
) -> None:
    """Write a run file for a prepared log, with sizes that work for it and a word on every key.

    Reads the log once, as training would, to find how many rows a batch needs; then chooses batch size, cache and
    widths. The file is yours to change.

    [bold]Examples[/]

      foresee init data/clicks
      foresee init data/clicks --out second.yaml --run runs/second
    """
    from foresee.data.click_log import ClickLog

    if out.exists() and not replace:
        raise ConfigError(f"{out} is there already; give --replace to write over it, or --out FILE for another name")
    console, opened = terminal(), ClickLog.open(log)
    sizes = sizes_for(opened, console)
    _write(out, run_file(opened, sizes, out, run if run is not None else out.parent / "runs" / _name_of(opened)))
    show(
        console,
        f"{out}: batches of {sizes.batch_size:,} samples, a cache of {sizes.cache_rows:,} of {opened.num_rows:,} rows; "
        f"train with  {invocation()} train {shlex.quote(str(out))}",
    )


def sizes_for(log: ClickLog, console: Console) -> Sizes:
    """From the log's own statistics and one pass over its batches."""
    num_samples, batch_size = log.split_sizes.get("train", 0), BATCH_SIZE_MAX
    while batch_size > 1 and (
        num_samples < batch_size or (batch_size > BATCH_SIZE_MIN and num_samples < STEPS_WANTED * batch_size)
    ):
        batch_size //= 2
    stream = log.batches(batch_size=batch_size, seed=0)
    largest = _largest_batch(log, batch_size, console)
    return Sizes(
        batch_size=batch_size,
        num_steps=stream.num_steps,
        largest_batch=largest,
        # Two batches, so that the next one is fetched while one is trained; a tenth of all rows where that is more.
        cache_rows=min(log.num_rows, max(2 * largest, -(-log.num_rows // 10))),
        dim=8 if log.num_rows < SMALL_ROWS else 16,
        widths="{bottom: [512, 256], top: [512, 256]}"
        if num_samples >= LARGE_SAMPLES
        else "{bottom: [64], top: [128, 64]}",
    )


def _largest_batch(log: ClickLog, batch_size: int, console: Console) -> int:
    import numpy as np

    stream, largest = log.batches(batch_size=batch_size, seed=0), 1
    with bar(console, "reading the log", stream.num_steps) as advance:
        for batch in stream.batches():
            largest = max(largest, len(np.unique(batch.rows)))
            advance()
    return largest


def run_file(log: ClickLog, sizes: Sizes, file: Path, run: Path) -> str:
    """The text of the file."""
    counts = [f"{size:,} {name}" for name, size in log.split_sizes.items() if size]
    every = max(1, int(float(f"{sizes.num_steps / 10:.0e}")))
    text = RUN_FILE.format(
        log_words=f"{log.folder.place}: {', '.join(counts)} samples; features: {log.num_features} categorical with "
        f"{log.num_rows:,} rows, {log.num_dense} dense",
        command=invocation(),
        file=shlex.quote(str(file)),
        log=_path(log.place, file.parent),
        run=_path(run, file.parent),
        dim=sizes.dim,
        options=sizes.widths,
        tasks=_tasks(log),
        num_rows=log.num_rows,
        largest=sizes.largest_batch,
        cache_rows=sizes.cache_rows,
        batch_size=sizes.batch_size,
        num_steps=sizes.num_steps,
        evaluate=EVALUATE.format(every=every) if log.split_sizes.get("valid") else "",
    )
    return "".join(map(_aligned, text.splitlines(keepends=True)))


def _tasks(log: ClickLog) -> str:
    """What is learned, where there is more than a click."""
    from foresee.run.tasks import tasks_of

    tasks = tasks_of([], log).tasks
    if len(tasks) == 1 and tasks[0].loss == "binary":
        return ""
    words = "  # weight: how much it counts; of numbers also loss: huber\n"
    lines = [f"  - {{label: {json.dumps(it.name)}, loss: {it.loss}, weight: 1.0}}" for it in tasks]
    return "tasks:\n" + f"{lines[0]}{words}" + "".join(f"{line}\n" for line in lines[1:]) + "\n"


def _aligned(line: str) -> str:
    """Words on keys begin in one column, whatever the length of the value before them."""
    key, space, words = line.partition("  # ")
    return f"{key.rstrip():<{WORDS_AT}}  # {words.lstrip()}" if space and key.strip() else line


def _name_of(log: ClickLog) -> str:
    return log.place.resolve().name if isinstance(log.place, Path) else shown(log.place).rpartition("/")[2]


def _path(path: Place, folder: Path) -> str:
    """As seen from the file's folder, in quotes where YAML would take it for something else."""
    text = os.path.relpath(path, folder) if isinstance(path, Path) else path
    return text if re.fullmatch(r"[A-Za-z./][\w./-]*", text) else json.dumps(text, ensure_ascii=False)


def _write(file: Path, text: str) -> None:
    try:
        replace_text(file, text)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written ({error.strerror}); give another --out FILE") from None
