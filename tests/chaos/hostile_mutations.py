"""Good bytes in, bad bytes out: cuts, flips, other versions, other kinds, numbers without end, nesting without end.

Everything follows from the generator that is passed in, so a case is its seed and number.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 7, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**40, -(10**40),
    0.5, -0.0, 1e-320, 1e308, -1e308, "", "x", "0", "-1", "nan", "../../etc/passwd", "/dev/zero", "\x00", "ü" * 50,
    "a" * 5000, [], {}, [[]], [None], {"": None}, {"a": {"a": {}}}, [1] * 2000,
)  # fmt: skip
RAW_JSON = (
    b"", b"null", b"[]", b"{}", b"0", b'""', b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" * 5000, b"[" * 20_000,
    b'{"a":' * 20_000, b"[" * 20_000 + b"]" * 20_000, b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b"{}\x00", b"{} {}",
    b'{"a":1,"a":2}', b"{'a': 1}", b"\x00" * 100,
)  # fmt: skip


def mutate(rng: Rng, content: bytes) -> bytes:
    """One way in which bytes can be wrong."""
    if not content:
        return rng.bytes(int(rng.integers(0, 64)))
    return _BYTE_WAYS[int(rng.integers(len(_BYTE_WAYS)))](rng, content)


def mutate_json(rng: Rng, content: bytes) -> bytes:
    """As `mutate`, and wrong values in the right places: most of what passes a parser."""
    way = rng.random()
    if way < 0.25:
        return mutate(rng, content)
    if way < 0.3:
        return RAW_JSON[int(rng.integers(len(RAW_JSON)))]
    document = json.loads(content)
    for _ in range(int(rng.integers(1, 3))):
        document = _changed(rng, document)
    return json.dumps(document).encode()


def _changed(rng: Rng, document: Any) -> Any:
    """The document with one node of it replaced, removed, renamed or doubled."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    if isinstance(document, dict | list):
        walk(document)
    if not places or rng.random() < 0.02:
        return _value(rng)
    node, key = places[int(rng.integers(len(places)))]
    way = rng.random()
    if way < 0.75:
        node[key] = _value(rng) if rng.random() < 0.8 else _near(rng, node[key])
    elif way < 0.85:
        del node[key]
    elif isinstance(node, dict):
        node[f"{key}x"] = node.pop(key) if way < 0.95 else node[key]
    else:
        node.append(copy.deepcopy(node[key]))
    return document


def _value(rng: Rng) -> Any:
    return copy.deepcopy(VALUES[int(rng.integers(len(VALUES)))])


def _near(rng: Rng, value: Any) -> Any:
    """A value of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return value + int(rng.integers(-2, 3)) * int(10 ** rng.integers(0, 12))
    if isinstance(value, str):
        return value[: int(rng.integers(0, len(value) + 1))]
    return value[:-1] if isinstance(value, list) else {}


def _cut(rng: Rng, content: bytes) -> bytes:
    return content[: int(rng.integers(0, len(content)))]


def _flip(rng: Rng, content: bytes) -> bytes:
    out = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 1, 2, 8]))):
        out[int(rng.integers(len(out)))] ^= 1 << int(rng.integers(8))
    return bytes(out)


def _overwrite(rng: Rng, content: bytes) -> bytes:
    begin = int(rng.integers(len(content)))
    piece = rng.bytes(int(rng.integers(1, 32))) if rng.random() < 0.6 else bytes([int(rng.choice([0, 255]))]) * 8
    return bytes((content[:begin] + piece + content[begin + len(piece) :])[: max(len(content), begin + 1)])


def _number(rng: Rng, content: bytes) -> bytes:
    """A hostile number at any place: lengths and offsets are somewhere."""
    number = int(rng.choice([0, 1, -1, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63)]))
    width = int(rng.choice([4, 8]))
    begin = int(rng.integers(max(1, len(content) - width)))
    piece = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    return content[:begin] + piece + content[begin + width :]


def _insert(rng: Rng, content: bytes) -> bytes:
    begin = int(rng.integers(len(content) + 1))
    return content[:begin] + bytes(rng.bytes(int(rng.integers(1, 64)))) + content[begin:]


def _remove(rng: Rng, content: bytes) -> bytes:
    begin = int(rng.integers(len(content)))
    return content[:begin] + content[begin + int(rng.integers(1, 64)) :]


def _double(rng: Rng, content: bytes) -> bytes:
    begin, end = sorted(int(it) for it in rng.integers(0, len(content) + 1, 2))
    return content[:end] + content[begin:]


def _noise(rng: Rng, content: bytes) -> bytes:
    return bytes(rng.bytes(int(rng.integers(0, 2 * len(content) + 1))))


def _empty(rng: Rng, content: bytes) -> bytes:
    return b""


_BYTE_WAYS: tuple[Callable[[Rng, bytes], bytes], ...] = (
    _cut, _cut, _flip, _flip, _flip, _overwrite, _number, _number, _insert, _remove, _double, _noise, _empty,
)  # fmt: skip
