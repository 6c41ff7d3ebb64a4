"""A row's life in one line of characters: used, kept in a cache, away.

In: a `RowLife` and a width. Out: one character for each equal share of the steps; a share in which the row was used at
all counts as used, one in which it was cached at any time as kept.
"""

from __future__ import annotations

from foresee.engine.explanation.row_life import RowLife

USED, KEPT, AWAY = "█", "━", "·"


def strip(life: RowLife, width: int) -> str:
    """At most `width` characters; fewer if there are fewer steps."""
    num_columns = max(1, min(width, life.num_steps))
    marks = [AWAY] * num_columns

    def column(step: int) -> int:
        return (step - life.first_step) * num_columns // max(1, life.num_steps)

    for stay in life.stays:
        left = stay.left.after if stay.left else life.first_step + life.num_steps - 1
        for place in range(column(stay.fetched_for), column(left) + 1):
            marks[place] = KEPT
    for step in life.uses:
        marks[column(step)] = USED
    return "".join(marks)
