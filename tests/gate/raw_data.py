"""Raw data of the gate: the same bytes everywhere, from one small generator that no library provides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SAMPLES = 1500
CLICKS = ("click", "age", "price", "user", "film", "tags", "country", "rating", "device", "weight")


def numbers(seed: int) -> Iterator[float]:
    """Uniform numbers in [0, 1): a linear congruential generator with 31 bits taken of 64."""
    state = seed * 2654435761 + 1
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        yield (state >> 33) / (1 << 31)


def write_clicks(path: Path) -> None:
    """Clicks of users on films, with tags, two more labels and weights; some cells are empty."""
    uniform = numbers(1)

    def below(count: int, power: int = 1) -> int:
        return int(next(uniform) ** power * count)

    lines = [",".join(CLICKS)]
    for _ in range(SAMPLES):
        user, film, age, device = below(200, 2), below(120, 2), below(80), below(3)
        tags = "|".join(f"t{below(25)}" for _ in range(below(4)))
        click = int(next(uniform) < 0.15 + 0.5 * ((user + film) % 2))
        rating = 1 + (user * 7 + film * 3) % 9 / 2
        price = "" if next(uniform) < 0.05 else f"{next(uniform) * 40:.2f}"
        cells = (
            click,
            age,
            price,
            f"u{user}",
            f"f{film}",
            tags,
            f"c{below(6)}",
            rating,
            "ABC"[device],
            0.5 + below(4) / 2,
        )
        lines.append(",".join(map(str, cells)))
    path.write_text("\n".join(lines) + "\n")


def write_edges(path: Path) -> None:
    """Edges of a small knowledge graph, as text."""
    uniform = numbers(2)
    lines: set[str] = set()
    while len(lines) < 900:
        head = int(next(uniform) ** 2 * 120)
        relation = int(next(uniform) * 4)
        tail = (head * (relation + 2) + int(next(uniform) * 6)) % 120
        lines.add(f"n{head}\tr{relation}\tn{tail}")
    path.write_text("\n".join(sorted(lines)) + "\n")
