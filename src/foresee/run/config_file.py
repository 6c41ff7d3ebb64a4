"""A run file: YAML in, a `RunConfig` out, and back.

In: a YAML file and `key=value` overrides. Out: a frozen `RunConfig`, or a ConfigError of one sentence that names the
file, the key and what to do. Relative paths in a run file start at the folder of the file; in an override, at the
current folder. Also which keys there are, and which of them two runs that compute the same must share.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from foresee.errors import ConfigError
from foresee.io.file_systems import is_url, parent_and_name
from foresee.io.urls import local_folder
from foresee.run.config import AnyRun, RunConfig, Section
from foresee.store.registry import kind_name

Config = TypeVar("Config", bound=Section)


def load_run(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The run in a YAML file, with `key=value` overrides such as `train.batch_size=4096` on top."""
    if is_of_graph(path):
        raise ConfigError(
            f"{path} is a run over a graph; use the commands of `foresee graph`, such as `foresee graph train`"
        )
    return load(RunConfig, path, overrides)


def is_of_graph(path: str | Path) -> bool:
    """Whether a run file trains on a graph: then it is another kind of run."""
    try:
        content = yaml.safe_load(Path(path).read_bytes())
    except (OSError, ValueError, yaml.YAMLError):
        return False  # whoever loads it says what is wrong
    return isinstance(content, dict) and "graph" in content and "log" not in content


def load(kind: type[Config], path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The same, of any kind of run."""
    file, keys = Path(path), cast("type[AnyRun]", kind)
    content = _read(file, kind)
    for key in keys.path_keys:
        _anchor(content, key.split("."), file.parent)
    for override in overrides:
        _override(content, override, kind)
    _look_beside(file, content)
    _place_run(content)
    return make(kind, content, where=f"{file} with --set" if overrides else str(file))


def _place_run(content: dict[str, Any]) -> None:
    """A run at a URL has its storage there, and works in a folder of this machine."""
    run = content.get("run")
    if isinstance(run, str) and is_url(run):
        content |= {"storage": run, "run": str(local_folder(run, "runs"))}


def run_name(config: AnyRun) -> str:
    """What people call a run: the name of its folder, or the last one of its URL."""
    storage = config.storage
    if storage is not None and config.run == local_folder(storage, "runs"):
        return parent_and_name(storage)[1]
    return config.run.name


def _look_beside(file: Path, content: dict[str, Any]) -> None:
    """Look for a user's modules (models, decoders, encoders, metrics) in the run file's folder."""
    model, train = content.get("model", {}), content.get("train", {})
    if not isinstance(model, dict) or model.get("folder") is not None:
        return
    named = any(_IMPORT_PATH.fullmatch(value) for value in model.values() if isinstance(value, str))
    if named or (isinstance(train, dict) and train.get("metrics")):
        content["model"] = {**model, "folder": str(file.parent)}


_IMPORT_PATH = re.compile(r"\w+(\.\w+)*:\w+")


def make_run(content: dict[str, Any], *, where: str) -> RunConfig:
    """The run that nested keys and values describe; `where` stands in front of errors."""
    return make(RunConfig, content, where=where)


def make(kind: type[Config], content: dict[str, Any], *, where: str) -> Config:
    """The same, of any kind of run."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        # A misspelt key is often missing as well: its name tells more.
        first = min(error.errors(), key=lambda it: it["type"] != "extra_forbidden")
        raise ConfigError(f"{where}: {_sentence(first, kind)}") from None


def dump_run(config: AnyRun, folder: Path | None = None) -> str:
    """The run as YAML for a file in `folder`: every key, paths as seen from there, so that a tree can be moved. Without
    a folder paths are absolute, for machines that have the same. A run that has a storage is looked at from folders
    anywhere, so that of its paths only those inside are as seen from there."""
    content = config.model_dump(mode="json")
    for key in config.path_keys:
        *parents, last = key.split(".")
        section = content
        for parent in parents:
            section = section[parent]
        if section[last] is not None and not is_url(section[last]):
            section[last] = _as_seen_from(folder, Path(section[last]).absolute(), anywhere=config.storage is not None)
    return yaml.safe_dump(content, sort_keys=False)


def _as_seen_from(folder: Path | None, path: Path, *, anywhere: bool) -> str:
    if folder is None or (anywhere and not path.is_relative_to(folder.absolute())):
        return os.path.abspath(path)
    return os.path.relpath(path, folder)


STORE_KEY = "tables.store"
"""Servers may listen elsewhere when a run goes on."""


def changed_result_keys(old: AnyRun, new: AnyRun) -> Iterator[tuple[str, Any, Any]]:
    """(key, old value, new value) wherever two configurations compute different things."""
    for key in new.result_keys:
        before, after = _value_of(old, key), _value_of(new, key)
        if isinstance(before, Section):
            values, others = before.model_dump(), after.model_dump()
            for name in {**values, **others}:
                if values.get(name) != others.get(name):
                    yield f"{key}.{name}", values.get(name), others.get(name)
        elif before != after and not (key == STORE_KEY and kind_name(before) == kind_name(after)):
            yield key, before, after


def known_keys(section: type[Section] = RunConfig, prefix: str = "") -> Iterator[str]:
    """Every dotted key of a run file."""
    for name, field in section.model_fields.items():
        yield prefix + name
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from known_keys(field.annotation, f"{prefix}{name}.")


def _keys_in_lists(section: type[Section], prefix: str = "") -> Iterator[str]:
    """Keys of what stands in lists of a run file, such as tasks.0.label."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _keys_in_lists(field.annotation, f"{prefix}{name}.")
        for below in get_args(field.annotation):
            if isinstance(below, type) and issubclass(below, Section):
                yield from (f"{prefix}{name}.0.{key}" for key in known_keys(below))


class _Loader(yaml.SafeLoader):
    """Safe YAML with two of its traps closed: `1e-3` is a number, and a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key} stands here twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d+$"), list("-+0123456789"))


def _read(file: Path, kind: type[Section]) -> dict[str, Any]:
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{file}: there is no such file; give the path of a run file") from None
    except IsADirectoryError:
        raise ConfigError(f"{file}: this is a folder; give the path of a run file, such as {file}/run.yaml") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: cannot be read ({error}); check that it is a text file you may read") from None
    content = _parse(text, str(file))
    if content is None:
        raise ConfigError(f"{file}: the file is empty; it needs at least {', '.join(_required(kind))}")
    if not isinstance(content, dict):
        raise ConfigError(f"{file}: this is no list of keys; a run file has lines such as `log: data/criteo`")
    return {key: value for key, value in content.items() if value is not None or key in _required(kind)}


def _required(kind: type[Section]) -> list[str]:
    return [name for name, field in kind.model_fields.items() if field.is_required()]


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{where}:{mark.line + 1}" if mark is not None else where
        raise ConfigError(f"{place}: this is not YAML ({error.problem}); correct the line") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{where}: this is not YAML ({' '.join(str(error).split())}); correct the file") from None


def _anchor(content: dict[str, Any], key: list[str], folder: Path) -> None:
    section: Any = content
    for name in key[:-1]:
        section = section.get(name) if isinstance(section, dict) else None
    value = section.get(key[-1]) if isinstance(section, dict) else None
    if isinstance(section, dict) and isinstance(value, str) and value and not is_url(value):
        # By its words, as `dump_run` writes it: a run folder that is a link has no other parent than its name says.
        section[key[-1]] = os.path.normpath(folder / section[key[-1]])


def _override(content: dict[str, Any], override: str, kind: type[Section]) -> None:
    key, equals, text = override.partition("=")
    where = f"--set {override}"
    if not equals or not key:
        raise ConfigError(f"{where}: expected key=value, such as --set train.batch_size=4096")
    # Options of a model, an optimiser or a schedule are its own; all other keys are ours, and a misspelt one is better
    # refused here by name.
    if key not in known_keys(kind) and not key.startswith(cast("type[AnyRun]", kind).option_keys):
        raise ConfigError(f"{where}: {_unknown(key, kind)}")
    section = content
    *parents, last = key.split(".")
    for parent in parents:
        below = section.setdefault(parent, {})
        if not isinstance(below, dict):
            below = section[parent] = {}
        section = below
    section[last] = _parse(text, where)
    for other in {"rows": "share", "share": "rows"}.get(last, "").split() if parents == ["cache"] else ():
        section.pop(other, None)  # the two sizes exclude each other, so the override takes the file's place


def _value_of(config: AnyRun, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def _unknown(key: str, kind: type[Section]) -> str:
    number = re.search(r"\.(\d+)\.", key)
    keys = list(known_keys(kind) if number is None else _keys_in_lists(kind))
    if number is not None:
        keys = [it.replace(".0.", number[0]) for it in keys]
    close = difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    if close:
        return f"unknown key; did you mean {close[0]}?"
    section = key.rpartition(".")[0]
    siblings = [name for name in keys if name.rpartition(".")[0] == section]
    return f"unknown key; the keys here are {', '.join(siblings or [name for name in keys if '.' not in name])}"


def _sentence(error: ErrorDetails, kind_of_run: type[Section]) -> str:
    key = ".".join(str(part) for part in error["loc"])
    kind, found = error["type"], error["input"]
    if kind == "extra_forbidden":
        return f"{key}: {_unknown(key, kind_of_run)}"
    if kind == "missing":
        return f"{key}: this key is missing; add it"
    if kind == "value_error":
        return f"{key}: {error['ctx']['error']}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{key}: found {found!r}, expected keys below it; write them on lines of their own, indented"
    return f"{key}: found {found!r}; {error['msg'][0].lower()}{error['msg'][1:]}"
