"""Columns as they are typed: names with colons, settings in any order, and sentences for what is neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from foresee.data import Categorical, Dense
from foresee.data.columns import spelled
from foresee.errors import DataError
from foresee.tools.cli.columns import parse_categorical, parse_dense, parse_join, parse_label, split_names


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("a", Categorical(name="a")),
        ("a:mean", Categorical(name="a", pooling="mean")),
        ("a:mean:|", Categorical(name="a", pooling="mean", separator="|")),
        ("a:mean:separator=|", Categorical(name="a", pooling="mean", separator="|")),
        ("a:separator==:sum", Categorical(name="a", pooling="sum", separator="=")),
        (r"a:sum:separator=\t", Categorical(name="a", pooling="sum", separator="\t")),
        ("a:sum:separator=:", Categorical(name="a", pooling="sum", separator=":")),
        (r"a:separator=\:\::sum", Categorical(name="a", pooling="sum", separator="::")),
        ("a:mean:separator=x=", Categorical(name="a", pooling="mean", separator="x=")),
        ("a:mean:=", Categorical(name="a", pooling="mean", separator="=")),
        ("a:mean::", Categorical(name="a", pooling="mean", separator=":")),
        (r"a:sum:\:", Categorical(name="a", pooling="sum", separator=":")),
        (r"a:sum:\t", Categorical(name="a", pooling="sum", separator="\t")),
        ("a:sum: ", Categorical(name="a", pooling="sum", separator=" ")),
        (r"a\:token", Categorical(name="a:token")),
        ("a:table=t:mean:, ", Categorical(name="a", table="t", pooling="mean", separator=", ")),
        ("a:min_count=3:missing=-:missing=?", Categorical(name="a", min_count=3, missing_markers=("-", "?"))),
        ("a:hash_buckets=9", Categorical(name="a", hash_buckets=9)),
        ("a:num_rows=9", Categorical(name="a", num_rows=9)),
    ],
)
def test_categorical_columns(text: str, column: Categorical) -> None:
    assert parse_categorical(text) == column


def test_dense_columns() -> None:
    assert parse_dense("x") == Dense(name="x")
    column = parse_dense(r"x\:y:log1p:empty=-1.5:missing=n/a", ("NULL",))
    assert column == Dense(name="x:y", transform="log1p", missing=-1.5, missing_markers=("NULL", "n/a"))


def test_joins() -> None:
    join = parse_join(r"a/b.csv:item=id:genres,x\,y:separator=\t:quoted=no:names=id,genres,x\,y")
    assert (join.file, join.key, join.file_key, join.columns) == (Path("a/b.csv"), "item", "id", ("genres", "x,y"))
    assert (join.layout.separator, join.layout.quoted, join.layout.header) == ("\t", False, False)
    assert join.layout.names == split_names(r"id,genres,x\,y") == ("id", "genres", "x,y")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a:median", "'median' is no pooling; use one, sum or mean"),
        ("a:b:c", "a colon of the name itself is written \\:"),
        ("a:mean:b:c", "'b:c' is more than a column can have"),
        ("a:min_count=few", "min_count=few is no number"),
        ("a:min_count=0", "min_count=0 is too small"),
        ("a:mean:seperator=|", "there is no setting 'seperator'; write NAME[:mean|:sum][:separator=TEXT]"),
        ("a:mean:min-count=3", "there is no setting 'min-count'"),
        ("a:mean:|:separator=,", "has two separators"),
        ("a:mean:separator=,:separator=|", "separator is given twice"),
        ("a:mean:separator=", "a separator ('') needs characters"),
        ("a:separator=|", "needs characters and pooling sum or mean"),
        ("a:min_count=3:min_count=4", "min_count is given twice; write it once"),
    ],
)
def test_what_is_no_column_is_a_sentence(text: str, words: str) -> None:
    with pytest.raises(DataError) as caught:
        parse_categorical(text)
    assert words in str(caught.value)


def test_settings_that_no_column_can_have_are_errors() -> None:
    """Each of them was taken for something else without a message."""
    with pytest.raises(DataError, match="threshold=nan is no number"):
        parse_label("rating:threshold=nan")
    with pytest.raises(DataError, match="threshold is given twice"):
        parse_label("rating:threshold=3:threshold=4")
    with pytest.raises(DataError, match="empty=inf is no number"):
        parse_dense("x:empty=inf")
    with pytest.raises(DataError, match="quoted=false is neither yes nor no"):
        parse_join("films.csv:item:genre:quoted=false")


def test_what_messages_spell_can_be_typed() -> None:
    assert spelled(Dense(name="price (€)", transform="log1p"), "empty=0") == "'price (€):log1p:empty=0'"
    assert parse_dense(spelled(Dense(name="a:b"), "empty=0").strip("'")) == Dense(name="a:b", missing=0.0)
    assert spelled(Categorical(name="tags"), "mean") == "tags:mean"


def test_a_join_without_columns_is_a_sentence() -> None:
    with pytest.raises(DataError, match="does not say which columns to join"):
        parse_join("films.csv")
