"""Lines of a bill for any prices and speeds: cost, what does not fit, the knee; and node types as people write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.errors import ConfigError
from foresee.tools.bill import Line, Need, NodeType, knee, line, need_of, read_node_types, that_fit

positive = st.floats(0.01, 1e6)
nodes = st.builds(
    NodeType,
    name=st.sampled_from(["small", "large", "huge"]),
    price=positive,
    cores=positive,
    memory_gb=st.floats(1.0, 1e3),
    link_gbit=positive,
    disk_gb=st.just(0.0) | st.floats(1.0, 1e4),
)
needs = st.builds(Need, memory_bytes=st.floats(0.0, 2e12), disk_bytes=st.floats(0.0, 2e13))
lines = st.builds(Line, node=nodes, num_nodes=st.integers(1, 64), hours=positive, need=needs)
roomy = st.builds(
    Line, node=nodes, num_nodes=st.integers(1, 64), hours=positive, need=st.just(Need(memory_bytes=0, disk_bytes=0))
)


@given(nodes, st.integers(1, 64), positive, positive)
def test_a_line_costs_nodes_times_hours_times_price(node: NodeType, number: int, samples: float, speed: float) -> None:
    need = Need(memory_bytes=0, disk_bytes=0)
    found = line(node, number, num_samples=samples, samples_per_second=speed, need=need)
    assert found.hours * 3600 * speed == pytest.approx(samples)
    assert found.cost == pytest.approx(number * found.hours * node.price)


@given(lines)
def test_what_does_not_fit_says_why(it: Line) -> None:
    fits = it.need.memory_bytes <= it.node.memory_gb * 1e9 and it.need.disk_bytes <= it.node.disk_gb * 1e9
    assert (it.refusal is None) == fits
    if not fits:
        assert f"{it.node.name} has" in str(it.refusal)
        with pytest.raises(ConfigError, match="nothing fits: with"):
            knee([it])


@given(st.lists(lines, min_size=1, max_size=12))
def test_the_knee_fits_and_no_other_is_cheaper_and_faster(given_lines: list[Line]) -> None:
    if all(it.refusal for it in given_lines):
        return
    best, fitting = knee(given_lines), that_fit(given_lines)
    assert best in fitting
    assert all(it.cost * it.hours >= best.cost * best.hours for it in fitting)
    assert not any(it.cost < best.cost and it.hours < best.hours for it in fitting)


@given(st.lists(roomy, min_size=1, max_size=12), st.sampled_from([0.25, 2.0, 8.0]))
def test_the_currency_does_not_move_the_knee(given_lines: list[Line], rate: float) -> None:
    dearer = [replace(it, node=replace(it.node, price=rate * it.node.price)) for it in given_lines]
    assert dearer.index(knee(dearer)) == given_lines.index(knee(given_lines))


@given(nodes, positive)
def test_the_knee_of_known_curves(node: NodeType, hours: float) -> None:
    """All nodes where each saves its share of time, one where none saves any, and between them where Amdahl says."""
    none = Need(memory_bytes=0, disk_bytes=0)
    counts = (1, 2, 4, 8, 16, 32, 64)

    def found(hours_of: dict[int, float]) -> int:
        return knee([Line(node=node, num_nodes=it, hours=hours_of[it], need=none) for it in counts]).num_nodes

    assert found({it: hours / it for it in counts}) == 64
    assert found(dict.fromkeys(counts, hours)) == 1
    serial = 1 / 8
    assert found({it: hours * (serial + (1 - serial) / it) for it in counts}) == 8, "(1 - s) / s, nearest power of two"


@given(nodes, positive, positive, positive, st.integers(1, 10**9))
def test_rows_are_on_the_disk_if_there_is_one(
    node: NodeType, trainer: float, planner: float, shard: float, rows: int
) -> None:
    need = need_of(node, trainer_bytes=trainer, planner_bytes=planner, server_bytes=shard, server_rows=rows)
    assert need.memory_bytes > trainer + planner + (8 * rows if node.disk_gb else shard)
    assert (need.disk_bytes >= shard) if node.disk_gb else need.disk_bytes == 0


GOOD = "{name: small, price: 0.8, cores: 16, memory_gb: 64, link_gbit: 10"


def test_node_types_are_read(tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(f"- {GOOD}}}\n- {GOOD.replace('small', 'large')}, disk_gb: 900, compute_ms: 3}}\n")
    small, large = read_node_types(file)
    assert (small.name, small.price, small.disk_gb, small.compute_ms) == ("small", 0.8, 0.0, None)
    assert (large.name, large.disk_gb, large.compute_ms) == ("large", 900.0, 3.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "give a list of node types, each with name, price, cores"),
        ("name: small\n", "give a list of node types"),
        ("- small\n", "node type 1: 'small' is not a mapping"),
        (f"- {GOOD}, gpus: 1}}", "node type 1: there is no 'gpus'; choose of name, price"),
        (f"- {GOOD.replace('price: 0.8, ', '')}}}", "node type 1: price is missing; give name, price"),
        (f"- {GOOD.replace('0.8', 'cheap')}}}", "node type 1 (small): price is 'cheap'; give a number above 0"),
        (f"- {GOOD.replace('0.8', '0')}}}", "price is 0; give a number above 0"),
        (f"- {GOOD.replace('0.8', '.nan')}}}", "price is nan; give a number above 0"),
        (f"- {GOOD.replace('16', 'true')}}}", "cores is True; give a number above 0"),
        (f"- {GOOD}, disk_gb: -1}}", "disk_gb is -1; give a number from 0"),
        (f"- {GOOD.replace('small', '7')}}}", "name is 7; give a word"),
        (f"- {GOOD}}}\n- {GOOD}}}", "small is there 2 times; give every node type its own name"),
        ("- {", "is not YAML ("),
        ("\x00", "is not YAML ("),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_node_types(file)
    assert sentence in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file"):
        read_node_types(tmp_path / "nodes.yaml")
