"""A prepared graph holds what its files said: edges by bucket, names by number, partitions and neighbours on demand."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from graph_files import TRIPLES, named, prepared, random_triples, write_triples

from foresee.errors import DataError
from foresee.graph.folder import GraphFolder


@pytest.mark.parametrize("name", ["edges.tsv", "edges.tsv.gz"])
def test_edges_keep_their_names(tmp_path: Path, name: str) -> None:
    graph = prepared(tmp_path, write_triples(tmp_path / name, TRIPLES)).graph
    assert (graph.num_nodes, graph.num_relations, graph.num_edges) == (4, 2, {"train": 5})
    assert sorted(named(graph)) == sorted(TRIPLES)
    assert graph.relation_names().to_pylist() == ["hates", "likes"]
    assert graph.weights("train") is None
    assert graph.features() is None


@pytest.mark.parametrize("partitions", [1, 2, 3, 7])
def test_train_is_sorted_by_bucket(tmp_path: Path, partitions: int) -> None:
    triples = random_triples(500, 40)
    graph = prepared(tmp_path, write_triples(tmp_path / "edges.tsv", triples), partitions=partitions).graph
    edges, offsets, rows = graph.edges("train"), graph.bucket_offsets(), graph.partition_rows
    buckets = edges[:, 0] // rows * partitions + edges[:, 2] // rows
    assert (np.diff(buckets) >= 0).all()
    assert offsets.tolist() == np.searchsorted(buckets, np.arange(partitions**2 + 1)).tolist()
    assert sorted(named(graph)) == sorted(triples)


def test_the_order_of_lines_does_not_matter(tmp_path: Path) -> None:
    triples = random_triples(300, 30)
    for name, lines in (("one", triples), ("other", triples[::-1])):
        (tmp_path / name).mkdir()
        prepared(tmp_path / name, write_triples(tmp_path / name / "edges.tsv", lines), partitions=3)
    one, other = (GraphFolder.open(tmp_path / name / "graph") for name in ("one", "other"))
    assert one.digest == other.digest
    assert np.array_equal(one.edges("train"), other.edges("train"))
    assert one.node_names().to_pylist() == other.node_names().to_pylist()


def test_another_seed_numbers_nodes_otherwise(tmp_path: Path) -> None:
    file = write_triples(tmp_path / "edges.tsv", random_triples(300, 30))
    names = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        names.append(prepared(tmp_path / str(seed), file, seed=seed).graph.node_names().to_pylist())
    assert names[0] != names[1]
    assert sorted(names[0]) == sorted(names[1])


def test_partitioned_is_the_graph_prepared_with_that_many(tmp_path: Path) -> None:
    file = write_triples(tmp_path / "edges.tsv", random_triples(400, 50))
    (tmp_path / "five").mkdir()
    direct = prepared(tmp_path / "five", file, partitions=5).graph
    graph = prepared(tmp_path, file, partitions=2).graph
    again = graph.partitioned(5)
    assert again.digest == direct.digest != graph.digest
    assert np.array_equal(again.edges("train"), direct.edges("train"))
    assert np.array_equal(again.bucket_offsets(), direct.bucket_offsets())
    assert graph.partitioned(2) is graph
    assert [place.name for place in graph.path.glob("partitions-*")] == [f"partitions-{direct.digest}"]
    with pytest.raises(DataError, match=r"51 partitions do not suit 50 nodes; give 1 to 50"):
        graph.partitioned(51)


def test_neighbours_are_the_edges_by_their_ends(tmp_path: Path) -> None:
    graph = prepared(tmp_path, write_triples(tmp_path / "edges.tsv", random_triples(400, 50)), partitions=3).graph
    edges, neighbours = graph.edges("train"), graph.neighbours()
    for side, own, other in ((neighbours.incoming, 2, 0), (neighbours.outgoing, 0, 2)):
        assert side.relations is not None
        for node in range(graph.num_nodes):
            some = slice(side.offsets[node], side.offsets[node + 1])
            found = list(zip(side.ids[some].tolist(), side.relations[some].tolist(), strict=True))
            assert found == sorted((int(edge[other]), int(edge[1])) for edge in edges if edge[own] == node)


def test_neighbours_inside_partitions(tmp_path: Path) -> None:
    graph = prepared(tmp_path, write_triples(tmp_path / "edges.tsv", random_triples(400, 50)), partitions=5).graph
    inside = graph.neighbours().inside(np.array([0, 3], np.int32), graph.partition_rows)
    parts = graph.edges("train")[:, ::2] // graph.partition_rows
    wanted = graph.edges("train")[np.isin(parts, [0, 3]).all(axis=1)]
    tails = np.repeat(np.arange(graph.num_nodes), inside.incoming.degrees())
    assert inside.incoming.relations is not None
    found = np.stack([inside.incoming.ids, inside.incoming.relations, tails], axis=1)
    assert sorted(found.tolist()) == sorted(wanted.tolist())


def test_what_is_no_graph_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no prepared graph .* make one with `foresee graph prepare`"):
        GraphFolder.open(tmp_path)
    (tmp_path / "graph.json").write_text("{}")
    with pytest.raises(DataError, match=r"graph.json: it describes no graph of version 1; prepare the graph again"):
        GraphFolder.open(tmp_path)


@pytest.mark.parametrize("value", [None, -1, 1 << 70, 0.5, "x", [], {}, {"train": "x"}, {"a": None}, True])
def test_a_damaged_description_is_a_sentence(tmp_path: Path, value: object) -> None:
    graph = prepared(tmp_path, write_triples(tmp_path / "edges.tsv", TRIPLES)).graph
    whole = json.loads((graph.path / "graph.json").read_text())
    refused = []
    for name in whole:
        (graph.path / "graph.json").write_text(json.dumps(whole | {name: value}))
        try:
            GraphFolder.open(graph.path)
        except DataError as error:
            refused.append(str(error))
    assert len(refused) >= 4
    assert all(sentence.endswith("; prepare the graph again.") for sentence in refused)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, graph: GraphFolder) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("foresee.graph.prepare.write_description", full)
    with pytest.raises(DataError, match="the disk is full and nothing was kept"):
        prepared(tmp_path, write_triples(tmp_path / "edges.tsv", TRIPLES))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edges.tsv", "unpacked"]


def test_a_missing_split_is_a_sentence(tmp_path: Path) -> None:
    graph = prepared(tmp_path, write_triples(tmp_path / "edges.tsv", TRIPLES)).graph
    with pytest.raises(DataError, match="the graph has no edges for valid; it has train"):
        graph.edges("valid")
    with pytest.raises(DataError, match="the graph has no nodes for train; it has none at all"):
        graph.nodes("train")
    with pytest.raises(DataError, match="the graph has no labels"):
        graph.labels()


def test_an_array_of_another_length_is_refused(tmp_path: Path) -> None:
    graph = prepared(tmp_path, write_triples(tmp_path / "edges.tsv", TRIPLES)).graph
    np.save(graph.path / "train.npy", np.zeros((3, 3), np.int32))
    with pytest.raises(DataError, match=r"expected int32 or int64 of shape \(5, 3\), found int32 of shape \(3, 3\)"):
        graph.edges("train")
