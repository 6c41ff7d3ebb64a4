"""Numbers with their units, as messages show them."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """The number with its noun; nouns here take an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def in_megabytes(num_bytes: int) -> str:
    """Such as 12.3 MB."""
    return f"{num_bytes / 1e6:,.1f} MB"
