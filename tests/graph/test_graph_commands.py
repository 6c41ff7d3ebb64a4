"""`foresee graph train`, `plan`, `verify`, `evaluate`, `export` and `neighbours`, as a person types them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from graph_runs import content_of, small_graph
from safetensors.torch import load_file
from typer.testing import CliRunner

from foresee.errors import ForeseeError
from foresee.graph.folder import GraphFolder
from foresee.graph.queries import NODES_AT_ONCE, likely_ends, most_similar
from foresee.graph.trained import open_trained
from foresee.run.config_file import load_run
from foresee.run.folder import RunFolder
from foresee.tools.cli.graph import app
from foresee.tools.fsck import check

Ask = Callable[..., str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run with a buffer, its run file beside it."""
    place = tmp_path_factory.mktemp("commands")
    small_graph(place / "graph", partitions=8)
    content = content_of(Path("graph"), Path("run"), order={"buffer": 4})
    (place / "run.yaml").write_text(yaml.safe_dump(content))
    ask("train", str(place / "run.yaml"))
    return place


def ask(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, ForeseeError):
        raise done.exception
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_a_plan_says_what_would_move(place: Path) -> None:
    found = json.loads(ask("plan", str(place / "run.yaml"), "--json"))
    rows, partitions = found["units"]
    assert rows["counters"]["num_fetched"] <= partitions["counters"]["num_fetched"]
    assert partitions["counters"]["num_fetched"] >= 100
    assert [rows["chosen"], partitions["chosen"]].count(True) == 1
    said = ask("plan", str(place / "run.yaml"), "--set", "cache.rows=99", "--set", "cache.unit=rows", "--steps", "5")
    assert "the cache has 99 of 100 rows" in " ".join(said.split())


def test_bytes_are_verified(place: Path) -> None:
    assert "bytes are equal after 10 steps" in ask("verify", str(place / "run.yaml"), "--steps", "10")


def test_a_run_is_checked_and_other_commands_say_whose_it_is(place: Path) -> None:
    report = check(place / "run")
    assert report.is_whole, report.findings
    assert any(finding.what == "commits" for finding in report.findings)
    with pytest.raises(ForeseeError, match="is a run over a graph; use the commands of `foresee graph`"):
        load_run(place / "run.yaml")


def test_figures_of_a_split(place: Path) -> None:
    found = json.loads(ask("evaluate", str(place / "run"), "--split", "test", "--json"))
    assert 0 < found["mrr"] <= 1
    assert found["num_queries"] == 2 * GraphFolder.open(place / "graph").num_edges["test"]
    assert "MRR" in ask("evaluate", str(place / "run"), "--samples", "3")
    with pytest.raises(ForeseeError, match="keeps no best"):
        ask("evaluate", str(place / "run"), "--best")
    with pytest.raises(ForeseeError, match=r"holds no run .*start one with `foresee graph train`"):
        ask("evaluate", str(place / "nowhere"))


def test_a_run_in_memory_is_evaluated_and_exported_when_it_ends(place: Path, tmp_path: Path) -> None:
    run = tmp_path / "in-memory"
    options = ("--set", f"run={run}", "--set", "tables.store=memory")
    said = " ".join(ask("train", str(place / "run.yaml"), *options).split())
    assert "rows were in memory and end" not in said
    with pytest.raises(ForeseeError, match="were in memory and ended with their process"):
        ask("train", str(place / "run.yaml"), *options, "--resume")
    figures = [json.loads(ask("evaluate", str(it), "--json")) for it in (place / "run", run)]
    assert {**figures[0], "run": ""} == {**figures[1], "run": ""}
    for folder, out in ((place / "run", "disk"), (run, "memory")):
        ask("export", str(folder), "--out", str(tmp_path / out), "--format", "npy")
    assert (tmp_path / "disk" / "nodes.npy").read_bytes() == (tmp_path / "memory" / "nodes.npy").read_bytes()
    assert check(run).is_whole
    said = " ".join(ask("train", str(place / "run.yaml"), *options, "--replace", "--stop-after", "1").split())
    assert "stopped after 1 of" in said
    assert json.loads(ask("evaluate", str(run), "--json"))["step"] == 1


def test_a_run_in_memory_that_did_not_end_says_so(place: Path, tmp_path: Path) -> None:
    ask("train", str(place / "run.yaml"), "--set", f"run={tmp_path / 'run'}", "--set", "tables.store=memory")
    shutil.rmtree(RunFolder(tmp_path / "run").kept_tables)
    with pytest.raises(ForeseeError, match="writes them when it ends, and this one has not ended or was killed"):
        ask("evaluate", str(tmp_path / "run"))


def test_one_step_is_one(place: Path, tmp_path: Path) -> None:
    options = ("--set", f"run={tmp_path / 'run'}", "--set", "train.batch_size=1000", "--set", "train.epochs=1")
    said = " ".join(ask("train", str(place / "run.yaml"), *options, "--set", "order.buffer=8").split())
    assert "1 step of up to 1,000 edges" in said
    assert "done: 1 step, kept in" in said


@pytest.mark.parametrize("form", ["safetensors", "npy", "word2vec"])
def test_vectors_are_exported(place: Path, tmp_path: Path, form: str) -> None:
    ask("export", str(place / "run"), "--out", str(tmp_path / "out"), "--format", form)
    with open_trained(place / "run") as run:
        wanted = run.vectors.of(np.arange(100)).numpy()
        names = run.names_of(np.arange(100))
        weights = run.model.state_dict()
    found: Any
    if form == "safetensors":
        found = load_file(tmp_path / "out" / "nodes.safetensors")["nodes"].numpy()
    elif form == "npy":
        found = np.load(tmp_path / "out" / "nodes.npy")
    else:
        first, *lines = (tmp_path / "out" / "nodes.txt").read_text().splitlines()
        assert first == "100 8"
        assert [line.split()[0] for line in lines] == names
        found = np.array([[float(it) for it in line.split()[1:]] for line in lines], np.float32)
    np.testing.assert_array_equal(found, wanted)
    assert [str(it) for it in pq.read_table(tmp_path / "out" / "nodes.parquet")["name"].to_pylist()] == names
    kept = load_file(tmp_path / "out" / "model.safetensors")
    assert all(torch.equal(kept[name], weights[name]) for name in weights)
    with pytest.raises(ForeseeError):
        ask("export", str(place / "run"), "--out", str(tmp_path / "out"), "--format", form)


def test_an_unknown_format_leaves_nothing(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ForeseeError, match="--format: there is no 'csv'; choose one of safetensors, npy, word2vec"):
        ask("export", str(place / "run"), "--out", str(tmp_path / "out"), "--format", "csv")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("at_once", [7, NODES_AT_ONCE])
def test_answers_are_exact_whatever_the_block(place: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr("foresee.graph.queries.NODES_AT_ONCE", at_once)
    with open_trained(place / "run") as run:
        vectors = run.vectors.of(np.arange(100))
        near = most_similar(run, 5, top=4)
        cosine = torch.nn.functional.cosine_similarity(vectors, vectors[5:6])
        cosine[5] = -2
        assert near.nodes.tolist() == cosine.argsort(descending=True)[:4].tolist()
        decoder: Any = run.model.decoder
        for heads in (False, True):
            scores = decoder.compare(decoder.query(vectors[5:6], torch.tensor([1]), heads=heads), vectors)[0]
            every = likely_ends(run, 5, 1, top=100, heads=heads, known=True)
            assert every.nodes.tolist() == scores.argsort(descending=True, stable=True).tolist()
            edges = np.concatenate([np.asarray(run.graph.edges(it)) for it in ("train", "valid", "test")])
            known, other = (2, 0) if heads else (0, 2)
            there = set(edges[(edges[:, known] == 5) & (edges[:, 1] == 1), other].tolist())
            new = likely_ends(run, 5, 1, top=100, heads=heads)
            assert set(new.nodes.tolist()) == set(range(100)) - there


def test_neighbours_by_name(place: Path) -> None:
    with open_trained(place / "run") as run:
        name, relation = run.names_of([3])[0], str(run.graph.relation_names()[0])
    similar = json.loads(ask("neighbours", str(place / "run"), name, "--top", "3", "--json"))
    assert len(similar) == 3
    assert name not in [it["node"] for it in similar]
    likely = json.loads(ask("neighbours", str(place / "run"), name, "--relation", relation, "--json"))
    assert [it["score"] for it in likely] == sorted((it["score"] for it in likely), reverse=True)
    with pytest.raises(ForeseeError, match="has no node 'nobody'; its first ones are"):
        ask("neighbours", str(place / "run"), "nobody")
    with pytest.raises(ForeseeError, match="has no relation 'loves'"):
        ask("neighbours", str(place / "run"), name, "--relation", "loves")
    with pytest.raises(ForeseeError, match="--by: found 'colour'"):
        ask("neighbours", str(place / "run"), name, "--by", "colour")


def test_the_demo_ends_with_equal_figures(tmp_path: Path) -> None:
    words = ("--num-nodes", "1000", "--num-edges", "5000", "--epochs", "1")
    said = ask("demo", "--folder", str(tmp_path / "demo"), *words)
    assert said.count("  equal") == 2
    assert "NOT EQUAL" not in said
    assert "is there already" in ask("demo", "--folder", str(tmp_path / "demo"), *words)


def test_an_index_finds_what_the_exact_way_does(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed: pip install 'foresee[faiss]'")
    from foresee.graph import queries

    monkeypatch.setattr(queries, "INDEX_NODES_MIN", 50)
    name = GraphFolder.open(place / "graph").node_names()[7].as_py()
    exact = json.loads(ask("neighbours", str(place / "run"), str(name), "--top", "5", "--json"))
    for _ in range(2):  # made, then opened
        near = json.loads(ask("neighbours", str(place / "run"), str(name), "--top", "5", "--json", "--index"))
        assert near[0]["node"] == exact[0]["node"]
        assert len({it["node"] for it in near} & {it["node"] for it in exact}) >= 4
    assert len(list((place / "run").glob("neighbours-cosine-*.faiss"))) == 1
    with pytest.raises(ForeseeError, match=r"--index: it is of similar nodes"):
        ask("neighbours", str(place / "run"), str(name), "--index", "--tails")


def test_a_page_of_a_run(place: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed: pip install 'foresee[report]'")
    assert "open it in a browser" in ask("report", str(place / "run"), "--out", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    headings = ("Summary", "Loss", "MRR", "Buckets filling in order", "The buffer", "Swaps over time",
                "Bytes read and written")  # fmt: skip
    assert [heading for heading in headings if f"<h2>{heading}</h2>" not in page] == []
    assert "swaps" in page


def test_reads_of_the_page_are_those_of_the_order(place: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed: pip install 'foresee[report]'")
    from foresee.tools.report.graph import open_run

    run = open_run(place / "run")
    first, second = run.epochs
    assert sum(count for _, count in first.reads()) == first.traversal.reads()
    assert sum(count for _, count in second.reads()) == second.traversal.reads(first.traversal.states[-1])
    assert next(step for step, _ in second.reads()) == first.first_steps[-1]
