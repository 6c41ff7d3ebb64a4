"""How unequal rows are: the share of all accesses that go to the most used rows.

In: how often each row is touched in some samples of a log. Out: a `Skew`, a curve of a hundred points or so, and the
share of accesses that the hottest rows take. Rows that the samples do not touch count as rows, at the cold end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foresee.errors import UsageError

NUM_POINTS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Shares between 0 and 1, from the hottest rows on."""

    row_shares: tuple[float, ...]
    access_shares: tuple[float, ...]
    num_rows: int
    num_accesses: int
    num_samples: int

    def of_hottest(self, row_share: float) -> float:
        """The share of accesses that go to this share of the rows."""
        return float(np.interp(row_share, (0.0, *self.row_shares), (0.0, *self.access_shares)))


def skew_of(counts: NDArray[np.int64], *, num_rows: int, num_samples: int) -> Skew:
    """`counts`: how often each touched row was touched, in any order."""
    touched = np.sort(counts[counts > 0])[::-1]
    if not len(touched) or num_rows < len(touched):
        raise UsageError(f"{len(touched)} touched rows of {num_rows} give no curve; count the rows of a whole log")
    running = np.cumsum(touched)
    places = np.unique(np.geomspace(1, len(touched), NUM_POINTS).astype(np.int64))
    rows, accesses = places / num_rows, running[places - 1] / running[-1]
    if places[-1] < num_rows:
        rows, accesses = np.append(rows, 1.0), np.append(accesses, 1.0)
    return Skew(
        row_shares=tuple(rows.tolist()), access_shares=tuple(accesses.tolist()), num_rows=num_rows,
        num_accesses=int(running[-1]), num_samples=num_samples,
    )  # fmt: skip
