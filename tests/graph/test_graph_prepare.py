"""What `prepare_graph` makes of files: columns, splits, weights, labels and features, and a sentence for bad input."""

from __future__ import annotations

import fcntl
import gzip
import io
import os
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from graph_files import TRIPLES, named, prepared, random_triples, write_triples

from command_line import foresee
from foresee.data.formats.text import line_blocks
from foresee.errors import DataError
from foresee.graph.folder import GraphFolder
from foresee.graph.formats import open_source
from foresee.graph.formats import source as graph_source
from foresee.graph.options import GraphOptions
from foresee.graph.prepare import prepare_graph
from real_data import RealData


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def given_edges(graph: GraphFolder, split: str = "train") -> list[tuple[Any, ...]]:
    names = graph.node_names().to_pylist()
    return sorted((names[head], int(relation), names[tail]) for head, relation, tail in graph.edges(split).tolist())


def test_little_memory_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_triples(tmp_path / "edges.tsv", random_triples(40_000, 3_000))
    graphs = []
    for name, memory, block in (("much", 512, 4 << 20), ("little", 1, 1 << 14)):
        monkeypatch.setattr(line_blocks, "__kwdefaults__", {"encoding": "utf-8", "block_bytes": block})
        (tmp_path / name).mkdir()
        graphs.append(prepared(tmp_path / name, file, memory=memory, partitions=3, valid_share=0.1).graph)
    assert graphs[0].digest == graphs[1].digest
    for file_name in ("train.npy", "valid.npy", "buckets.npy"):
        assert (graphs[0].path / file_name).read_bytes() == (graphs[1].path / file_name).read_bytes()
    assert graphs[0].node_names().to_pylist() == graphs[1].node_names().to_pylist()
    assert not list(graphs[1].path.glob("spool*"))


def test_pairs_weights_and_names_of_columns(tmp_path: Path) -> None:
    pairs = prepared(tmp_path, write(tmp_path / "pairs.csv", "1,2\n2,3\n")).graph
    assert (pairs.num_relations, pairs.num_nodes, pairs.num_edges) == (0, 3, {"train": 2})
    file = tmp_path / "edges.parquet"
    pq.write_table(pa.table({"payee": ["b", "c"], "amount": [0.5, 2.0], "payer": ["a", "a"]}), file)
    settings = {"head": "payer", "tail": "payee", "weight": "amount"}
    graph = prepared(tmp_path, file, settings=settings, replace=True).graph
    names, weights = graph.node_names().to_pylist(), graph.weights("train")
    assert weights is not None
    found = {
        (names[head], names[tail]): weight
        for (head, _, tail), weight in zip(graph.edges("train"), weights, strict=True)
    }
    assert found == {("a", "b"): 0.5, ("a", "c"): 2.0}


def test_a_header_and_comments(tmp_path: Path) -> None:
    file = write(tmp_path / "edges.csv", 'to,kind,from\n"b, the second",likes,a\n')
    settings: dict[str, Any] = {"header": True, "head": "from", "relation": "kind", "tail": "to"}
    assert named(prepared(tmp_path, file, settings=settings).graph) == [("a", "likes", "b, the second")]
    del settings["header"]  # a column that is named can only be one of the first line
    graph = prepared(tmp_path, file, settings=settings, replace=True).graph
    assert named(graph) == [("a", "likes", "b, the second")]
    with pytest.raises(DataError, match=r"edges.csv:1: column 'of' is not among .*\(to, kind, from\); name one"):
        prepared(tmp_path, file, settings={**settings, "head": "of"}, replace=True)
    snap = write(tmp_path / "snap.txt", "# Directed graph\n# FromNodeId\tToNodeId\n0\t1\n1\t2\n")
    graph = prepared(tmp_path, snap, settings={"comment": "#"}, replace=True).graph
    assert sorted(graph.node_names().to_pylist()) == ["0", "1", "2"]


def test_splits_given_and_drawn(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    train = write_triples(tmp_path / "all/train.txt", TRIPLES)
    write_triples(tmp_path / "all/valid.txt", [("e", "likes", "a")])
    report = prepared(tmp_path, tmp_path / "all")
    assert report.graph.num_edges == {"train": 5, "valid": 1}
    assert named(report.graph, "valid") == [("e", "likes", "a")]
    assert "1 node of valid and test without an edge in train: nothing is learnt of them" in report.notes
    many = write_triples(train, random_triples(2000, 100))
    drawn = prepared(tmp_path, many, replace=True, valid_share=0.2, test_share=0.1).graph
    assert drawn.num_edges["valid"] == pytest.approx(400, abs=60)
    assert drawn.num_edges["test"] == pytest.approx(200, abs=50)
    again = [triple for split in drawn.num_edges for triple in named(drawn, split)]
    assert sorted(again) == sorted(random_triples(2000, 100))


def test_loops_and_duplicates_are_said_and_left_out_if_asked(tmp_path: Path) -> None:
    file = write_triples(tmp_path / "edges.tsv", [*TRIPLES, TRIPLES[0], TRIPLES[0]])
    kept = prepared(tmp_path, file)
    assert kept.notes == ("1 self loop kept (--self-loops)", "2 duplicates of train edges kept (--duplicates)")
    assert kept.graph.num_edges == {"train": 7}
    left = prepared(tmp_path, file, replace=True, self_loops="drop", duplicates="drop")
    assert left.notes == ("1 self loop left out (--self-loops)", "2 duplicates of train edges left out (--duplicates)")
    assert sorted(named(left.graph)) == sorted(TRIPLES[:4])


def test_an_unknown_relation_of_valid_is_said(tmp_path: Path) -> None:
    file = write_triples(tmp_path / "train.tsv", TRIPLES)
    valid = write_triples(tmp_path / "valid.tsv", [("a", "fears", "b")])
    report = prepared(tmp_path, file, settings={"valid_files": (valid,)})
    assert report.notes[-1] == "1 relation of valid and test without an edge in train: nothing is learnt of them"


def test_nodes_with_labels_splits_and_features(tmp_path: Path) -> None:
    edges = write(tmp_path / "edges.csv", "x,y\ny,z\nz,w\n")
    nodes = write(
        tmp_path / "nodes.tsv", "name\tlabel\tsplit\ny\tred\ttrain\nx\tblue\tvalid\nlonely\t\t\nz\tred\ttrain\n"
    )
    np.save(tmp_path / "features.npy", np.arange(8).reshape(4, 2))
    settings = {"node_file": nodes, "features": tmp_path / "features.npy"}
    report = prepared(tmp_path, edges, settings=settings, train_nodes_first=True)
    graph, names = report.graph, report.graph.node_names().to_pylist()
    assert report.notes == ("1 node without any edge", "1 node of edges not in the file of nodes")
    assert (graph.num_classes, graph.source["classes"]) == (2, ["blue", "red"])
    features = graph.features()
    assert features is not None
    found = {name: (int(label), row.tolist()) for name, label, row in zip(names, graph.labels(), features, strict=True)}
    assert found == {"y": (1, [0, 1]), "x": (0, [2, 3]), "lonely": (-1, [4, 5]), "z": (1, [6, 7]), "w": (-1, [0, 0])}
    assert graph.nodes("train").tolist() == [0, 1]
    assert sorted(names[:2]) == ["y", "z"]
    assert [names[node] for node in graph.nodes("valid")] == ["x"]


def test_numbers_as_nodes(tmp_path: Path) -> None:
    edges = write(tmp_path / "edges.txt", "0 1\n1 4\n")
    np.save(tmp_path / "labels.npy", np.array([0, 1, 2, -1, 1]))
    settings = {"num_nodes": 5, "labels": tmp_path / "labels.npy"}
    report = prepared(tmp_path, edges, settings=settings, valid_share=0.3)
    graph, given = report.graph, report.graph.node_names().to_pylist()
    assert sorted(given) == [0, 1, 2, 3, 4]
    assert given_edges(graph) == [(0, 0, 1), (1, 0, 4)]
    assert [int(graph.labels()[given.index(node)]) for node in range(5)] == [0, 1, 2, -1, 1]
    held = [int(node) for split in graph.num_split_nodes for node in graph.nodes(split)]
    assert sorted(given[node] for node in held) == [0, 1, 2, 4]
    assert report.notes == ("2 nodes without any edge",)


def test_train_nodes_first_among_numbers(tmp_path: Path) -> None:
    edges = write(tmp_path / "edges.txt", "".join(f"{node} {(node + 1) % 60}\n" for node in range(60)))
    np.save(tmp_path / "labels.npy", np.arange(60) % 4)
    settings = {"num_nodes": 60, "labels": tmp_path / "labels.npy"}
    options = {"valid_share": 0.4, "test_share": 0.1, "train_nodes_first": True}
    graph = prepared(tmp_path, edges, settings=settings, **options).graph
    train = graph.nodes("train")
    assert train.tolist() == list(range(len(train)))
    given = np.array(graph.node_names().to_pylist())
    assert sorted(given) == list(range(60))
    assert np.array_equal(graph.labels(), given % 4)
    assert given_edges(graph) == sorted((node, 0, (node + 1) % 60) for node in range(60))


def test_nodes_without_labels_are_split_if_asked(tmp_path: Path) -> None:
    edges = write(tmp_path / "edges.txt", "".join(f"{node} {(node + 1) % 90}\n" for node in range(90)))
    options: dict[str, Any] = {"split": "nodes", "valid_share": 0.3, "train_nodes_first": True}
    graph = prepared(tmp_path, edges, settings={"num_nodes": 90}, **options).graph
    assert graph.num_edges == {"train": 90}
    assert sum(graph.num_split_nodes.values()) == 90
    assert graph.nodes("train").tolist() == list(range(graph.num_split_nodes["train"]))
    with pytest.raises(DataError, match="which nodes there are is not known before edges are read"):
        prepared(tmp_path, edges, split="nodes", replace=True)
    with pytest.raises(DataError, match="there is no split of nodes, so none can come first"):
        prepared(tmp_path, edges, settings={"num_nodes": 90}, train_nodes_first=True, replace=True)


def ogb_folder(path: Path) -> Path:
    write(path / "raw/edge.csv.gz", "0,1\n1,2\n3,0\n")
    write(path / "raw/num-node-list.csv.gz", "4\n")
    write(path / "raw/node-feat.csv.gz", "0.5,1\n1.5,2\n2.5,3\n3.5,-4e-1\n")
    write(path / "raw/node-label.csv.gz", "2\n0\nnan\n1\n")
    for name, nodes in (("train", "0\n3\n"), ("valid", "1\n"), ("test", "2\n")):
        write(path / f"split/time/{name}.csv.gz", nodes)
    return path


def test_ogb_nodes(tmp_path: Path) -> None:
    graph = prepared(tmp_path, ogb_folder(tmp_path / "arxiv")).graph
    given, features = graph.node_names().to_pylist(), graph.features()
    assert features is not None
    assert given_edges(graph) == [(0, 0, 1), (1, 0, 2), (3, 0, 0)]
    assert {given[node]: row.tolist() for node, row in enumerate(features)}[3] == [3.5, np.float32(-0.4)]
    assert [int(graph.labels()[given.index(node)]) for node in range(4)] == [2, 0, -1, 1]
    assert sorted(given[node] for node in graph.nodes("train")) == [0, 3]


def test_ogb_triples_say_that_pickles_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "wikikg2"
    write(folder / "raw/edge.csv.gz", "0,1\n1,2\n")
    write(folder / "raw/num-node-list.csv.gz", "3\n")
    write(folder / "raw/edge_reltype.csv.gz", "7\n2\n")
    write(folder / "split/time/valid.pt", "x")
    report = prepared(tmp_path, folder, valid_share=0.5)
    assert (report.graph.num_relations, report.graph.num_edges) == (8, {"train": 2})
    assert given_edges(report.graph) == [(0, 7, 1), (1, 2, 2)]
    assert "its .pt files can run code when they are read" in report.notes[0]


def test_ogb_in_binary(tmp_path: Path) -> None:
    raw = tmp_path / "papers" / "raw"
    raw.mkdir(parents=True)
    edges, features = np.array([[0, 1], [1, 2]]), np.eye(3, 2, dtype=np.float16)
    np.savez_compressed(raw / "data.npz", edge_index=edges, num_nodes_list=np.array([3]), node_feat=features)
    np.savez(raw / "node-label.npz", node_label=np.array([[1.0], [np.nan], [0.0]]))
    graph = prepared(tmp_path, tmp_path / "papers").graph
    assert given_edges(graph) == [(0, 0, 1), (1, 0, 2)]
    assert (graph.num_features, graph.num_classes) == (2, 2)


def tar_of(path: Path, *members: tuple[str, str]) -> Path:
    """A packed tar with these (name, text); a text that begins with -> makes a link."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members:
            content, member = text.encode(), tarfile.TarInfo(name)
            if text.startswith("->"):
                member.type, member.linkname = tarfile.SYMTYPE, text[2:]
                archive.addfile(member)
                continue
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_an_archive_unpacks_only_splits_and_names_itself(tmp_path: Path) -> None:
    members = (("./kg/train.txt", "a\tr\tb\na\tb\n"), ("kg/valid.txt", "a\tr\tb\n"), ("../README", "hello"))
    path = tar_of(tmp_path / "kg.tar.gz", *members)
    with pytest.raises(DataError, match=r"^kg.tar.gz/kg/train.txt:2: expected 3 columns, found 2; correct the line"):
        prepared(tmp_path, path)
    (tmp_path / "other").mkdir()
    source = open_source((path,), tmp_path / "other")
    options = GraphOptions(bad_lines="keep", bad_share_max=0.5)
    report = prepare_graph(source, tmp_path / "graph", options)
    assert report.num_bad == 1
    assert report.bad_lines_file is not None
    assert report.bad_lines_file.read_text().startswith("kg.tar.gz/kg/train.txt:2\texpected 3 columns")
    assert sorted(it.name for it in (tmp_path / "other").rglob("*.*")) == ["kg.tar.gz", "train.txt", "valid.txt"]


def test_files_of_several_folders_of_an_archive_are_all_taken(tmp_path: Path) -> None:
    members = [(f"kg/{part}/train-{part}.txt", "".join(f"{part}{i}\tr\tx\n" for i in range(200))) for part in "ab"]
    assert prepared(tmp_path, tar_of(tmp_path / "kg.tar.gz", *members), valid_share=0).graph.num_edges == {"train": 400}


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        (
            (("a/train.txt", "a\tb\n"), ("b/train.txt", "c\td\n")),
            r"has both a/train.txt and b/train.txt, and which one",
        ),
        (
            (("train.txt", "a\tb\n"), ("train.txt", "c\td\n")),
            r"has both train.txt and train.txt, and which",
        ),
        ((("train.txt", "a\tb\n"), ("../valid.txt", "c\td\n")), r"the path \.\./valid.txt leads out of the archive"),
        ((("/train.txt", "a\tb\n"),), r"the path /train.txt leads out of the archive; unpack it yourself"),
        ((("train.txt", "a\tb\n"), ("valid.txt", "->/etc/passwd")), r"valid.txt is a link or no regular file"),
    ],
)
def test_archives_that_would_lose_edges_or_leave_their_folder_are_refused(
    tmp_path: Path, members: tuple[tuple[str, str], ...], sentence: str
) -> None:
    with pytest.raises(DataError, match=r"kg.tar.gz: .*" + sentence):
        prepared(tmp_path, tar_of(tmp_path / "kg.tar.gz", *members))
    assert sorted(it.name for it in tmp_path.iterdir() if it.name != "unpacked") == ["kg.tar.gz"]


def test_what_an_archive_unpacks_to_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its own headers, before a byte is written: they may claim more than there is."""
    path = tar_of(tmp_path / "kg.tar.gz", ("train.txt", "a\tb\n"), ("notes/train.md", "1"), ("valid.txt", "a\tb\n"))
    (tmp_path / "one").mkdir()
    monkeypatch.setattr(graph_source, "MEMBERS_MAX", 2)
    with pytest.raises(DataError, match=r"kg.tar.gz: the archive has more than 2 members; unpack it"):
        open_source((path,), tmp_path / "one")
    monkeypatch.undo()
    large, block = tarfile.TarInfo("train.txt"), tarfile.BLOCKSIZE
    large.size = 3_000_000_000_000
    (tmp_path / "large.tar").write_bytes(large.tobuf() + bytes(100 * block))
    command = ("graph", "prepare", tmp_path / "large.tar", "--out", tmp_path / "graph")
    assert foresee(*command, monkeypatch=monkeypatch) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "large.tar: with train.txt the archive unpacks to 3,000.0 GB, the limit is 100 GB" in text
    assert "--unpacked-max-gb" in text
    assert foresee(*command, "--unpacked-max-gb", 4_000, monkeypatch=monkeypatch) == 2
    assert "train.txt unpacks to 3,000.0 GB, and the disk" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "graph").exists()
    np.savez(tmp_path / "graph.npz", edges=np.zeros((10, 2), np.int64))
    (tmp_path / "two").mkdir()
    with pytest.raises(DataError, match=r"graph.npz: with edges the archive unpacks to 0.0 GB, the limit is 0 GB"):
        open_source((tmp_path / "graph.npz",), tmp_path / "two", {"unpacked_max_gb": 0})


def test_a_packed_file_that_ends_early_is_named_at_its_last_line(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 1 << 40, (20_000, 2))
    packed = gzip.compress("".join(f"{head}\t{tail}\n" for head, tail in rows).encode())
    (tmp_path / "edges.tsv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError) as caught:
        prepared(tmp_path, tmp_path / "edges.tsv.gz")
    found = re.search(
        r"edges.tsv.gz:(\d+): the gzip file ends early after this line, ([\d,]+) whole", str(caught.value)
    )
    assert found is not None, caught.value
    assert 5_000 < int(found[1]) == int(found[2].replace(",", "")) < 15_000


@pytest.mark.parametrize(
    ("text", "settings", "sentence"),
    [
        ("a\tr\tb\na\tr\n", {}, r"edges.tsv:2: expected 3 columns, found 2; correct the line, or set bad lines aside"),
        ("a\tr\t\n", {}, r"edges.tsv:1: column tail: expected the name of a node, found nothing; correct the line"),
        ("a\t\tb\n", {}, r"edges.tsv:1: column relation: expected the name of a relation, found nothing"),
        ("0\t1\n1\t7\n", {"num_nodes": 5}, r"edges.tsv:2: column tail: expected a whole number below 5 as tail"),
        ("0\t-1\n", {"num_nodes": 5}, r"edges.tsv:1: column tail: expected a whole number below 5 as tail"),
        ("0\tx\n", {"num_nodes": 5}, r"edges.tsv:1: column tail: expected a whole number below 5 as tail"),
        ("a\tr\tb\theavy\n", {}, r"edges.tsv:1: column weight: expected a number as weight; correct the line"),
        ("a\n", {}, r"edges.tsv:1: expected 2 to 4 columns .* found 1 with"),
        ("a\tr\tb\n", {"head": "source"}, r"edges.tsv:1: which column is the tail is not known; say so with --tail"),
        ("a\tb\n", {"head": "x", "tail": "y"}, r"column 'x' is not among the columns \(a, b\)"),
    ],
)  # fmt: skip
def test_bad_lines_are_sentences(tmp_path: Path, text: str, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        prepared(tmp_path, write(tmp_path / "edges.tsv", text), settings=settings)
    assert not (tmp_path / "graph").exists()
    assert not list(tmp_path.glob(".graph*"))


def test_features_of_another_length_are_refused(tmp_path: Path) -> None:
    edges = write(tmp_path / "edges.txt", "0 1\n")
    np.save(tmp_path / "features.npy", np.zeros((3, 2)))
    settings: dict[str, Any] = {"num_nodes": 5, "features": tmp_path / "features.npy"}
    with pytest.raises(DataError, match=r"features.npy: expected 5 rows, as --num-nodes says, found 3; give a row"):
        prepared(tmp_path, edges, settings=settings)
    nodes = write(tmp_path / "nodes.txt", "0\n1\n")
    with pytest.raises(DataError, match=r"features.npy: expected 2 rows, as .*nodes.txt has nodes, found 3"):
        prepared(tmp_path, edges, settings={"node_file": nodes, "features": settings["features"]})
    with pytest.raises(
        DataError, match="which is whose is not known; name the nodes in the same order with --node-file"
    ):
        prepared(tmp_path, edges, settings={"features": settings["features"]})
    np.save(tmp_path / "features.npy", np.full((5, 2), np.nan))
    with pytest.raises(DataError, match=r"features of node 0 \(counted from 0\) are not all finite numbers"):
        prepared(tmp_path, edges, settings=settings)


def test_a_node_that_stands_twice_is_refused(tmp_path: Path) -> None:
    nodes = write(tmp_path / "nodes.csv", "name,label\na,x\nb,x\na,y\n")
    with pytest.raises(DataError, match=r"nodes.csv: the node 'a' stands there twice; keep one line for each node"):
        prepared(tmp_path, write(tmp_path / "edges.csv", "a,b\n"), settings={"node_file": nodes})


def test_files_of_several_kinds_do_not_mix(tmp_path: Path) -> None:
    files = write(tmp_path / "one.tsv", "a\tr\tb\n"), write(tmp_path / "two.tsv", "a\tb\n")
    with pytest.raises(DataError, match="some edges have a relation or a weight and others have none"):
        prepared(tmp_path, *files)


def test_a_folder_without_train_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"there is no file of train edges in it \(such as train.txt"):
        prepared(tmp_path, tmp_path / "empty")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_triples(tmp_path / "edges.tsv", random_triples(200, 20))
    out = tmp_path / "data" / "graph"
    arguments = ("graph", "prepare", file, "--out", out, "--partitions", 4, "--valid-share", 0.2)
    assert foresee(*arguments, monkeypatch=monkeypatch) == 0
    printed = capsys.readouterr().out
    assert "20 nodes; 200 edges; 3 relations; 4 partitions" in printed
    assert GraphFolder.open(out).num_partitions == 4
    assert [path.name for path in out.parent.iterdir()] == ["graph"]
    assert foresee(*arguments, monkeypatch=monkeypatch) == 2
    assert (
        "the folder exists and is not empty; give another target or replace it with --replace"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("FB15k-237.tar.gz", (14541, 237, {"train": 272115, "valid": 17535, "test": 20466}, 0, 0)),
        ("WN18RR.tar.gz", (40943, 11, {"train": 86835, "valid": 3034, "test": 3134}, 0, 0)),
        ("amazon_cs.npz", (13752, 0, {"train": 245861}, 767, 10)),
    ],
)
def test_real_graphs(real_data: RealData, tmp_path: Path, name: str, sizes: tuple[Any, ...]) -> None:
    graph = prepared(tmp_path, real_data.path(f"graph/{name}"), valid_share=0.1, test_share=0.1).graph
    found = (graph.num_nodes, graph.num_relations, graph.num_edges, graph.num_features, graph.num_classes)
    assert found == sizes


def test_what_a_killed_process_left_goes_at_the_next_start(tmp_path: Path) -> None:
    left, used = tmp_path / ".graph.partial-killed", tmp_path / ".graph.partial-living"
    for folder in (left, used):
        folder.mkdir()
        (folder / "spool").write_bytes(b"half")
    file = write_triples(tmp_path / "edges.tsv", TRIPLES)
    lock = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prepared(tmp_path, file)
    finally:
        os.close(lock)
    assert sorted(path.name for path in tmp_path.glob(".graph*")) == [used.name]
