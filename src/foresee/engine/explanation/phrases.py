"""Small pieces of sentences that rows and steps share: counts, lists that are shortened, percentages.

In: numbers. Out: text. A list is never cut without saying how much was left out.
"""

from __future__ import annotations

from collections.abc import Sequence

SHOWN_MAX = 8
IRREGULAR = {"copy": "copies"}


def counted(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`, `2 copies`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {IRREGULAR.get(noun, f'{noun}s')}"


def listed(items: Sequence[int | str], shown_max: int = SHOWN_MAX) -> str:
    """`3, 7, 12`, and if there are many, the first, how many are left out, and the last."""
    texts = [f"{item:,}" if isinstance(item, int) else item for item in items]
    if len(texts) <= shown_max:
        return ", ".join(texts)
    return f"{', '.join(texts[: shown_max - 1])}, … {len(texts) - shown_max:,} more …, {texts[-1]}"


def steps(items: Sequence[int]) -> str:
    return f"step{'s' if len(items) != 1 else ''} {listed(items)}"


def share(part: float) -> str:
    return f"{part:.1%}"
