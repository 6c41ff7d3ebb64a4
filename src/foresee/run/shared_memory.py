"""Moves the tensors of an item out of shared memory.

Worker processes of a `DataLoader` hand tensors over in shared memory, and each holds an open file. A plain loop has few
such batches at a time; hundreds that are read ahead exceed the limit on open files.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

DEPTH_MAX = 5
"""How deep tensors are looked for: an item may refer to its dataset, which is not looked through."""


def private(item: Any) -> Any:
    """Return the item with copies of the tensors that are in shared memory; the same object if there are none.

    Tensors are found in tuples, lists and dicts, and in attributes of other objects, such as batches and
    KeyedJaggedTensors. The item given is not changed: its tensors may be shared on purpose.

    Args:
        item: What a loader gave.
    """
    return _private(item, set())


def _private(item: Any, inside: set[int]) -> Any:
    if isinstance(item, torch.Tensor):
        is_shared = item.device.type == "cpu" and item.is_shared()  # type: ignore[no-untyped-call]
        return item.clone() if is_shared else item
    if id(item) in inside or len(inside) == DEPTH_MAX:
        return item
    inside = inside | {id(item)}
    if isinstance(item, dict):
        return _rebuilt(item, {key: _private(value, inside) for key, value in item.items()})
    if isinstance(item, list | tuple):
        if not item or isinstance(item[0], int | float | str | bytes):
            return item  # a long list of ids is not looked through
        parts = [_private(value, inside) for value in item]
        if all(new is old for new, old in zip(parts, item, strict=True)):
            return item
        if isinstance(item, list):
            return parts
        return type(item)._make(parts) if hasattr(item, "_make") else tuple(parts)
    return _object(item, inside)


def _rebuilt(item: dict[Any, Any], parts: dict[Any, Any]) -> Any:
    if all(parts[key] is value for key, value in item.items()):
        return item
    rebuilt = copy.copy(item)
    rebuilt.update(parts)
    return rebuilt


def _object(item: Any, inside: set[int]) -> Any:
    """Objects of classes that are not the language's own, attribute by attribute."""
    if isinstance(item, type) or callable(item):
        return item
    names = [*getattr(item, "__dict__", ()), *(name for kind in type(item).__mro__ for name in _slots(kind))]
    attributes = {name: getattr(item, name) for name in names if hasattr(item, name)}
    moved = {name: new for name, old in attributes.items() if (new := _private(old, inside)) is not old}
    if not moved:
        return item
    rebuilt = copy.copy(item)
    for name, value in moved.items():
        object.__setattr__(rebuilt, name, value)  # also where the class is frozen
    return rebuilt


def _slots(kind: type) -> list[str]:
    slots = kind.__dict__.get("__slots__", ())
    return [slots] if isinstance(slots, str) else [it for it in slots if not it.startswith("__")]
