"""Raw formats: each is one file here and one line in `FORMATS`."""

from foresee.data.formats.avazu import Avazu
from foresee.data.formats.criteo import Criteo
from foresee.data.formats.csv import Csv
from foresee.data.formats.libfm import Libfm
from foresee.data.formats.movielens import MovieLens
from foresee.data.formats.parquet import Parquet
from foresee.data.source import Source

FORMATS: dict[str, type[Source]] = {
    "criteo": Criteo,
    "avazu": Avazu,
    "movielens": MovieLens,
    "libfm": Libfm,
    "csv": Csv,
    "parquet": Parquet,
}

__all__ = ["FORMATS", "Avazu", "Criteo", "Csv", "Libfm", "MovieLens", "Parquet"]
