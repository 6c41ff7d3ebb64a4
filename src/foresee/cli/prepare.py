"""`foresee prepare FORMAT FILES --out FOLDER`: a raw log becomes a prepared one, which everything else reads.

One command for each format; what they share is said once. Columns of CSV and Parquet files are named on the command
line: NAME, or NAME:TRANSFORM for numbers, NAME:POOLING[:SEPARATOR] for columns with several values in a cell.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from foresee.errors import DataError

if TYPE_CHECKING:
    from foresee.data import Columns, PrepareOptions, PrepareReport
    from foresee.data.source import Source

app = typer.Typer(
    help="Turn a raw log into a prepared one: Criteo, Avazu, MovieLens, libfm, CSV or Parquet.", no_args_is_help=True
)

Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Raw files, plain or gzip.")]
Out = Annotated[Path, typer.Option(help="Folder of the prepared log.")]
Split = Annotated[
    Literal["order", "time", "random"] | None,
    typer.Option(help="Hold out the last samples, the latest, or some at random. Without it: what suits the format."),
]
ValidShare = Annotated[float, typer.Option(help="Share of the samples that go to the valid split.")]
TestShare = Annotated[float, typer.Option(help="Share of the samples that go to the test split.")]
Seed = Annotated[int, typer.Option(help="Of the random split.")]
MinCount = Annotated[int, typer.Option(help="Values seen less often share the unknown row of their table.")]
HashBuckets = Annotated[
    int | None, typer.Option(help="Hash each column into so many rows instead of keeping vocabularies.")
]
BadLinesOption = Annotated[
    Literal["stop", "keep"], typer.Option(help="Stop at the first bad line, or keep them in bad-lines.txt and go on.")
]
BadShareMax = Annotated[float, typer.Option(help="Give up if more than this share of the lines is bad.")]
Replace = Annotated[bool, typer.Option("--replace", help="Replace a prepared log that is already there.")]
Label = Annotated[str, typer.Option(help="The column that says whether it was a click.")]
DenseOption = Annotated[
    list[str] | None,
    typer.Option(help="A column of numbers: NAME, NAME:log1p or NAME:standard. May be given several times."),
]
CategoricalOption = Annotated[
    list[str],
    typer.Option(
        help="A column of values: NAME; or NAME:mean:SEPARATOR, NAME:sum:SEPARATOR where a cell holds several. "
        "May be given several times."
    ),
]
Time = Annotated[str | None, typer.Option(help="The column that says when it happened; needed for --split time.")]
LabelThreshold = Annotated[float | None, typer.Option(help="A rating of at least this counts as a click.")]
LabelSkip = Annotated[
    list[str] | None, typer.Option(help="Leave out samples whose label is this, such as 0 for `not rated`.")
]


@app.command()
def criteo(
    files: Files, out: Out, split: Split = None, valid_share: ValidShare = 0.1, test_share: TestShare = 0.0,
    seed: Seed = 0, min_count: MinCount = 1, hash_buckets: HashBuckets = None, bad_lines: BadLinesOption = "stop",
    bad_share_max: BadShareMax = 0.01, replace: Replace = False,
) -> None:  # fmt: skip
    """Criteo click logs (Kaggle, Terabyte): label, 13 numbers, 26 categories, tabs, no header.

    foresee prepare criteo train.txt.gz --out data/criteo --min-count 10
    """
    from foresee.data import Criteo

    options = _options(
        split, valid_share, test_share, seed, min_count, hash_buckets, bad_lines, bad_share_max, replace
    )
    _prepare(Criteo(files=tuple(files)), out, options)


@app.command()
def avazu(
    files: Files, out: Out, split: Split = None, valid_share: ValidShare = 0.1, test_share: TestShare = 0.0,
    seed: Seed = 0, min_count: MinCount = 1, hash_buckets: HashBuckets = None, bad_lines: BadLinesOption = "stop",
    bad_share_max: BadShareMax = 0.01, replace: Replace = False,
) -> None:  # fmt: skip
    """Avazu click logs: CSV with a header, split by hour.

    foresee prepare avazu train.gz --out data/avazu
    """
    from foresee.data import Avazu

    options = _options(
        split, valid_share, test_share, seed, min_count, hash_buckets, bad_lines, bad_share_max, replace
    )
    _prepare(Avazu(files=tuple(files)), out, options)


@app.command()
def movielens(
    ratings: Annotated[Path, typer.Argument(help="NAME.inter, ratings.dat or ratings.csv; its side files beside it.")],
    out: Out, label_threshold: Annotated[float, typer.Option(help="A rating of at least this is positive.")] = 4.0,
    pooling: Annotated[Literal["sum", "mean"], typer.Option(help="Of a film's genres.")] = "mean",
    split: Split = None, valid_share: ValidShare = 0.1, test_share: TestShare = 0.0, seed: Seed = 0,
    min_count: MinCount = 1, hash_buckets: HashBuckets = None, bad_lines: BadLinesOption = "stop",
    bad_share_max: BadShareMax = 0.01, replace: Replace = False,
) -> None:  # fmt: skip
    """MovieLens ratings, with user and film features; genres are a column with several values.

    foresee prepare movielens ml-100k.inter --out data/ml-100k
    """
    from foresee.data import MovieLens

    options = _options(
        split, valid_share, test_share, seed, min_count, hash_buckets, bad_lines, bad_share_max, replace
    )
    _prepare(MovieLens(files=(ratings,), label_threshold=label_threshold, pooling=pooling), out, options)


@app.command()
def libfm(
    files: Files, out: Out,
    shape: Annotated[
        Literal["fields", "bag"], typer.Option(help="One feature for each position, or all indices as one bag.")
    ] = "fields",
    split: Split = None, valid_share: ValidShare = 0.1, test_share: TestShare = 0.0, seed: Seed = 0,
    min_count: MinCount = 1, hash_buckets: HashBuckets = None, bad_lines: BadLinesOption = "stop",
    bad_share_max: BadShareMax = 0.01, replace: Replace = False,
) -> None:  # fmt: skip
    """Text in libfm's format: label index:1 index:1 ...

    foresee prepare libfm frappe.train.libfm --out data/frappe
    """
    from foresee.data import Libfm

    options = _options(
        split, valid_share, test_share, seed, min_count, hash_buckets, bad_lines, bad_share_max, replace
    )
    _prepare(Libfm(files=tuple(files), shape=shape), out, options)


@app.command()
def csv(
    files: Files, out: Out, label: Label, categorical: CategoricalOption, dense: DenseOption = None, time: Time = None,
    label_threshold: LabelThreshold = None, label_skip: LabelSkip = None,
    separator: Annotated[str, typer.Option(help="What stands between cells; `\\t` is a tab.")] = ",",
    header: Annotated[bool, typer.Option(help="The first line names the columns.")] = True,
    column_names: Annotated[
        str | None, typer.Option(help="All columns' names, with commas between; replaces a missing or damaged header.")
    ] = None,
    split: Split = None, valid_share: ValidShare = 0.1, test_share: TestShare = 0.0, seed: Seed = 0,
    min_count: MinCount = 1, hash_buckets: HashBuckets = None, bad_lines: BadLinesOption = "stop",
    bad_share_max: BadShareMax = 0.01, replace: Replace = False,
) -> None:  # fmt: skip
    """Any delimited text.

    foresee prepare csv clicks.csv --out data/clicks --label clicked --dense age:standard
    --categorical user --categorical item --categorical tags:mean:| --time clicked_at
    """
    from foresee.data import Csv

    options = _options(
        split, valid_share, test_share, seed, min_count, hash_buckets, bad_lines, bad_share_max, replace
    )
    source = Csv(
        files=tuple(files),
        columns=_columns(label, dense, categorical, time, label_threshold, label_skip),
        separator=separator.replace("\\t", "\t"),
        header=header,
        column_names=tuple(column_names.split(",")) if column_names else None,
    )
    _prepare(source, out, options)


@app.command()
def parquet(
    files: Files, out: Out, label: Label, categorical: CategoricalOption, dense: DenseOption = None, time: Time = None,
    label_threshold: LabelThreshold = None, label_skip: LabelSkip = None, split: Split = None,
    valid_share: ValidShare = 0.1, test_share: TestShare = 0.0, seed: Seed = 0, min_count: MinCount = 1,
    hash_buckets: HashBuckets = None, bad_lines: BadLinesOption = "stop", bad_share_max: BadShareMax = 0.01,
    replace: Replace = False,
) -> None:  # fmt: skip
    """Parquet files with one sample a row; lists are columns with several values (NAME:mean or NAME:sum).

    foresee prepare parquet ratings.parquet --out data/ratings --label rating --label-threshold 8
    --label-skip 0 --categorical user_id --categorical anime_id
    """
    from foresee.data import Parquet

    options = _options(
        split, valid_share, test_share, seed, min_count, hash_buckets, bad_lines, bad_share_max, replace
    )
    columns = _columns(label, dense, categorical, time, label_threshold, label_skip)
    _prepare(Parquet(files=tuple(files), columns=columns), out, options)


def _options(
    split: Literal["order", "time", "random"] | None, valid_share: float, test_share: float, seed: int, min_count: int,
    hash_buckets: int | None, bad_lines: Literal["stop", "keep"], bad_share_max: float, replace: bool,
) -> PrepareOptions:  # fmt: skip
    from foresee.data import PrepareOptions

    return PrepareOptions(
        split=split,
        valid_share=valid_share,
        test_share=test_share,
        seed=seed,
        min_count=min_count,
        hash_buckets=hash_buckets,
        bad_lines=bad_lines,
        bad_share_max=bad_share_max,
        replace=replace,
    )


def _columns(
    label: str, dense: list[str] | None, categorical: list[str], time: str | None, label_threshold: float | None,
    label_skip: list[str] | None,
) -> Columns:  # fmt: skip
    from foresee.data import Categorical, Columns, Dense

    def number(text: str) -> Dense:
        name, _, transform = text.partition(":")
        return Dense(name=name, transform=transform or "none")  # type: ignore[arg-type]

    def values(text: str) -> Categorical:
        name, _, rest = text.partition(":")
        pooling, _, separator = rest.partition(":")
        return Categorical(name=name, pooling=pooling or "one", separator=separator or None)  # type: ignore[arg-type]

    return Columns(
        label=label,
        dense=tuple(number(text) for text in dense or []),
        categorical=tuple(values(text) for text in categorical),
        time=time,
        label_threshold=label_threshold,
        label_skip=tuple(label_skip or []),
    )


def _prepare(source: Source, out: Path, options: PrepareOptions) -> None:
    from foresee.data import prepare, terminal_progress

    try:
        with terminal_progress() as progress:
            report = prepare(source, out, options, progress)
    except OSError as error:
        reason = f"{out} cannot be written ({error.strerror})"
        raise DataError(f"{reason}; choose another folder or free some space") from None
    _show(report, out)


def _show(report: PrepareReport, out: Path) -> None:
    console, log = Console(), report.log
    sizes = ", ".join(f"{name} {size:,}" for name, size in log.split_sizes.items())
    console.print(f"{out}: {sizes} samples; {log.num_dense} dense features; {log.num_rows:,} rows", highlight=False)
    table = Table("feature", "rows", "pooling")
    for feature in log.features:
        table.add_row(feature.name, f"{feature.num_rows:,}", feature.pooling)
    console.print(table)
    if report.num_bad:
        console.print(f"{report.num_bad:,} bad lines were set aside in {report.bad_lines_file}", highlight=False)
    if report.num_skipped:
        console.print(f"{report.num_skipped:,} samples were left out as asked", highlight=False)
