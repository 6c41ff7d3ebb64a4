"""Graphs at URLs: read from there, made there, and trained from there to the bytes of one on this disk."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from graph_files import random_triples, write_triples
from graph_runs import content_of, kept_bytes, small_graph

from command_line import foresee
from foresee.errors import ConfigError, StoreError
from foresee.graph.config import GraphConfig
from foresee.graph.folder import DESCRIPTION_FILE, GraphFolder
from foresee.io.storage import Storage
from foresee.io.urls import sent
from foresee.run.config_file import load
from s3_server import Network, url_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORESEE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def put(url: str, path: Path) -> str:
    Storage.open(url).put("", lambda: [path.read_bytes()])
    return url


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def there(url: str) -> dict[str, bytes]:
    storage = Storage.open(url)
    return {name: storage.get(name) or b"" for name in storage.names()}


def raw_files(folder: Path) -> dict[str, Path]:
    """The same edges in four forms."""
    triples = random_triples(400, 60)
    packed = write_triples(folder / "edges.tsv.gz", triples)
    heads, relations, tails = zip(*triples, strict=True)
    pq.write_table(pa.table({"head": heads, "relation": relations, "tail": tails}), folder / "edges.parquet")
    text = "".join("\t".join(triple) + "\n" for triple in triples).encode()
    with tarfile.open(folder / "edges.tar.gz", "w:gz") as archive:
        for name in ("train.txt", "valid.txt"):
            member = tarfile.TarInfo(f"graph/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    rng = np.random.default_rng(0)
    np.savez_compressed(folder / "edges.npz", edges=rng.integers(40, size=(300, 2)))
    return {path.name: path for path in (packed, *(folder / f"edges.{end}" for end in ("parquet", "tar.gz", "npz")))}


@pytest.mark.parametrize("name", ["edges.tsv.gz", "edges.parquet", "edges.tar.gz", "edges.npz"])
def test_a_graph_is_prepared_from_a_url_to_a_url(
    name: str, network: Network, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = raw_files(tmp_path)[name]
    raw, out = put(url_of(network.port, f"graphs/{name}"), path), url_of(network.port, f"graphs/{name}-prepared")
    network.cuts_at_bytes = [2_000]
    assert foresee("graph", "prepare", raw, "--out", out, "--partitions", 4, monkeypatch=monkeypatch) == 0
    assert network.cut == 1
    said = capsys.readouterr().out
    assert said.startswith(f"s3://bucket/graphs/{name}-prepared: ")
    assert "endpoint_override" not in said
    here = tmp_path / "here"
    assert foresee("graph", "prepare", path, "--out", here, "--partitions", 4, monkeypatch=monkeypatch) == 0
    assert there(out) == contents(here)
    assert not [path for path in cache.rglob("*") if path.is_file()]
    assert foresee("graph", "prepare", raw, "--out", out, monkeypatch=monkeypatch) == 2
    assert f"s3://bucket/graphs/{name}-prepared exists; give another target" in capsys.readouterr().err


def test_what_is_wrong_with_raw_files_is_a_sentence(
    s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "edges.tsv").write_text("a\tb\nc\t\n")
    url = put(url_of(s3_port, "wrong/edges.tsv"), tmp_path / "edges.tsv")
    missing = url_of(s3_port, "wrong/missing.tsv")
    for files, words in (
        ([url], "s3://bucket/wrong/edges.tsv:2: column tail: expected the name of a node, found nothing"),
        ([missing], "s3://bucket/wrong/missing.tsv: there is no such file; check the URL"),
        (
            [url, "--num-nodes", 3, "--features", missing],
            "missing.tsv: an array is mapped, so it has to be",
        ),
    ):
        assert foresee("graph", "prepare", *files, "--out", tmp_path / "graph", monkeypatch=monkeypatch) == 2
        said = capsys.readouterr().err
        assert words in said
        assert "endpoint_override" not in said
        assert not (tmp_path / "graph").exists()


def copied(graph: Path, url: str) -> str:
    with sent(url, marker=DESCRIPTION_FILE, replace=True) as folder:
        shutil.copytree(graph, folder)
    return url


def test_a_graph_is_brought_once_and_what_is_made_of_it_stays(s3_port: int, tmp_path: Path, network: Network) -> None:
    graph = small_graph(tmp_path / "graph")
    url = copied(graph.path, url_of(network.port, "graphs/brought"))
    brought = GraphFolder.open(url)
    assert brought.digest == graph.digest
    assert contents(brought.path).keys() == {*contents(graph.path), ".seen.json"}
    parts = brought.partitioned(4)._edges_path
    brought.neighbours()
    made = {path: path.stat().st_ino for path in sorted(brought.path.rglob("*/*"))}
    assert parts in {path.parent for path in made}
    assert GraphFolder.open(url).partitioned(4)._edges_path == parts
    assert {path: path.stat().st_ino for path in sorted(brought.path.rglob("*/*"))} == made
    other = small_graph(tmp_path / "other", num_edges=500)
    copied(other.path, url)
    assert GraphFolder.open(url).digest == other.digest
    with pytest.raises(ConfigError, match=r"^s3://bucket/none is not there or has no graph.json; check the URL"):
        GraphFolder.open(url_of(s3_port, "none"))
    with pytest.raises(StoreError, match=r"there is no bucket 'nowhere'"):
        GraphFolder.open(url_of(s3_port, "graph", "nowhere"))


def test_a_run_has_graph_and_run_at_urls_and_goes_on_elsewhere(
    network: Network, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = small_graph(tmp_path / "graph")
    url = copied(graph.path, url_of(network.port, "graphs/run"))
    run = url_of(network.port, "runs/graph")
    files = {}
    for name, places in (("here", (graph.path, tmp_path / "run")), ("there", (url, run))):
        content = content_of(*places)
        files[name] = tmp_path / f"{name}.yaml"
        files[name].write_text(yaml.safe_dump(content))
    for command in (["plan", "--steps", 3], ["layout", "--out", tmp_path / "layout.json"]):
        assert foresee("graph", command[0], files["there"], *command[1:], monkeypatch=monkeypatch) == 0
    assert foresee("graph", "train", files["here"], monkeypatch=monkeypatch) == 0
    assert foresee("graph", "train", files["there"], "--stop-after", 9, monkeypatch=monkeypatch) == 0
    shutil.rmtree(cache)
    network.cuts_at_bytes = [5_000]
    assert foresee("graph", "train", files["there"], "--resume", monkeypatch=monkeypatch) == 0
    assert network.cut == 1
    config = load(GraphConfig, files["there"])
    assert kept_bytes(config) == kept_bytes(load(GraphConfig, files["here"]))
    capsys.readouterr()
    shutil.rmtree(cache)
    assert foresee("graph", "export", run, "--out", url_of(network.port, "exports/graph"), monkeypatch=monkeypatch) == 0
    shutil.rmtree(cache)
    assert foresee("graph", "export", tmp_path / "run", "--out", tmp_path / "export", monkeypatch=monkeypatch) == 0
    assert there(url_of(network.port, "exports/graph")) == contents(tmp_path / "export")
    for of in (run, tmp_path / "run"):
        assert foresee("graph", "evaluate", of, "--split", "test", "--json", monkeypatch=monkeypatch) == 0
    figures = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert figures[0].pop("run") == "s3://bucket/runs/graph"
    assert figures[0] == {name: value for name, value in figures[1].items() if name != "run"}
