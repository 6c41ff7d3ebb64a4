"""Models, optimisers and learning rate schedules, by the names and options that a run file gives them.

In: `model`, `train.optimizer` and `train.schedule`. Out: an nn.Module and the number of columns its rows need, an
optimiser of `torch.optim`, and a `Schedule` that is told of every step. Names of torch may have any spelling: AdamW,
adamw, cosine_annealing_lr. What cannot work in this loop is refused with a sentence that names the key.

A model is a name of `foresee.models.MODELS` or "package.module:Class", which is looked for as Python does, then in the
folder of the run file, then in the current one, and called as `Class(shape, dim, **options)`; without `row_width(dim)`
its rows are `dim` wide. Where tables have several widths, `dim` is a tuple with that of each feature. An exception
inside that constructor keeps its traceback: only that shows where to look.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from foresee.errors import ConfigError
from foresee.models import MODELS, Shape
from foresee.models.contract import Dims
from foresee.run.config import DenseOptimizerConfig, ScheduleConfig

REFUSED_OPTIMIZERS = {
    "LBFGS": "it computes the loss several times a step, and rows are updated once",
    "SparseAdam": "it is for sparse gradients, and those of the dense part are dense; rows learn by tables.optimizer",
    "Muon": "it takes matrices only, and a model has biases too",
}
REFUSED_SCHEDULES = {
    "LambdaLR": "it needs a function of Python",
    "MultiplicativeLR": "it needs a function of Python",
    "ReduceLROnPlateau": "it follows evaluations and not steps; train.best.patience stops when they get no better",
}
OWN_OPTIONS = ("params", "lr", "weight_decay", "optimizer", "last_epoch", "differentiable", "scale_fn")
"""Options that are keys of their own, or belong to who builds the loop."""


def dense_optimizer(config: DenseOptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of the model's own weights."""
    key = "train.optimizer"
    kinds = {name: kind for name, kind in vars(torch.optim).items() if _is_kind(kind, torch.optim.Optimizer)}
    name = _find(config.name, kinds, REFUSED_OPTIMIZERS, key)
    options = _checked(name, kinds[name], config.options, key)
    if "weight_decay" in inspect.signature(kinds[name]).parameters:
        options["weight_decay"] = config.weight_decay
    elif config.weight_decay:
        raise ConfigError(f"{key}.weight_decay: {name} has none; leave the key out")
    weights = list(model.parameters()) or [nn.Parameter(torch.empty(0))]  # torch refuses to have none
    made: torch.optim.Optimizer = _made(
        lambda: kinds[name](weights, lr=config.lr, **options), name, key
    )  # fmt: skip
    return made


class Schedule:
    """The learning rate of the dense part, told of every step; without a name it stays what it is."""

    def __init__(self, config: ScheduleConfig, optimizer: torch.optim.Optimizer, steps_per_epoch: int) -> None:
        self._every_steps = 1 if config.every == "step" else max(1, steps_per_epoch)
        self._scheduler: Any = None
        if config.name is not None:
            self._scheduler = _scheduler(config.name, config.options, optimizer, "train.schedule")
        elif config.options:
            raise ConfigError("train.schedule.options: there is no train.schedule.name that they could belong to")

    def step(self, steps_done: int) -> None:
        """So many steps of the run are done."""
        if self._scheduler is not None and steps_done % self._every_steps == 0:
            self._scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Empty without a scheduler."""
        return self._scheduler.state_dict() if self._scheduler is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where another one was."""
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state_dict)


def _scheduler(given: Any, options: dict[str, Any], optimizer: torch.optim.Optimizer, key: str) -> Any:
    kinds = {name: getattr(lr_scheduler, name) for name in lr_scheduler.__all__ if name != "LRScheduler"}
    name = _find(given, kinds, REFUSED_SCHEDULES, key)
    options = _checked(name, kinds[name], options, key)
    if "schedulers" in options:
        options["schedulers"] = _below(options["schedulers"], optimizer, f"{key}.options.schedulers")
    if name == "ChainedScheduler":
        return _made(lambda: kinds[name](**options), name, key)
    return _made(lambda: kinds[name](optimizer, **options), name, key)


def _below(entries: Any, optimizer: torch.optim.Optimizer, key: str) -> list[Any]:
    """The schedules that another one is made of, each with a name and options of its own."""
    sound = isinstance(entries, list) and entries and all(
        isinstance(it, dict) and isinstance(it.get("options", {}), dict) and it.keys() <= {"name", "options"}
        for it in entries
    )  # fmt: skip
    if not sound:
        raise ConfigError(f"{key}: expected a list such as [{{name: LinearLR, options: {{total_iters: 100}}}}, ...]")
    return [_scheduler(it.get("name"), it.get("options", {}), optimizer, f"{key}.{i}") for i, it in enumerate(entries)]


def _is_kind(kind: object, base: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, base) and kind is not base


def _find(given: Any, kinds: dict[str, Any], refused: dict[str, str], key: str) -> str:
    """torch's name for what a person has called it."""
    wanted = _plain(str(given))
    name = next((name for name in kinds if _plain(name) == wanted), None)
    usable = ", ".join(sorted(set(kinds) - set(refused)))
    if name is None:
        raise ConfigError(f"{key}.name: torch has no {given!r}; choose one of {usable}")
    if name in refused:
        raise ConfigError(f"{key}.name: {name} cannot be used here: {refused[name]}; choose one of {usable}")
    return name


def _plain(name: str) -> str:
    return name.lower().replace("_", "").removesuffix("lr")


def _checked(name: str, kind: Callable[..., Any], options: dict[str, Any], key: str) -> dict[str, Any]:
    takes = [it for it in inspect.signature(kind).parameters if it not in OWN_OPTIONS]
    for option in options:
        if option not in takes:
            raise ConfigError(f"{key}.options.{option}: {name} has no such option here; it takes {', '.join(takes)}")
    return dict(options)


def _made(make: Callable[[], Any], name: str, key: str) -> Any:
    """torch's own complaint about an option, as a sentence."""
    try:
        return make()
    except (ValueError, TypeError, RuntimeError, IndexError, ZeroDivisionError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{key}: {name} cannot be made ({reason}); correct {key}.options") from None


ModelFactory = Callable[..., Any]


def model_dim(dims: Sequence[int]) -> Dims:
    """What a model is made with, of the width of each feature: one number if all are equal, else all of them."""
    return dims[0] if len(set(dims)) == 1 else tuple(dims)


def build(name: str, shape: Shape, dim: Dims, num_outputs: int = 1, /, **options: Any) -> nn.Module:
    """The model called `name`, with fresh weights from torch's global generator.

    num_outputs: numbers for each sample; one is what every model gives, more are asked of it by this option.
    """
    factory = find_model(name)
    if num_outputs > 1:
        _check_outputs(name, factory, num_outputs)
        options["num_outputs"] = num_outputs
    _check_options(name, factory, options)
    try:
        model = factory(shape, dim, **options)
    except ValueError as error:
        if name not in MODELS:
            raise
        raise ConfigError(f"model {name!r}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model {name!r} gives a {type(model).__name__}: it must give a torch.nn.Module")
    return model


def row_width(name: str, dim: int) -> int:
    """Columns that a row of this model's tables needs; asked before the tables are made."""
    of_model = getattr(find_model(name), "row_width", None)
    if of_model is None:
        return dim
    width = of_model(dim)
    if not isinstance(width, int) or width < 1:
        raise ConfigError(f"model {name!r}: row_width({dim}) gives {width!r}: it must give a whole number from 1 up")
    return width


def look_in(folder: str | Path) -> None:
    """Modules of a person are looked for here too; last, so that a file there never hides an installed package."""
    place = str(Path(folder).absolute())
    if place not in sys.path:
        sys.path.append(place)


def find_model(name: str) -> ModelFactory:
    """The class behind a name or an import path."""
    if name in MODELS:
        return MODELS[name]
    if not _is_path(name):
        known = ", ".join(MODELS)
        raise ConfigError(f"model {name!r} is unknown: give one of {known}, or your own as package.module:Class")
    return imported(name, f"model {name!r}")


def _is_path(name: str) -> bool:
    module, colon, attribute = name.partition(":")
    return bool(colon and module and attribute)


def imported(name: str, where: str) -> Callable[..., Any]:
    """What a person has named as package.module:Class; `where` stands in front of errors."""
    if not _is_path(name):
        raise ConfigError(f"{where}: {name!r} is no path to a class; write package.module:Class")
    module_name, _, attribute = name.partition(":")
    look_in(os.getcwd())  # a console script does not search it by itself
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module can fail to import in any way
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        sentence = f"{where}: module {module_name!r} cannot be imported: correct it or its path ({reason})"
        raise ConfigError(sentence) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ConfigError(f"{where}: module {module_name!r} has no class {attribute!r}: correct the import path")
    return factory  # type: ignore[no-any-return]


def called(kind: Callable[..., Any], options: dict[str, Any], where: str) -> Any:
    """Something made with the options of a run file; its complaint about them is a sentence."""
    try:
        return kind(**options)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{where} cannot be made ({reason}); correct its options") from None


def _check_outputs(name: str, factory: ModelFactory, num_outputs: int) -> None:
    if "num_outputs" not in inspect.signature(factory).parameters:
        raise ConfigError(
            f"model {name!r} gives one number a sample, and the tasks need {num_outputs}; let its class take the "
            "option num_outputs and give [samples, num_outputs], or learn one label only (tasks)"
        )


def _check_options(name: str, factory: ModelFactory, options: dict[str, Any]) -> None:
    parameters = list(inspect.signature(factory).parameters.values())
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return
    # The first two are the shape and dim, whatever they are called.
    accepted = [parameter.name for parameter in parameters[2:]]
    unknown = [option for option in options if option not in accepted]
    if unknown:
        choice = f"it takes {', '.join(accepted)}" if accepted else "it takes none"
        raise ConfigError(f"model {name!r} has no option {unknown[0]!r}: {choice}")
