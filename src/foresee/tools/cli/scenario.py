"""What `compare` and `simulate` ask alike: numbers and sizes in lists, how rows look, how fast a cluster is.

In: options as a person types them. Out: values, or a sentence that names the option.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foresee.errors import ConfigError
from foresee.io.folders import write_whole

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


def row_layout(log: HasTables, dim: int, optimizer: str, dtype: str) -> Layout:
    """How a row looks: its width, what its values are, and the state of its optimiser."""
    from foresee.engine.optimizers import OPTIMIZERS
    from foresee.engine.tables import layout_for

    if optimizer not in OPTIMIZERS:
        raise ConfigError(f"--optimizer: there is no {optimizer!r}; choose one of {', '.join(OPTIMIZERS)}")
    return layout_for(log, dim, OPTIMIZERS[optimizer](lr=0.01), 0, 0.01, dtype)


def positive(value: float, option: str) -> float:
    if not 0 < value < float("inf"):
        raise typer.BadParameter(f"{option} {value}: give a number above 0")
    return value


def network_speeds(
    *, compute_ms: float, link_mbit: float, latency_us: float, servers: int | None
) -> Callable[[int], Speeds]:
    """A cluster of so many trainers that only its links and its arithmetic hold back."""
    from foresee.tools.cost import Speeds

    compute_seconds = positive(compute_ms, "--compute-ms") * MILLISECOND
    bytes_per_second = positive(link_mbit, "--link-mbit") * MEGABIT

    def speeds(num_trainers: int) -> Speeds:
        return Speeds(
            compute_seconds=compute_seconds,
            trainer_bytes_per_second=bytes_per_second,
            server_bytes_per_second=bytes_per_second,
            latency_seconds=latency_us * MICROSECOND,
            num_servers=servers or num_trainers,
        )

    return speeds


def network_words(*, compute_ms: float, link_mbit: float, latency_us: float, servers: int | None) -> str:
    """The assumptions of a prediction."""
    many = "as many servers as trainers" if servers is None else f"{servers} servers" if servers > 1 else "1 server"
    return (
        f"Predicted for {compute_ms:g} ms of compute a step, links of {link_mbit:g} Mbit/s each way and "
        f"{latency_us:g} µs, {many}; nothing else is slow."
    )


def write_text(path: Path, text: str) -> None:
    """The whole file or nothing."""
    write_whole(path, text, "the figures")
