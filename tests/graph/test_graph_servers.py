"""Rows of nodes on embedding servers: trained, resumed, evaluated and exported as from disk, to the byte."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_runs import config_of, content_of, kept_bytes, small_graph, train

from command_line import foresee
from foresee.errors import ConfigError, ForeseeError, StoreError
from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.graph.trained import open_trained
from foresee.run import folder
from foresee.run.config_file import make
from foresee.store.contract import Rows
from foresee.store.registry import DISK, store_kind
from foresee.store.remote import RemoteStore
from foresee.store.server.service import EmbeddingServer
from foresee.store.server.shard import Share, open_shard
from foresee.tools.fsck import check


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "small"
    small_graph(path, partitions=8)
    return path


@pytest.fixture
def servers(graph: Path, tmp_path: Path) -> Iterator[str]:
    """Two of them, with rows on disk."""
    config = config_of(graph, tmp_path)
    layout = build.table_layout(config, build.open_graph(config))
    with ExitStack() as stack:
        addresses = []
        for shard in range(2):
            made = open_shard(DISK, tmp_path / f"shard-{shard}", layout, Share(shard, 2))
            server = EmbeddingServer(made)
            stack.callback(server.shutdown)
            stack.callback(server.stop, 10.0)
            addresses.append(server.address)
        yield ",".join(addresses)


def test_a_run_on_servers_is_one_on_disk(
    graph: Path, tmp_path: Path, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections: dict[str, Any] = {"order": {"buffer": 4}, "train": {"epochs": 1, "best": {"metric": "mrr"}}}
    on_disk = config_of(graph, tmp_path / "disk", **sections)
    on_servers = config_of(graph, tmp_path / "servers", tables={"store": servers}, **sections)
    whole = train(on_disk)
    assert not train(on_servers, stop_after=7).finished
    first, second = servers.split(",")
    elsewhere = config_of(graph, tmp_path / "servers", tables={"store": f"{second},{first}"}, **sections)
    resumed = train(elsewhere, resume=True)
    assert resumed.valid == whole.valid
    assert kept_bytes(elsewhere) == kept_bytes(on_disk)
    for best in (False, True):
        with open_trained(on_servers.run, best=best) as trained:
            assert trained.evaluate("valid") == whole.valid
    out = tmp_path / "out"
    assert foresee("graph", "export", on_servers.run, "--out", out, monkeypatch=monkeypatch) == 0
    assert any("the rows are on grpc://" in finding.text for finding in check(on_servers.run).findings)
    with pytest.raises(ConfigError, match=r"holds the rows of a run already.*go on with --resume"):
        train(config_of(graph, tmp_path / "other", tables={"store": servers}))
    with pytest.raises(ConfigError, match=r"holds the rows of a run already"):
        train(on_servers, replace=True)
    assert kept_bytes(on_servers) == kept_bytes(on_disk)


def test_rows_after_the_last_commit_are_not_read(graph: Path, tmp_path: Path, servers: str) -> None:
    config = config_of(graph, tmp_path / "run", tables={"store": servers})
    with pytest.raises(StoreError, match="holds no tables yet; train first"), open_trained(_begun(config)):
        pass
    train(config, replace=True, stop_after=4)
    layout = build.table_layout(config, build.open_graph(config))
    kind = store_kind(servers)
    assert kind.open_newest is not None
    store = kind.open_newest(layout, [4])
    assert isinstance(store, RemoteStore)
    rows = Rows.empty(1, layout)
    ids = np.array([3])
    store.read(ids, rows)
    rows.versions[:] = 6
    store.write_step(5, ids, rows)
    store.close()
    with open_trained(config.run) as trained, pytest.raises(StoreError, match="rows of step 6, their last commit"):
        trained.evaluate("valid")


def _begun(config: GraphConfig) -> Path:
    with folder.begin(config, log_digest="", replace=False):
        pass
    return config.run


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        ("grpc://127.0.0.1", "is not the address of a server"),
        ("grpc://127.0.0.1:7,grpc://127.0.0.1:7", "names a server twice"),
        ("grpc://example.org:7", "rows would travel in the clear"),
    ],
)
def test_addresses_that_cannot_be(graph: Path, tmp_path: Path, store: str, sentence: str) -> None:
    with pytest.raises(ForeseeError, match=sentence):
        train(config_of(graph, tmp_path / "run", tables={"store": store}))
    assert not (tmp_path / "run").exists()


def test_a_layout_for_servers(
    graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = content_of(graph, tmp_path / "run")
    config = make(GraphConfig, content, where="test")
    (tmp_path / "run.yaml").write_text(json.dumps(content))
    arguments = ("graph", "layout", tmp_path / "run.yaml", "--out", tmp_path / "layout.json")
    assert foresee(*arguments, monkeypatch=monkeypatch) == 0
    assert "100 nodes, each of 8 values and 8 of state (adagrad)" in " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "layout.json").read_text())
    assert found["tables"] == [{"name": "nodes", "num_rows": 100}]
    assert found["init_scale"] == build.table_layout(config, build.open_graph(config)).init_scale
