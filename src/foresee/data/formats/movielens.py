"""MovieLens: ratings, with what is known about users and films joined to them.

Three layouts are recognised by the file with the ratings, the others being its neighbours:

    NAME.inter    + NAME.user, NAME.item     tabs and typed headers (user_id:token, class:token_seq)
    ratings.dat   + users.dat, movies.dat    `::` between cells, no header, Latin-1 (ml-1m, ml-10m)
    ratings.csv   + movies.csv               commas and headers (ml-20m and later)

A rating of at least the threshold is a positive sample, or the rating itself is what is learned. Genres are a bag.
Titles are left out. Neighbours that are missing are left out too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from foresee.data.columns import Categorical, Columns, Label
from foresee.data.formats.csv import Csv
from foresee.data.formats.delimited import Join, Layout, header_names
from foresee.data.source import RawChunk, ReportBadLine, SplitMode, check_files
from foresee.errors import DataError
from foresee.io.urls import Place, beside, name_of, shown, size_of

_TITLES = ("movie_title", "title")


@dataclass(frozen=True, slots=True, kw_only=True)
class MovieLens:
    """MovieLens ratings (NAME.inter, ratings.dat or ratings.csv), with what is known about users and films.

    foresee prepare movielens ml-100k.inter --out data/ml-100k
    """

    name: ClassVar[str] = "movielens"
    default_split: ClassVar[SplitMode] = "random"

    files: tuple[Place, ...]
    """The file of ratings, alone."""
    label_threshold: Annotated[float, "A rating of at least this is positive."] = 4.0
    learn: Annotated[
        Literal["click", "rating", "both"],
        "What is learned: whether the rating is at least the threshold (click), the rating as a number, or both.",
    ] = "click"
    pooling: Annotated[Literal["sum", "mean"], "How the vectors of a film's genres become one."] = "mean"

    @property
    def columns(self) -> Columns:
        return self._source().columns

    def chunks(self, report: ReportBadLine) -> Iterator[RawChunk]:
        return self._source().chunks(report)

    def _source(self) -> Csv:
        if len(self.files) != 1:
            raise DataError(f"MovieLens needs one file of ratings, {len(self.files)} are given; name that one.")
        check_files(self.files)
        file = self.files[0]
        kind = name_of(file).removesuffix(".gz").rsplit(".", 1)[-1]
        if kind not in _LAYOUTS:
            raise DataError(
                f"{shown(file)}: a MovieLens file of ratings ends in .inter, .dat or .csv; name such a file, "
                "or use the csv or parquet format."
            )
        return _LAYOUTS[kind](self, file)


def _inter(options: MovieLens, file: Place) -> Csv:
    layout = Layout(separator="\t", header=True)
    stem = name_of(file).removesuffix(".gz").removesuffix(".inter")
    own = _untyped(header_names(file, layout))
    joins, categorical = [], [Categorical(name="user_id"), Categorical(name="item_id")]
    for ending, key in (("user", "user_id"), ("item", "item_id")):
        side = _neighbour(file, f"{stem}.{ending}")
        if side is None:
            continue
        typed = header_names(side, layout)
        columns = [name for name in typed if _untyped((name,))[0] not in (key, *_TITLES)]
        names = _untyped(typed)
        joins.append(
            Join(
                file=side,
                key=key,
                columns=_untyped(tuple(columns)),
                layout=Layout(separator="\t", header=True, names=names),
            )
        )
        categorical += [_typed_column(name, options) for name in columns]
    return Csv(
        files=(file,),
        columns=_columns(options, "rating", "timestamp", categorical),
        separator="\t",
        quoted=False,
        column_names=own,
        joins=tuple(joins),
    )


def _typed_column(typed: str, options: MovieLens) -> Categorical:
    name, _, kind = typed.partition(":")
    if kind.endswith("_seq"):
        return Categorical(name=name, pooling=options.pooling, separator=" ")
    return Categorical(name=name)


def _untyped(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.partition(":")[0] for name in names)


def _dat(options: MovieLens, file: Place) -> Csv:
    joins, categorical = [], [Categorical(name="user_id"), Categorical(name="movie_id")]
    users, movies = _neighbour(file, "users.dat"), _neighbour(file, "movies.dat")
    if users is not None:
        names: tuple[str, ...] = ("user_id", "gender", "age", "occupation", "zip_code")
        layout = Layout(separator="::", names=names, encoding="latin-1")
        joins.append(Join(file=users, key="user_id", columns=names[1:], layout=layout))
        categorical += [Categorical(name=name) for name in names[1:]]
    if movies is not None:
        layout = Layout(separator="::", names=("movie_id", "title", "genres"), encoding="latin-1")
        joins.append(Join(file=movies, key="movie_id", columns=("genres",), layout=layout))
        categorical.append(Categorical(name="genres", pooling=options.pooling, separator="|"))
    return Csv(
        files=(file,),
        columns=_columns(options, "rating", "timestamp", categorical),
        separator="::",
        quoted=False,
        header=False,
        column_names=("user_id", "movie_id", "rating", "timestamp"),
        joins=tuple(joins),
    )


def _csv(options: MovieLens, file: Place) -> Csv:
    joins, categorical = [], [Categorical(name="userId"), Categorical(name="movieId")]
    movies = _neighbour(file, "movies.csv")
    if movies is not None:
        layout = Layout(separator=",", quoted=True, header=True)
        joins.append(Join(file=movies, key="movieId", columns=("genres",), layout=layout))
        categorical.append(Categorical(name="genres", pooling=options.pooling, separator="|"))
    columns = _columns(options, "rating", "timestamp", categorical)
    return Csv(files=(file,), columns=columns, joins=tuple(joins))


def _columns(options: MovieLens, label: str, time: str, categorical: list[Categorical]) -> Columns:
    if options.learn == "click":
        return Columns(label=label, categorical=tuple(categorical), time=time, label_threshold=options.label_threshold)
    liked = Label(name="liked", column=label, threshold=options.label_threshold)
    labels = (Label(name="rating", column=label, kind="number"),)
    return Columns(
        labels=(liked, *labels) if options.learn == "both" else labels, categorical=tuple(categorical), time=time
    )


def _neighbour(file: Place, name: str) -> Place | None:
    candidates = (beside(file, name), beside(file, f"{name}.gz"))
    return next((it for it in candidates if size_of(it) is not None), None)


_LAYOUTS = {"inter": _inter, "dat": _dat, "csv": _csv}
