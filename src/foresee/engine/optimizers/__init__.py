"""The row optimisers: each is one file with its numbers, its numba step and its torch step.

In: a name, as in `tables.optimizer.name` of a run file. Out: the class. One of your own keeps the contract `Optimizer`
and is made known by `register_optimizer(MyOptimizer)`, or by an entry point of the group `foresee.optimizers`; it then
trains like ours, with the fused kernels and on any torch device.

    contract.py            what an optimiser is
    sgd.py adagrad.py rowwise_adagrad.py lazy_adam.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foresee.engine.optimizers.adagrad import Adagrad
from foresee.engine.optimizers.contract import Optimizer, Schedule, at_step, is_row_optimizer, numbers_of
from foresee.engine.optimizers.lazy_adam import LazyAdam
from foresee.engine.optimizers.rowwise_adagrad import RowwiseAdagrad
from foresee.engine.optimizers.sgd import SGD
from foresee.errors import ConfigError
from foresee.registry import Registry

__all__ = [
    "OPTIMIZERS",
    "SGD",
    "Adagrad",
    "LazyAdam",
    "Optimizer",
    "RowwiseAdagrad",
    "Schedule",
    "at_step",
    "check_row_optimizer",
    "make_optimizer",
    "register_optimizer",
]

NEEDED = ("elementwise", "state_width", "step_rows", "step_tensors")
OURS = (SGD, Adagrad, RowwiseAdagrad, LazyAdam)


def _check_class(name: str, kind: object) -> None:
    missing = [it for it in NEEDED if not hasattr(kind, it)]
    if not isinstance(kind, type) or "lr" not in numbers_of(kind) or missing:
        raise ConfigError(
            f"the row optimiser {name!r} is {kind!r}, which lacks {', '.join(missing) or 'a field lr'}; give a frozen "
            "dataclass that keeps the contract foresee.Optimizer"
        )
    if getattr(kind, "name", None) != name:
        raise ConfigError(f"the row optimiser {name!r} calls itself {getattr(kind, 'name', None)!r}; use one name")


OPTIMIZERS: Registry[Any] = Registry("row optimiser", "foresee.optimizers", _check_class)
"""Classes by their names."""
for _ours in OURS:
    OPTIMIZERS.add(_ours.name, _ours)


def register_optimizer(kind: type[Any]) -> None:
    """Makes a row optimiser known in this process, by its name.

    Args:
        kind: A frozen dataclass that keeps the contract `Optimizer`.
    """
    OPTIMIZERS.add(getattr(kind, "name", ""), kind)


def make_optimizer(name: str, numbers: Mapping[str, Any], key: str = "optimizer") -> Optimizer:
    """The optimiser of a name with these numbers; `key` stands in front of sentences about it."""
    kind = OPTIMIZERS.find(name, f"{key}.name")
    takes = numbers_of(kind)
    for number in numbers:
        if number not in takes:
            raise ConfigError(f"{key}.{number}: {name} has no such number; it takes {', '.join(takes)}")
    made: Optimizer = kind(**numbers)
    return made


def check_row_optimizer(optimizer: object) -> None:
    """Refuses what cannot update rows, such as an optimiser of torch."""
    if not is_row_optimizer(optimizer):
        kind = optimizer if isinstance(optimizer, type) else type(optimizer)
        raise ConfigError(
            f"optimizer is {kind.__module__}.{kind.__qualname__}, which cannot update rows of tables; give one of "
            f"{', '.join(f'foresee.{it.__name__}(lr=...)' for it in OURS)}, or one of your own (foresee.Optimizer)"
        )
