"""Numbers in sentences: 1 shard, 2 shards, 1,000 shards."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """The number with its noun; nouns here take an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
