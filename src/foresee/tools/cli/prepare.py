"""`foresee prepare FORMAT FILES --out FOLDER`: a raw log becomes a prepared one, which everything else reads.

One command for each line of `FORMATS`, derived from the format's dataclass: its docstring is the help, each field that
is annotated with a text is an option, and so is each field of `PrepareOptions`. A format with `columns` also takes the
options that name them, in the words of `tools/cli/columns.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from foresee.data import FORMATS, Columns, Label, PrepareOptions, PrepareReport, Source, prepare
from foresee.data.formats import load_installed
from foresee.data.writer import DESCRIPTION_FILE
from foresee.errors import DataError
from foresee.io.units import counted
from foresee.io.urls import Place, place, sent, shown
from foresee.tools.cli.columns import parse_categorical, parse_dense, parse_join, parse_label
from foresee.tools.cli.options import REQUIRED, options_of, with_parameters
from foresee.tools.cli.terminal import terminal_progress

app = typer.Typer(
    help="Turn a raw log into a prepared one: Criteo, Avazu, MovieLens, libfm, CSV or Parquet.", no_args_is_help=True
)

_SEVERAL = "May be given several times."


def _named(metavar: str, text: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=" ".join(text.split()))


Parameters = list[tuple[str, Any, Any]]
"""(name, annotation, default)."""
FILES: Parameters = [
    (
        "files",
        Annotated[
            list[str],
            typer.Argument(
                metavar="FILE...",
                help="Raw files, or URLs of some, as s3://bucket/day_0.gz. Text may be plain, gzip, bzip2, xz or zstd.",
            ),
        ],
        REQUIRED,
    ),
    (
        "out",
        Annotated[str, _named("FOLDER", "Folder of the prepared log; or a URL, as s3://bucket/log.")],
        REQUIRED,
    ),
]
LABEL = f"""The column that says whether it was a click: 0 and 1, -1 and 1, true and false; or a rating. To learn
something else, or several things: NAME:number, NAME:classes=A|B|C (or classes=5 for 0 to 4), NAME:threshold=NUMBER (a
click of a number); column=COLUMN if it stands in a column of another name; optional if cells may be empty.
{_SEVERAL}"""
WEIGHT = "A column of numbers from 0 up: how much each sample counts in the loss."
CATEGORICAL = f"""A column of values: NAME. Where a cell holds several: NAME:mean:separator=TEXT or
NAME:sum:separator=TEXT (short: NAME:mean:TEXT; NAME:mean for lists in Parquet). Settings may follow, each after a
colon: table=T (columns with one T share a table), min_count=N, hash_buckets=N, num_rows=N (cells are ids from 0 to
N-1), missing=TEXT. A colon of the name itself has a backslash before it. {_SEVERAL}"""
DENSE = f"""A column of numbers: NAME, NAME:log1p or NAME:standard. Settings may follow, each after a colon:
empty=NUMBER (what an empty cell counts as), missing=TEXT. {_SEVERAL}"""
JOIN = f"""Columns of a second, small CSV: FILE:KEYS:COLUMN,COLUMN, where KEYS is a column of both, or
FILE:KEYS=THERE:COLUMN if it is called THERE in the second. Settings may follow, each after a colon: separator=TEXT,
encoding=NAME, names=A,B,C (if there is no header), quoted=no. Name the columns as features too. {_SEVERAL}"""
THRESHOLD = "A rating of at least this counts as a click."
TIME = "The column that says when it happened, as a number or a date and time; needed for --split time."
SKIP = f"Leave out samples whose label is this, such as 0 for `not rated`. {_SEVERAL}"
MISSING = f"Cells with this text count as empty, such as NULL. {_SEVERAL}"
COLUMNS: Parameters = [
    ("label", Annotated[list[str], _named("COLUMN", LABEL)], REQUIRED),
    ("categorical", Annotated[list[str], _named("COLUMN", CATEGORICAL)], REQUIRED),
    ("dense", Annotated[list[str] | None, _named("COLUMN", DENSE)], None),
    ("missing", Annotated[list[str] | None, _named("TEXT", MISSING)], None),
    ("time", Annotated[str | None, _named("COLUMN", TIME)], None),
    ("weight", Annotated[str | None, _named("COLUMN", WEIGHT)], None),
    ("label_threshold", Annotated[float | None, _named("NUMBER", THRESHOLD)], None),
    ("label_skip", Annotated[list[str] | None, _named("TEXT", SKIP)], None),
]
JOINS: Parameters = [("joins", Annotated[list[str] | None, _named("JOIN", JOIN, "--join")], None)]


def command_of(source_type: type[Any]) -> Callable[..., None]:
    """The command of a format, as Typer takes it."""
    names = {field.name for field in fields(source_type)}
    own, shared = options_of(source_type), options_of(PrepareOptions)

    def run(**given: Any) -> None:
        settings = {option.name: option.value(given) for option in own}
        if "columns" in names:
            settings["columns"] = _columns(given)
        if "joins" in names:
            settings["joins"] = tuple(parse_join(text) for text in given["joins"] or [])
        options = PrepareOptions(**{option.name: option.value(given) for option in shared})
        files = dict.fromkeys([*map(place, given["files"]), *options.valid_files, *options.test_files])
        _check_known(source_type, files)
        _prepare(source_type(files=tuple(files), **settings), place(given["out"]), options)

    columns = [*(COLUMNS if "columns" in names else []), *(JOINS if "joins" in names else [])]
    derived = [(option.name, option.annotation, option.default) for option in (*own, *shared)]
    return with_parameters(run, [*FILES, *columns, *derived])


def _check_known(source_type: type[Any], files: Iterable[Place]) -> None:
    """Formats of other packages may know nothing but paths."""
    for file in files:
        if isinstance(file, str) and get_type_hints(source_type).get("files") == tuple[Path, ...]:
            raise DataError(f"{shown(file)}: {source_type.name} reads files of this machine only; copy it here first")


def _columns(given: dict[str, Any]) -> Columns:
    missing = tuple(given["missing"] or [])
    labels = [parse_label(text) for text in given["label"]]
    plain = len(labels) == 1 and labels[0] == Label(name=labels[0].name)
    return Columns(
        label=labels[0].name if plain else "",
        labels=() if plain else tuple(labels),
        weight=given["weight"],
        dense=tuple(parse_dense(text, missing) for text in given["dense"] or []),
        categorical=tuple(parse_categorical(text, missing) for text in given["categorical"]),
        time=given["time"],
        label_threshold=given["label_threshold"],
        label_skip=tuple(given["label_skip"] or []),
    )


def _prepare(source: Source, out: Place, options: PrepareOptions) -> None:
    try:
        with sent(out, marker=DESCRIPTION_FILE, replace=options.replace) as folder:
            with terminal_progress() as progress:
                report = prepare(source, folder, options, progress)
            _show(report, shown(out))
    except OSError as error:
        reason = f"{shown(out)} cannot be written ({error.strerror})"
        raise DataError(f"{reason}; choose another folder or free some space") from None


def _show(report: PrepareReport, out: str) -> None:
    # Names of columns are the person's: brackets and colons in them are neither markup nor emoji.
    console, log = Console(markup=False, emoji=False, highlight=False), report.log
    sizes = ", ".join(f"{name} {size:,}" for name, size in log.split_sizes.items())
    samples = "sample" if sum(log.split_sizes.values()) == 1 else "samples"
    labels = ", ".join(it.name if it.kind == "binary" else f"{it.name} ({it.kind})" for it in log.labels)
    weights = ", weighted" if log.description.sample_weights else ""
    labels = f"labels: {labels}{weights}; " if len(log.labels) > 1 or log.labels[0].kind != "binary" or weights else ""
    words = f"{sizes} {samples}; {labels}{counted(log.num_dense, 'dense feature')}; {counted(log.num_rows, 'row')}"
    console.print(f"{out}: {words}", soft_wrap=True)
    table = Table(Column("feature", overflow="fold"), Column("table", overflow="fold"), "rows", "pooling")
    for feature in log.features:
        table.add_row(Text(feature.name), Text(feature.table), f"{feature.num_rows:,}", feature.pooling)
    console.print(table)
    notes = [
        f"{name}: {counted(number, 'negative number')} counted as 0 before log1p"
        for name, number in report.num_negative.items()
    ]
    notes += [
        f"warning: column {name}: no cell has several values"
        + (f" with {separator!r} between them" if separator is not None else ", and no separator is given")
        + f"; if cells hold several, prepare again with {name}:mean:separator=TEXT or {name}:sum:separator=TEXT"
        for name, separator in report.single_valued.items()
    ]
    if report.bad_lines_file is not None:
        were = "was" if report.num_bad == 1 else "were"
        notes.append(f"{counted(report.num_bad, 'bad line')} {were} set aside in {out}/{report.bad_lines_file.name}")
    if report.num_skipped:
        were = "was" if report.num_skipped == 1 else "were"
        notes.append(f"{counted(report.num_skipped, 'sample')} {were} left out as asked")
    for note in notes:
        console.print(note, soft_wrap=True)


load_installed()
for _name, _source_type in FORMATS.items():
    app.command(_name, help=inspect.getdoc(_source_type), no_args_is_help=True)(command_of(_source_type))
