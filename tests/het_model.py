"""HET's cache, straight from its published rule, with room for every row: what each worker pulls and pushes in a step.

The server counts the updates of a row, one for each lookup. A worker pulls a row it does not have, or of which the
server is more than the bound ahead of what the worker knows; after training it pushes the rows of which it has more
than the bound of own updates. Workers wait for each other before and after training; sample i goes to worker i mod W.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise

from foresee.plan.record import Accesses
from foresee.testing.traces import accesses_of

AT_THE_BOUND = [accesses_of([[0], [0]]), accesses_of([[1, 2], [3]]), accesses_of([[1], [0]])]
"""Two workers with room for two rows. Row 0 leaves worker 0 with one update, less than it would push by itself; worker
1, who has not seen it, reads it two steps later: with a bound of 1 it is just fresh enough, with a bound of 0 not."""

Sets = tuple[set[int], set[int], set[int]]


def pulls_and_pushes(trace: Sequence[Accesses], num_workers: int, bound: int) -> list[Sets]:
    """(fetched, refreshed, pushed) of every step and worker, in that order."""
    stored: Counter[int] = Counter()
    known: dict[tuple[int, int], int] = {}
    own: Counter[tuple[int, int]] = Counter()
    found: list[Sets] = []
    for accesses in trace:
        samples = [accesses.rows[begin:end].tolist() for begin, end in pairwise(accesses.sample_offsets)]
        looked_up = [Counter(chain(*samples[worker::num_workers])) for worker in range(num_workers)]
        pulled: list[tuple[set[int], set[int]]] = []
        for worker, rows in enumerate(looked_up):
            fetched = {row for row in rows if (worker, row) not in known}
            ahead = {row for row in rows.keys() - fetched if stored[row] - known[worker, row] > bound}
            known.update({(worker, row): stored[row] for row in fetched | ahead})
            pulled.append((fetched, ahead))
        for worker, rows in enumerate(looked_up):
            own.update({(worker, row): times for row, times in rows.items()})
        for worker, rows in enumerate(looked_up):
            pushed = {row for row in rows if own[worker, row] > bound}
            for row in pushed:
                updates = own.pop((worker, row))
                stored[row] += updates
                known[worker, row] += updates
            found.append((*pulled[worker], pushed))
    return found
