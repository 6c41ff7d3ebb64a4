r"""Columns as they are typed on a command line: a name, then settings, with colons between.

    --label        NAME[:number|:classes=A|B|C][:threshold=NUMBER][:column=COLUMN][:optional]
    --dense        NAME[:log1p|:standard][:empty=NUMBER][:missing=TEXT]
    --categorical  NAME[:mean|:sum][:separator=TEXT][:table=NAME][:min_count=N][:hash_buckets=N][:num_rows=N]
                   [:missing=TEXT]
    --join         FILE:KEY[=KEY_THERE]:COLUMN,COLUMN[:separator=TEXT][:encoding=NAME][:names=A,B,C][:quoted=no]

In: one text. Out: a `Label`, `Dense`, `Categorical` or `Join`, or an error. `tags:mean:|` is short for
`tags:mean:separator=|`. A colon (in lists a comma) that belongs
to a name is written \: (or \,); \t is a tab. Pure: no file is touched.
"""

from __future__ import annotations

import math
import re
from typing import Any, get_args

from foresee.data.columns import Categorical, Dense, Label, Transform
from foresee.data.formats.delimited import Join, Layout, tabbed
from foresee.errors import DataError
from foresee.io.file_systems import is_url
from foresee.io.urls import place

LABEL_SYNTAX = "NAME[:number|:classes=A|B|C][:threshold=NUMBER][:column=COLUMN][:optional]"

DENSE_SYNTAX = "NAME[:log1p|:standard][:empty=NUMBER][:missing=TEXT]"

CATEGORICAL_SYNTAX = (
    "NAME[:mean|:sum][:separator=TEXT][:table=NAME][:min_count=N][:hash_buckets=N][:num_rows=N][:missing=TEXT]"
)

CLASSES_MAX = 100_000

_SETTING = re.compile(r"[A-Za-z_-]{2,}=")
"""What looks like a setting; as a separator it is almost certainly a mistake."""

JOIN_SYNTAX = "FILE:KEY[=KEY_THERE]:COLUMN,COLUMN[:separator=TEXT][:encoding=NAME][:names=A,B,C][:quoted=no]"


def parse_label(text: str) -> Label:
    """Something to learn: a click, a number (`rating:number`), or one of several classes (`device:classes=a|b|c`).

    Classes may also be the whole numbers below one: `classes=5` are 0 to 4.
    """
    words = _cut(text, ":")
    optional = "optional" in words[1:]
    words = [words[0], *(word for word in words[1:] if word != "optional")]
    settings = _settings(text, words, {"threshold": _finite, "column": str, "classes": str}, LABEL_SYNTAX)
    kind = _one(text, words[1:], LABEL_SYNTAX) or "binary"
    if kind not in ("binary", "number"):
        raise DataError(f"label {words[0]}: {kind!r} is not known; use {LABEL_SYNTAX} ({_colon_hint(text)}).")
    classes = next(iter(settings["classes"]), None)
    return Label(
        name=words[0],
        kind="class" if classes is not None else kind,  # type: ignore[arg-type]
        threshold=next(iter(settings["threshold"]), None),
        column=next(iter(settings["column"]), None),
        classes=() if classes is None else _classes(classes),
        optional=optional,
    )


def _classes(text: str) -> tuple[str, ...]:
    if "|" not in text and text.isdigit() and int(text) <= CLASSES_MAX:
        return tuple(map(str, range(int(text))))
    return tuple(text.split("|"))


def parse_dense(text: str, missing: tuple[str, ...] = ()) -> Dense:
    """A column of numbers; `missing` are markers of all columns."""
    words = _cut(text, ":")
    settings = _settings(text, words, {"empty": _finite, "missing": str}, DENSE_SYNTAX)
    transform = _one(text, words[1:], DENSE_SYNTAX) or "none"
    if transform not in get_args(Transform):
        known = ", ".join(get_args(Transform))
        raise DataError(
            f"column {words[0]}: transform {transform!r} is not known; use one of {known} ({_colon_hint(text)})."
        )
    return Dense(
        name=words[0],
        transform=transform,  # type: ignore[arg-type]
        missing=next(iter(settings["empty"]), None),
        missing_markers=(*missing, *settings["missing"]),
    )


def parse_categorical(text: str, missing: tuple[str, ...] = ()) -> Categorical:
    """A column of values; `missing` are markers of all columns."""
    words = _cut(f"{text[:-1]}\\:" if text.endswith(("::", "=:")) else text, ":")  # the separator may be a colon
    whole = {"min_count": int, "hash_buckets": int, "num_rows": int}
    settings = _settings(text, words, {**whole, "table": str, "separator": str, "missing": str}, CATEGORICAL_SYNTAX)
    pooling = words.pop(1) if len(words) > 1 else "one"
    if pooling not in ("one", "sum", "mean"):
        raise DataError(
            f"column {words[0]}: {pooling!r} is no pooling; use one, sum or mean, or a setting of {CATEGORICAL_SYNTAX} "
            f"({_colon_hint(text)})."
        )
    short = _one(text, words[1:], CATEGORICAL_SYNTAX)
    if _SETTING.match(short):
        raise DataError(
            f"{text!r}: there is no setting {short.partition('=')[0]!r}; write {CATEGORICAL_SYNTAX}, with "
            f"separator={short} if this text stands between values."
        )
    if short and settings["separator"]:
        raise DataError(f"{text!r} has two separators; write one of them.")
    separator = settings["separator"][0] if settings["separator"] else short or None
    given: dict[str, Any] = {key: settings[key][0] for key in (*whole, "table") if settings[key]}
    return Categorical(
        name=words[0],
        pooling=pooling,  # type: ignore[arg-type]
        separator=None if separator is None else tabbed(separator),
        missing_markers=(*missing, *settings["missing"]),
        **given,
    )


def parse_join(text: str) -> Join:
    """Columns of a second file."""
    words = _cut(text, ":")
    if is_url(text):
        words[:2] = [":".join(words[:2])]
    known = {"separator": str, "encoding": str, "names": str, "quoted": str}
    settings = {key: it[-1] for key, it in _settings(text, words, known, JOIN_SYNTAX).items() if it}
    if len(words) != 3 or not all(words):
        hint = " (of a URL, colons after the first are written \\:)" if is_url(text) else ""
        raise DataError(f"{text!r} does not say which columns to join by which key; write {JOIN_SYNTAX}{hint}.")
    if settings.get("quoted", "yes") not in ("yes", "no"):
        raise DataError(f"{text!r}: quoted={settings['quoted']} is neither yes nor no; write {JOIN_SYNTAX}.")
    file, keys, columns = words
    key, _, there = keys.partition("=")
    names = split_names(settings["names"]) if "names" in settings else None
    layout = Layout(
        separator=tabbed(settings.get("separator", ",")),
        quoted=settings.get("quoted", "yes") != "no",
        header=names is None,
        names=names,
        encoding=settings.get("encoding", "utf-8"),
    )
    return Join(file=place(file), key=key, file_key=there or None, columns=split_names(columns), layout=layout)


def split_names(text: str) -> tuple[str, ...]:
    r"""Names with commas between; a comma of a name is written \,."""
    return tuple(_cut(text, ","))


def _cut(text: str, mark: str) -> list[str]:
    """Pieces between marks that have no backslash before them."""
    return [piece.replace(f"\\{mark}", mark) for piece in re.split(rf"(?<!\\){mark}", text)]


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _settings(text: str, words: list[str], known: dict[str, Any], syntax: str) -> dict[str, list[Any]]:
    """Take `key=value` out of the words after the first. Only `missing` may be given several times."""
    found: dict[str, list[Any]] = {key: [] for key in known}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if equals and key in known:
            try:
                found[key].append(known[key](value))
            except ValueError:
                raise DataError(f"{text!r}: {key}={value} is no number; write {syntax}.") from None
            if len(found[key]) > 1 and key != "missing":
                raise DataError(f"{text!r}: {key} is given twice; write it once.")
            words.remove(word)
    return found


def _one(text: str, words: list[str], syntax: str) -> str:
    if len(words) > 1:
        raise DataError(f"{text!r}: {':'.join(words)!r} is more than a column can have; write {syntax}.")
    return words[0] if words else ""


def _colon_hint(text: str) -> str:
    return "a colon of the name itself is written \\:" if ":" in text else ""
