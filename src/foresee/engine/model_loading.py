"""From a name in a run file to a model.

In: a name of `foresee.models.MODELS` or an import path "package.module:Class" of the user's, the shape of the log, the
embedding width and the options of the run file. Out: an nn.Module, and the number of columns its rows need. What the
person got wrong is a ConfigError of one sentence; an exception inside the user's own constructor stays theirs, with its
traceback, because only that shows where to look.

A user's module is looked for as Python does, then in the folder of the run file, then in the current one. Its class is
called as `Class(shape, dim, **options)`; without `row_width(dim)` its rows are `dim` wide.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from foresee.errors import ConfigError
from foresee.models import MODELS, Shape

ModelFactory = Callable[..., Any]


def build(name: str, shape: Shape, dim: int, **options: Any) -> nn.Module:
    """The model called `name`, with fresh weights from torch's global generator."""
    factory = find_model(name)
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
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        known = ", ".join(MODELS)
        raise ConfigError(f"model {name!r} is unknown: give one of {known}, or your own as package.module:Class")
    return _import_model(name, module_name, attribute)


def _import_model(name: str, module_name: str, attribute: str) -> ModelFactory:
    look_in(os.getcwd())  # a console script does not search it by itself
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module can fail to import in any way
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        sentence = f"model {name!r}: module {module_name!r} cannot be imported: correct it or its path ({reason})"
        raise ConfigError(sentence) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ConfigError(f"model {name!r}: module {module_name!r} has no class {attribute!r}: correct the import path")
    return factory  # type: ignore[no-any-return]


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
