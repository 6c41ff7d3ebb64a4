"""Raw formats: each is one file here and one line in `FORMATS`; those of other packages come by `register`."""

from importlib.metadata import entry_points
from typing import Any

from foresee.data.formats.avazu import Avazu
from foresee.data.formats.criteo import Criteo
from foresee.data.formats.csv import Csv
from foresee.data.formats.libfm import Libfm
from foresee.data.formats.movielens import MovieLens
from foresee.data.formats.parquet import Parquet
from foresee.data.source import Source
from foresee.errors import UsageError

FORMATS: dict[str, type[Source]] = {
    "criteo": Criteo,
    "avazu": Avazu,
    "movielens": MovieLens,
    "libfm": Libfm,
    "csv": Csv,
    "parquet": Parquet,
}

ENTRY_POINTS = "foresee.formats"
"""The group in which an installed package names its formats; `foresee prepare` then has them."""


def register(source_type: type[Any]) -> type[Any]:
    """Adds a raw format of one's own. A decorator, too.

    Args:
        source_type: A dataclass that is a `Source`; its docstring and annotated fields become a command.

    Returns:
        The same.

    Raises:
        UsageError: Another format has its name.
    """
    name = str(source_type.name)
    if FORMATS.setdefault(name, source_type) is not source_type:
        raise UsageError(f"there is a raw format {name!r} already; give {source_type.__qualname__} another name")
    return source_type


def load_installed() -> None:
    """Registers the formats of installed packages."""
    for point in entry_points(group=ENTRY_POINTS):
        register(point.load())


__all__ = ["FORMATS", "Avazu", "Criteo", "Csv", "Libfm", "MovieLens", "Parquet", "load_installed", "register"]
