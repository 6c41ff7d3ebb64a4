"""Things that people add by name: a dictionary that also looks at what installed packages declare.

In: `add(name, thing)`, or an entry point of a group, such as

    [project.entry-points."foresee.stores"]
    redis = "my_package.store:REDIS"

Out: the thing by its name. An entry point is imported when its name is first asked for; a package that cannot be
imported is refused with a sentence that names it. A name is given once, and ours cannot be taken. What is registered by
a call is known in that process only: runs of several processes need an entry point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from foresee.errors import ConfigError, InputError

Thing = TypeVar("Thing")


class Registry(Mapping[str, Thing], Generic[Thing]):
    """Names and what they stand for.

    Args:
        noun: What these things are called in a sentence.
        group: The group of entry points that packages declare them in.
        check: Refuses with a ConfigError what is no such thing, or has another name.
    """

    def __init__(self, noun: str, group: str, check: Callable[[str, object], None]) -> None:
        self._noun, self._group, self._check = noun, group, check
        self._known: dict[str, Thing] = {}

    def add(self, name: str, thing: Thing) -> None:
        """Makes a thing known in this process; the same one may be added twice."""
        self._check(name, thing)
        if self._known.setdefault(name, thing) is not thing:
            raise ConfigError(f"there is a {self._noun} {name!r} already; give yours another name")

    def find(self, name: str, key: str) -> Thing:
        """The thing of this name; `key` stands in front of the sentence where there is none."""
        if name not in self:
            raise ConfigError(f"{key}: there is no {self._noun} {name!r}; choose one of {', '.join(sorted(self))}")
        return self[name]

    def __getitem__(self, name: str) -> Thing:
        if name not in self._known:
            self.add(name, self._load(self._declared()[name]))
        return self._known[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known or name in self._declared()

    def __iter__(self) -> Iterator[str]:
        return iter({**self._known, **self._declared()})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def _declared(self) -> dict[str, EntryPoint]:
        return {found.name: found for found in entry_points(group=self._group)}

    def _load(self, declared: EntryPoint) -> Thing:
        try:
            loaded: Thing = declared.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"the {self._noun} {declared.name!r} is declared as {declared.value} and cannot be imported ({error}); "
                "correct or remove the package that declares it"
            ) from error
        return loaded


def loaded(group: str) -> Iterator[tuple[str, Any]]:
    """Imports the packages that have entry points of this group."""
    for point in sorted(entry_points(group=group), key=lambda it: it.name):
        yield point.name, _load(point)


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:
        package = point.dist.name if point.dist is not None else point.value.partition(":")[0]
        raise InputError(
            f"{point.group}: {point.name} of the installed package {package} cannot be imported "
            f"({type(error).__name__}: {error}); repair the package or uninstall it"
        ) from error
