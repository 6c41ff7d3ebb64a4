"""What `compare` and `simulate` ask alike: numbers and sizes in lists, how rows look, how fast a cluster is.

In: options as a person types them. Out: values, or a sentence that names the option.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foresee.errors import ConfigError
from foresee.io.folders import write_whole
from foresee.io.optional import drawable

if TYPE_CHECKING:
    from foresee.engine.tables import HasTables
    from foresee.store.layout import Layout
    from foresee.tools.comparison import CacheSize
    from foresee.tools.cost import Speeds

MICROSECOND, MILLISECOND, MEGABIT = 1e-6, 1e-3, 1e6 / 8


def words(text: str) -> list[str]:
    """`a, b` as a and b."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str, option: str, *, least: int = 1) -> list[int]:
    """`2,4,8` as numbers, ascending and each once."""
    found = words(text)
    if not found or not all(word.isdecimal() and int(word) >= least for word in found):
        raise typer.BadParameter(f"{option} {text}: give whole numbers from {least} up, such as 2,4,8")
    return sorted({int(word) for word in found})


def number_of_steps(text: str) -> int | None:
    """A number, or None for all."""
    if text == "all":
        return None
    if text.isdecimal() and int(text) > 1:
        return int(text)
    raise typer.BadParameter(f"--steps {text}: give a whole number from 2 up, or all")


def cache_sizes(text: str) -> list[CacheSize]:
    """`0.1,2x,50000`, smallest first as far as they can be told apart."""
    from foresee.tools.comparison import CacheSize

    try:
        sizes = {CacheSize.parse(word) for word in words(text)}
    except ValueError:
        sizes = set()
    if not sizes:
        raise typer.BadParameter(
            f"--cache {text}: give rows (50000), shares of the touched rows (0.1) or multiples of what two steps need "
            "(2x)"
        )
    return sorted(sizes, key=lambda cache: (cache.is_raised, cache.in_two_steps, cache.size))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForm:
    """How a row looks: its width, what its values are, and the state of its optimizer."""

    dim: Annotated[int, typer.Option(min=1, help="Columns of a row.")] = 64
    dtype: Annotated[str, typer.Option(help="Of the values: float32, bfloat16 or float16.")] = "float32"
    optimizer: Annotated[str, typer.Option(help="Of the rows: its state travels with them.")] = "rowwise_adagrad"

    def layout(self, log: HasTables) -> Layout:
        """Return the layout of the rows of a log's tables."""
        from foresee.engine.optimizers import OPTIMIZERS
        from foresee.engine.tables import layout_for

        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"--optimizer: there is no {self.optimizer!r}; choose one of {', '.join(OPTIMIZERS)}")
        return layout_for(log, self.dim, OPTIMIZERS[self.optimizer](lr=0.01), 0, 0.01, self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where the figures go besides the terminal."""

    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the figures as CSV.")] = None
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", callback=drawable, help="Also draw them: one HTML file.")
    ] = None


def positive(value: float, option: str) -> float:
    if not 0 < value < float("inf"):
        raise typer.BadParameter(f"{option} {value}: give a number above 0")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """A cluster that only its links and its arithmetic hold back."""

    compute_ms: Annotated[float, typer.Option(help="Forward and backward of one trainer, its rows at hand.")] = 10.0
    link_mbit: Annotated[float, typer.Option(help="Of every trainer and server, each way.")] = 1000.0
    latency_us: Annotated[float, typer.Option(min=0, help="One way between two machines.")] = 100.0
    servers: Annotated[int | None, typer.Option(min=1, help="That hold the rows. Default: as many as trainers.")] = None

    def speeds(self) -> Callable[[int], Speeds]:
        """Return the speeds for a number of trainers."""
        from foresee.tools.cost import Speeds

        compute_seconds = positive(self.compute_ms, "--compute-ms") * MILLISECOND
        bytes_per_second = positive(self.link_mbit, "--link-mbit") * MEGABIT
        return lambda num_trainers: Speeds(
            compute_seconds=compute_seconds,
            trainer_bytes_per_second=bytes_per_second,
            server_bytes_per_second=bytes_per_second,
            latency_seconds=self.latency_us * MICROSECOND,
            num_servers=self.servers or num_trainers,
        )

    def in_words(self) -> str:
        """Return the assumptions of a prediction."""
        many = "as many servers as trainers"
        if self.servers is not None:
            many = f"{self.servers} servers" if self.servers > 1 else "1 server"
        return (
            f"Predicted for {self.compute_ms:g} ms of compute a step, links of {self.link_mbit:g} Mbit/s each way and "
            f"{self.latency_us:g} µs, {many}; nothing else is slow."
        )


def write_text(path: Path, text: str) -> None:
    """The whole file or nothing."""
    write_whole(path, text, "the figures")
