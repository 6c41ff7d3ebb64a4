"""How few partitions an order must read, and how many BETA reads: formulas for p partitions and a buffer of c.

Swaps are reads after the first state, whose fill is not counted, as in Marius. A read brings one partition, which can
meet the c - 1 that stay. Nothing here looks at a traversal: tests hold these formulas against generated orders.
"""

from __future__ import annotations


def pair_bound(p: int, c: int) -> int:
    """No order has fewer swaps: c (c - 1) / 2 pairs are together at first, and a swap makes at most c - 1 more."""
    return _divided_up(p * (p - 1) // 2 - c * (c - 1) // 2, c - 1)


def bucket_bound(p: int, c: int) -> int:
    """The same counted by buckets, as the authors' talk does; never above `pair_bound`."""
    return _divided_up(p * p - c * c, 2 * c - 1)


def swap_bound(p: int, c: int) -> int:
    """No order has fewer swaps, by pairs or by returns.

    When the last partition comes for the first time, p - c have come and p - c have left. Each of these has to meet the
    last one, so it comes once more: 2 (p - c) reads. This is the larger bound where the buffer holds half or more.
    """
    return max(pair_bound(p, c), 2 * (p - c))


def turn_bound(p: int, c: int) -> int:
    """No closed turn, at whose end the buffer is what it was, has fewer reads.

    Let k partitions stay all the time. Of the others each is read at least once, and each read makes at most c - 1 - k
    of their pairs: reads >= max(p - k, pairs of p - k / (c - 1 - k)). The least over k is at k = 0, unless the buffer
    holds more than half: then all but 2 (p - c) + 1 can stay, and these are read once.
    """
    if c == p:
        return 0
    if 2 * c > p:
        return 2 * (p - c) + 1
    return _divided_up(p * (p - 1) // 2, c - 1)


def beta_swaps(p: int, c: int) -> int:
    """Swaps of BETA: rounds that hold c - 1 partitions while all others pass by, then bring the next c - 1."""
    beyond = p - c
    rounds = beyond // (c - 1) + 1
    return beyond + rounds * beyond - rounds * (rounds - 1) // 2 * (c - 1)


def ring_swaps(p: int, c: int) -> int:
    """Swaps of the ring where p = 2 m (c - 1) + 1: one fewer than `turn_bound`, since the first state is there."""
    return turn_bound(p, c) - 1


def ring_multiple(p: int, c: int) -> int | None:
    """The m of p = 2 m (c - 1) + 1, the form for which a ring reaches `turn_bound`; None: p has another form."""
    m, rest = divmod(p - 1, 2 * (c - 1))
    return m if m > 0 and rest == 0 else None


def _divided_up(number: int, by: int) -> int:
    return -(-number // by)
