"""Seconds in words: `45 s`, `12 min`, `3 h 05 min`, `2 d 04 h`."""

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
