"""Who leaves among equals does not depend on the processor."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from foresee.plan.baselines.ranked_eviction import lowest


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_lowest_ranks_and_first_places(ranks: list[int], data: st.DataObject) -> None:
    number = data.draw(st.integers(1, len(ranks)))
    expected = sorted(sorted(range(len(ranks)), key=lambda place: (ranks[place], place))[:number])
    assert lowest(np.array(ranks), number).tolist() == expected
