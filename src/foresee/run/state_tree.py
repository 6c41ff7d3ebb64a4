"""What a `state_dict` holds, as JSON and named tensors, and back with the same types.

In: nested dicts, lists and tuples of numbers, texts, tensors and arrays. Out: JSON values in which a tensor is the name
of one, to be kept as safetensors. What JSON has no word for stands in an object with the key "$": a tuple, a dict with
other keys than texts, a number that is not finite. Nothing is pickled; whatever cannot be written so is refused by its
path, before anything is on the disk.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from foresee.errors import UsageError
from foresee.io import bounded_json as json_fields

TAG, CONTENT = "$", "of"
DEPTH_MAX = 64
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


@runtime_checkable
class Stateful(Protocol):
    """Anything that can say what it is at and be brought back there: a schedule, a counter, a second model."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


def pack(value: Any, path: str, tensors: dict[str, Tensor], depth: int = 0) -> Any:
    """The JSON of a value; its tensors go into `tensors`, named by where they are."""
    if depth > DEPTH_MAX:
        raise UsageError(f"{path.split('.')[0]}: its state is nested more than {DEPTH_MAX} deep; keep less of it")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {TAG: "float", CONTENT: str(value)}
    if isinstance(value, Tensor | np.ndarray):
        return _pack_tensor(value, path, tensors)
    if isinstance(value, list | tuple):
        items = [pack(item, f"{path}.{index}", tensors, depth + 1) for index, item in enumerate(value)]
        return items if isinstance(value, list) else {TAG: "tuple", CONTENT: items}
    if isinstance(value, dict):
        return _pack_dict(value, path, tensors, depth)
    raise UsageError(
        f"{path} is a {type(value).__name__}, which cannot be kept; let its state_dict give numbers, texts, lists, "
        "dicts and tensors"
    )


def _pack_tensor(value: Tensor | np.ndarray[Any, Any], path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    kind = "tensor" if isinstance(value, Tensor) else "array"
    if path in tensors:
        raise UsageError(f"{path} stands twice in what is to be kept; give its parts other names")
    try:
        tensors[path] = value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
    except TypeError:
        raise UsageError(f"{path} is an array of {value.dtype}, which cannot be kept; keep numbers") from None
    return {TAG: kind, CONTENT: path}


def _pack_dict(value: dict[Any, Any], path: str, tensors: dict[str, Tensor], depth: int) -> dict[str, Any]:
    items = [(key, pack(item, f"{path}.{key}", tensors, depth + 1)) for key, item in value.items()]
    if all(isinstance(key, str) and key != TAG for key in value) and not isinstance(value, Counter):
        return dict(items)
    kind = "counter" if isinstance(value, Counter) else "dict"
    return {TAG: kind, CONTENT: [[pack(key, path, {}, depth + 1), item] for key, item in items]}


def unpack(content: Any, tensors: dict[str, Tensor], depth: int = 0) -> Any:
    """The value that `pack` was given; ValueError for anything that it has not made."""
    if depth > 2 * DEPTH_MAX:
        raise ValueError("it is nested too deeply")
    if isinstance(content, list):
        return [unpack(item, tensors, depth + 1) for item in content]
    if not isinstance(content, dict):
        return content
    if TAG not in content:
        return {key: unpack(item, tensors, depth + 1) for key, item in content.items()}
    kind = json_fields.text_of(json_fields.of_fields(content, (TAG, CONTENT)), TAG)
    if kind in ("tensor", "array"):
        tensor = _tensor(json_fields.text_of(content, CONTENT), tensors)
        return tensor if kind == "tensor" else tensor.numpy()
    if kind == "float":
        return _NOT_FINITE[json_fields.text_of(content, CONTENT)]
    items = unpack(content.get(CONTENT), tensors, depth + 1)
    if not isinstance(items, list):
        raise ValueError(f"{json_fields.shown(kind)} has no list")
    return _MADE_FROM_LIST[kind](items)


def _tensor(name: str, tensors: dict[str, Tensor]) -> Tensor:
    if name not in tensors:
        raise ValueError(f"there is no tensor {json_fields.shown(name)}")
    return tensors[name]


_MADE_FROM_LIST: dict[str, Any] = {
    "tuple": tuple,
    "dict": lambda items: {key: item for key, item in items},  # noqa: C416 - pairs only, or a ValueError
    "counter": lambda items: Counter({key: item for key, item in items}),  # noqa: C416
}
