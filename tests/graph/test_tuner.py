"""The tuner keeps to memory, reads no more when it has more, and says so in sentences."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from foresee.errors import PlanError
from foresee.graph.orders import ORDERS, Setting
from foresee.graph.orders.ring import ring_multiple
from foresee.graph.tuner import Advice, Need, tune

FREEBASE = {"num_nodes": 86_054_151, "num_edges": 304_727_650, "row_bytes": 800}


@st.composite
def needs(draw: st.DrawFn) -> Need:
    nodes, row_bytes = draw(st.integers(1, 10**8)), draw(st.integers(4, 4096))
    edges = draw(st.integers(0, 40 * nodes))
    share = draw(st.floats(0.01, 1.3))
    return Need(
        num_nodes=nodes,
        num_edges=edges,
        row_bytes=row_bytes,
        memory_bytes=max(1, int(share * (nodes * (row_bytes + 8) + 24 * edges))),
        block_bytes=draw(st.sampled_from([512, 4096, 1 << 20])),
        edge_copies=draw(st.integers(1, 2)),
        working_bytes=draw(st.sampled_from([0, 1 << 20])),
    )


def tuned(need: Need) -> Advice | None:
    try:
        return tune(need)
    except PlanError:
        return None


@settings(max_examples=60, deadline=None)
@given(needs())
def test_what_it_advises_fits_and_is_a_ring(need: Need) -> None:
    advice = tuned(need)
    assume(advice is not None)
    assert advice is not None
    p, c = advice.num_partitions, advice.capacity
    assert advice.memory_bytes <= need.memory_bytes
    assert advice.bytes_read == advice.reads * -(-need.num_nodes // p) * need.row_bytes
    if advice.in_memory:
        assert (advice.order, advice.reads) == ("random", 0)
    else:
        assert advice.order == "ring"
        assert 2 <= c < p <= 1024
        assert 2 * c > p or ring_multiple(p, c)


@settings(max_examples=60, deadline=None)
@given(needs(), st.floats(1.0, 4.0))
def test_more_memory_never_reads_more(need: Need, more: float) -> None:
    larger = Need(**{**_fields(need), "memory_bytes": int(need.memory_bytes * more)})
    small, large = tuned(need), tuned(larger)
    if small is not None:
        assert large is not None
        assert large.bytes_read <= small.bytes_read


@settings(max_examples=40, deadline=None)
@given(needs())
def test_what_is_refused_fits_with_what_the_sentence_asks_for(need: Need) -> None:
    try:
        tune(need)
    except PlanError as error:
        number, unit = re.search(r"give at least ([0-9,.]+) (k?B|MB|GB) of memory", str(error)).groups()  # type: ignore[union-attr]
        asked = round(float(number.replace(",", "")) * {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}[unit])
        assert asked > need.memory_bytes
        assert tune(Need(**{**_fields(need), "memory_bytes": asked})).memory_bytes >= 0.9 * asked
        # Two in the buffer, one that comes and one that goes, of as many partitions as there may be.
        assert need.memory_bytes < 4 * -(-need.num_nodes // 3) * need.row_bytes + _fixed(need)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.4, 0.55, 0.8])
def test_the_order_reads_what_the_tuner_expects(share: float) -> None:
    need = Need(
        num_nodes=20_000, num_edges=400_000, row_bytes=400, memory_bytes=int(share * 8e6) + 300_000, working_bytes=0
    )
    advice = tune(need)
    rng = np.random.default_rng(0)
    setting = Setting(num_partitions=advice.num_partitions, capacity=advice.capacity)
    first = ORDERS[advice.order].traverse(setting, rng)
    again = Setting(num_partitions=advice.num_partitions, capacity=advice.capacity, carried=first.states[-1])
    assert ORDERS[advice.order].traverse(again, rng).reads(first.states[-1]) == advice.reads


def test_a_quarter_of_freebase_reads_the_table_twice() -> None:
    advice = tune(Need(**FREEBASE, memory_bytes=20_000_000_000))
    assert (advice.num_partitions, advice.capacity, advice.reads) == (125, 32, 249)
    assert str(advice) == (
        "125 partitions, 32 in the buffer, order ring: an epoch reads 249 partitions, 137.1 GB, 1.99 times the table\n"
        "memory 20.0 GB of 20.0 GB: buffer 17.6 GB, staging 1.1 GB, edges 479.3 MB, ids 688.4 MB, working 67.1 MB"
    )


def test_reads_that_are_left_become_turns() -> None:
    need = {**FREEBASE, "memory_bytes": 50_000_000_000}
    fewest, closer = tune(Need(**need)), tune(Need(**need, table_reads_max=2.5))
    assert (fewest.turns, closer.turns) == (1, 3)
    assert closer.reads == 3 * fewest.reads
    assert closer.bytes_read <= 2.5 * 86_054_151 * 800 < closer.bytes_read + fewest.bytes_read
    assert "order ring in 3 turns: an epoch reads" in str(closer)
    assert tune(Need(**FREEBASE, memory_bytes=10_000_000_000, table_reads_max=2.5)).turns == 1


def test_all_of_freebase_is_trained_in_memory() -> None:
    advice = tune(Need(**FREEBASE, memory_bytes=80_000_000_000))
    assert advice.in_memory
    assert str(advice).startswith("in memory, order random: nothing is read in an epoch\nmemory 76.9 GB of 80.0 GB: ")
    setting = Setting(num_partitions=advice.num_partitions, capacity=advice.capacity)
    assert len(ORDERS[advice.order].traverse(setting, np.random.default_rng(0)).states) == 1


def test_what_cannot_fit_is_a_sentence_that_says_what_would() -> None:
    with pytest.raises(PlanError, match=r"86,054,151 nodes of 800 bytes .* into 1.0 GB, .* at least 1.1 GB of memory"):
        tune(Need(**FREEBASE, memory_bytes=1_000_000_000))
    assert tune(Need(**FREEBASE, memory_bytes=1_100_000_000)).reads > 0


@pytest.mark.parametrize("name", ["num_nodes", "row_bytes", "memory_bytes", "block_bytes"])
def test_nothing_is_no_graph(name: str) -> None:
    with pytest.raises(PlanError, match=f"{name} cannot be 0; give 1 or more"):
        Need(**{**FREEBASE, "memory_bytes": 10**9, name: 0})
    with pytest.raises(PlanError, match="num_edges cannot be -1; give 0 or more"):
        Need(num_nodes=5, num_edges=-1, row_bytes=4, memory_bytes=100)


def _fixed(need: Need) -> int:
    return need.num_nodes * 8 + need.num_edges * 24 * need.edge_copies + need.working_bytes


def _fields(need: Need) -> dict[str, int]:
    return {name: getattr(need, name) for name in Need.__slots__}
