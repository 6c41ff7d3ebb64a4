"""JSON from files and wires that others may have written: parsed within bounds, and its fields taken by kind and range.

In: bytes or text, then keys. Out: values of the kind that was asked for, or a ValueError in a few words for the
caller's sentence; never another exception, whatever the bytes are: too long, nested too deeply, numbers without end,
NaN, keys that stand twice. Nothing is ever executed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, NoReturn

BYTES_MAX = 64 << 20
"""No document of ours is near this size."""
SMALL_MAX = (1 << 31) - 1
"""The largest step, version or count that our arrays hold."""
SHOWN_CHARACTERS = 60
LARGE_MAX = (1 << 62) - 1
"""The largest row id or number of bytes."""


def parse_object(text: bytes | str) -> dict[str, Any]:
    """The JSON object in a text."""
    content = parse(text)
    if not isinstance(content, dict):
        raise ValueError(f"it is {_kind(content)}, not an object")
    return content


def parse(text: bytes | str) -> Any:
    """Any JSON value."""
    if len(text) > BYTES_MAX:
        raise ValueError(f"it has {len(text):,} bytes, more than {BYTES_MAX:,}")
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def whole(content: dict[str, Any], key: str, low: int = 0, high: int = SMALL_MAX) -> int:
    """A whole number within bounds."""
    value = content.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{key} is {_kind(value)}, not a whole number")
    if not low <= value <= high:
        raise ValueError(f"{key} is not between {low} and {high}")
    return value


def number(content: dict[str, Any], key: str, low: float, high: float) -> float:
    """A finite number within bounds."""
    value = content.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{key} is {_kind(value)}, not a number")
    if not (low <= value <= high and math.isfinite(value)):
        raise ValueError(f"{key} is not between {low} and {high}")
    return float(value)


def text_of(content: dict[str, Any], key: str, characters_max: int = 4096) -> str:
    value = content.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is {_kind(value)}, not a text")
    if len(value) > characters_max:
        raise ValueError(f"{key} has {len(value):,} characters, more than {characters_max:,}")
    return value


def objects(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """A list of objects."""
    value = content.get(key)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise ValueError(f"{key} is {_kind(value)}, not a list of objects")
    return value


def object_of(content: dict[str, Any], key: str) -> dict[str, Any]:
    value = content.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{key} is {_kind(value)}, not an object")
    return value


def texts(content: dict[str, Any], key: str) -> list[str]:
    value = content.get(key)
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ValueError(f"{key} is {_kind(value)}, not a list of texts")
    return value


def file_name(content: dict[str, Any], key: str) -> str:
    """The name of a file in the same folder: a document of a stranger must not lead anywhere else."""
    name = text_of(content, key, 255)
    if not name or name in (".", "..") or any(character in name for character in "/\\\0"):
        raise ValueError(f"{key} is {shown(name)}, not the name of a file in this folder")
    return name


def of_fields(content: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The object, if it has these fields and no others."""
    if content.keys() - set(names):
        raise ValueError(f"{shown(min(content.keys() - set(names)))} is no field here")
    return content


def shown(value: Any) -> str:
    """A value for a sentence, however long it is."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def _kind(value: Any) -> str:
    names = {type(None): "missing", bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return names.get(type(value), "a list" if isinstance(value, list) else "an object")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key stands twice")
    return content
