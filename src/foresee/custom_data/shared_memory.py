"""Moves the tensors of an item out of shared memory.

Worker processes of a `DataLoader` hand tensors over in shared memory, and each holds an open file. A plain loop has few
such batches at a time; hundreds that are read ahead exceed the limit on open files.
"""

from __future__ import annotations

import copy
from typing import Any

import torch


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
    if id(item) in inside:
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
    attributes = getattr(item, "__dict__", None)
    if not isinstance(attributes, dict) or isinstance(item, type) or callable(item):
        return item
    parts = {name: _private(value, inside) for name, value in attributes.items()}
    if all(parts[name] is value for name, value in attributes.items()):
        return item
    rebuilt = copy.copy(item)
    rebuilt.__dict__.update(parts)
    return rebuilt
