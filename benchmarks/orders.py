"""How many partitions our order reads in an epoch, over the lower bound and over BETA.

An epoch begins with the buffer that the last one left. A path of states is generated for every case, and every pair of
partitions is proved to meet in it; only then its reads count. The bound is that of a closed turn (`turn_bound`): each
read makes at most c - 1 new pairs. Our next epoch begins in the very state that the last one ended with, and so reads
one partition less than a turn. BETA is counted as published: its swaps, and c to fill the buffer again.

    ring_over_bound     worst over all p = 2 m (c - 1) + 1 up to 1,021
    worst_over_bound    worst over all other p <= 64, 3 <= c < p
    worst_over_beta     worst over both
    worst_over_swaps    worst over all p <= 64, 3 <= c < p, of reads over the bound on swaps, which no order can beat

The last line is one JSON object, with a table of some cases, and how far some orders are from random order for their
reads (`Traversal.unevenness`). It takes about 10 s of one core; what orders draw for the tables comes from seed 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numba import njit

from foresee.arrays import Int32
from foresee.graph.orders import ORDERS, Setting
from foresee.graph.orders.ring import best_path, beta_swaps, ring_multiple, swap_bound, turn_bound
from foresee.graph.orders.traversal import Path

RING_MAX = 1021
OTHER_MAX = 64
TABLE = ((7, 4), (13, 4), (16, 4), (16, 8), (29, 8), (32, 8), (32, 16), (61, 16), (64, 16), (121, 31))
KNOBS = (
    ("beta", Setting(num_partitions=32, capacity=8)),
    ("comet", Setting(num_partitions=32, capacity=8)),
    ("ring", Setting(num_partitions=29, capacity=8)),
    ("comet", Setting(num_partitions=32, capacity=16)),
    ("ring", Setting(num_partitions=61, capacity=31)),
    ("ring", Setting(num_partitions=64, capacity=32, logical_partitions=4)),
    ("ring", Setting(num_partitions=61, capacity=31, turns=2)),
    ("ring", Setting(num_partitions=64, capacity=32, logical_partitions=4, turns=2)),
    ("ring", Setting(num_partitions=65, capacity=39, logical_partitions=5, turns=3)),
)
COMPARED = ("hilbert_symmetric", "inside_out", "beta", "comet", "ring")


def proved_reads(p: int, c: int) -> int:
    """Reads of an epoch that begins with the buffer of the last one, if all pairs meet in it."""
    path: Path = best_path.__wrapped__(p, c) if p > OTHER_MAX else best_path(p, c)
    if not _all_meet(p, path.first, path.slots, path.incoming):
        raise SystemExit(f"some pair of {p} partitions never meets in a buffer of {c}")
    return len(path.slots)


@njit(cache=True)
def _all_meet(p: int, first: Int32, slots: Int32, incoming: Int32) -> bool:
    met, buffer, num_met = np.zeros((p, p), np.bool_), first.copy(), 0
    for event in range(-len(first), len(slots)):
        at = event + len(first) if event < 0 else slots[event]
        partition = first[at] if event < 0 else incoming[event]
        buffer[at] = partition
        for slot in range(len(buffer)):
            other = buffer[slot]
            if slot != at and other == partition:
                return False
            if not met[partition, other]:
                met[partition, other] = met[other, partition] = True
                num_met += 1
    return bool(num_met == p * (p + 1) // 2)


def rings() -> Iterator[tuple[int, int]]:
    for c in range(2, RING_MAX // 2 + 2):
        yield from ((p, c) for p in range(2 * c - 1, RING_MAX + 1, 2 * (c - 1)))


def others() -> Iterator[tuple[int, int]]:
    for p in range(4, OTHER_MAX + 1):
        yield from ((p, c) for c in range(3, p) if ring_multiple(p, c) is None)


def in_words(p: int, c: int) -> dict[str, float | int | None]:
    """Reads of an epoch over the table, by order; None: the order does not take these numbers."""
    row: dict[str, float | int | None] = {"p": p, "c": c, "bound": round(turn_bound(p, c) / p, 2)}
    for name in COMPARED:
        if name == "comet" and (c % 2 or p % (c // 2)):
            row[name] = None
            continue
        setting = Setting(num_partitions=p, capacity=c)
        traversal = ORDERS[name].traverse(setting, np.random.default_rng(0))
        row[name] = round((traversal.swaps if ORDERS[name].carries else traversal.reads()) / p, 2)
    return row


def knob(name: str, setting: Setting) -> dict[str, float | int | str]:
    """Reads against closeness to random order, of an epoch that begins where the last one ended."""
    order, rng = ORDERS[name], np.random.default_rng(0)
    last = order.traverse(setting, rng).states[-1]
    traversal = order.traverse(replace(setting, carried=last) if order.carries else setting, rng)
    reads = traversal.reads(last) if order.carries else traversal.reads()
    row: dict[str, float | int | str] = {"order": name, "p": setting.num_partitions, "c": setting.capacity}
    row |= {"logical_partitions": setting.logical_partitions or 0, "turns": setting.turns}
    row |= {"reads": round(reads / setting.num_partitions, 2), "unevenness": round(traversal.unevenness(), 2)}
    return row


def main() -> None:
    ring_reads = {case: proved_reads(*case) for case in rings()}
    other_reads = {case: proved_reads(*case) for case in others()}
    small = {
        case: reads for case, reads in {**ring_reads, **other_reads}.items() if case[0] <= OTHER_MAX and case[1] > 2
    }
    both = {**ring_reads, **other_reads}
    figures = {
        "ring_over_bound": max(reads / turn_bound(*case) for case, reads in ring_reads.items()),
        "worst_over_bound": max(reads / turn_bound(*case) for case, reads in other_reads.items()),
        "worst_over_beta": max(reads / (beta_swaps(*case) + case[1]) for case, reads in both.items()),
        "worst_over_swaps": max(reads / swap_bound(*case) for case, reads in small.items()),
    }
    cases = {"rings": len(ring_reads), "others": len(other_reads)}
    table = [in_words(p, c) for p, c in TABLE]
    knobs = [knob(name, setting) for name, setting in KNOBS]
    rows: list[Mapping[str, object]] = [*table, *knobs]
    for row in rows:
        print("  ".join(f"{name} {value if value is not None else '-'}" for name, value in row.items()))
    print(
        json.dumps(
            {
                **{name: round(value, 3) for name, value in figures.items()},
                "cases": cases,
                "table": table,
                "knobs": knobs,
            }
        )
    )


if __name__ == "__main__":
    main()
