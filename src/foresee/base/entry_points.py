"""What other installed packages add: the objects behind entry points of a group, each loaded once it is asked for.

In: the name of a group. Out: (name, object) of every entry point, by name. A package that cannot be imported is refused
with a sentence that names it: leaving it out in silence would make a name unknown that a person has installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from foresee.errors import InputError


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
