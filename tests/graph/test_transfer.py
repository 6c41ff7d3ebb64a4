"""Rows or partitions: what is chosen follows from what each would read and from what a row costs either way."""

from __future__ import annotations

from pathlib import Path

import pytest
from graph_runs import config_of, small_graph

from foresee.graph import build, transfer
from foresee.graph.transfer import Costs, measured
from foresee.store.layout import Layout, Table
from foresee.store.registry import store_kind


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "small"
    small_graph(path, partitions=16)
    return path


@pytest.mark.parametrize(("ratio", "unit"), [(50.0, "partitions"), (0.02, "rows")])
def test_what_costs_less_moves(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, unit: str
) -> None:
    monkeypatch.setattr(build, "measured", lambda *_: Costs(alone=ratio * 1e-6, in_run=1e-6))
    config = config_of(graph, tmp_path, order={"buffer": 4}, train={"batch_size": 8})
    folder = build.open_graph(config)
    chosen = build.choose_order(config, folder)
    header, words = build.header_and_unit(config, folder, build.train_stream(config, folder, chosen), chosen)
    assert header.options.partition_rows == (1 if unit == "rows" else folder.partition_rows)
    assert words.startswith(f"moving {unit}: the first ")
    assert f"costs {ratio:.1f} times one of a partition here" in words


@pytest.mark.parametrize("store", ["memory", "disk", "grpc://127.0.0.1:1"])
def test_every_store_can_be_measured_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    monkeypatch.setattr(transfer, "PROBE_BYTES", 1 << 16)
    monkeypatch.setattr(transfer, "_measured", {})
    layout = Layout(tables=(Table("nodes", 5000),), width=8, state_width=8, optimizer="adagrad")
    found = measured(store_kind(store), layout, tmp_path / "run" / "tables")
    assert found.alone > 0
    assert found.in_run > 0
    assert measured(store_kind(store), layout, tmp_path / "run" / "tables") is found
    assert list(tmp_path.iterdir()) == []
