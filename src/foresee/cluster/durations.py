"""Figures in words: `45 s`, `12 min`, `3 h 05 min`, `2 d 04 h`; numbers with their noun: `1 job`, `2 jobs`."""

from __future__ import annotations


def in_words(seconds: float) -> str:
    if seconds < 0:
        return f"-{in_words(-seconds)}"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours:02d} h"


def counted(number: int, noun: str) -> str:
    """The number and its noun, plural unless there is one."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
