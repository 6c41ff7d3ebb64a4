"""A raw graph in, a prepared one out: streamed, with external sorts, in memory that does not grow with the edges.

    read     names go into a sort by hash, edges into a file
    names    every node gets its number
    edges    train edges are sorted by bucket; valid and test keep their order
    nodes    labels, features and splits are brought into the order of numbers

Held in memory: what `memory` allows for a sort, one byte for each node, and the names of relations and classes. The
target appears whole at the end or not at all.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa

from foresee.base.arrays import Bool, Int64
from foresee.base.terminal import counted
from foresee.data.order import SPLIT_NAMES, Shares, key_of, split_at_random
from foresee.data.source import BAD_LINES_FILE, BadLines, ReportProgress
from foresee.data.writer import new_folder
from foresee.errors import DataError
from foresee.graph.arrays import ArrayWriter
from foresee.graph.edges import BucketSort, EdgePiece, EdgeSum
from foresee.graph.external_sort import ExternalSort
from foresee.graph.folder import DESCRIPTION_FILE, GraphFolder, check_partitions, id_dtype, write_description
from foresee.graph.formats.source import DRAWN, NOWHERE, EdgeChunk, GraphSource, NodeChunk
from foresee.graph.naming import GivenNumbers, Names
from foresee.graph.nodes import NodeSort, Words


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """What to make of a raw graph, whatever its format. The texts are also the help of `foresee graph prepare`."""

    partitions: Annotated[int, "Partitions of the nodes; training can ask for another number later."] = 1
    seed: Annotated[int, "Seed of the numbering of nodes and of splits that are drawn."] = 0
    split: Annotated[
        Literal["edges", "nodes"] | None,
        "What is held out where no split is given. Without it: nodes if they have labels, else edges.",
    ] = None
    valid_share: Annotated[float, "Share of the edges or nodes that go to the valid split."] = 0.1
    test_share: Annotated[float, "Share of the edges or nodes that go to the test split."] = 0.1
    train_nodes_first: Annotated[
        bool, "Give the nodes of the train split the smallest numbers, so that they fill the first partitions."
    ] = False
    self_loops: Annotated[Literal["keep", "drop"], "Edges from a node to itself."] = "keep"
    duplicates: Annotated[Literal["keep", "drop"], "Train edges that occur more than once, after the first."] = "keep"
    bad_lines: Annotated[
        Literal["stop", "keep"], "Stop at the first bad line, or keep them in bad-lines.txt and go on."
    ] = "stop"
    bad_share_max: Annotated[float, "Give up if more than this share of the lines is bad."] = 0.01
    memory: Annotated[int, "Megabytes that sorting may take."] = 512
    replace: Annotated[bool, "Replace a prepared graph that is already there."] = False

    def __post_init__(self) -> None:
        if not (self.valid_share >= 0 and self.test_share >= 0 and self.valid_share + self.test_share < 1):
            raise DataError(
                f"valid_share={self.valid_share} and test_share={self.test_share} leave nothing to train "
                "on; give shares from 0 up that sum to less than 1."
            )
        for name, least in (("partitions", 1), ("seed", 0), ("bad_share_max", 0), ("memory", 1)):
            if getattr(self, name) < least:
                raise DataError(f"{name}={getattr(self, name)} is too small; give {least} or more.")

    @property
    def shares(self) -> Shares:
        return Shares(valid=self.valid_share, test=self.test_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """What came out."""

    graph: GraphFolder
    notes: tuple[str, ...]
    """Sentences about what was found on the way."""
    num_bad: int
    bad_lines_file: Path | None


def prepare_graph(
    source: GraphSource, out: str | Path, options: GraphOptions | None = None, progress: ReportProgress | None = None
) -> GraphReport:
    """Write the prepared graph of `source` to the folder `out`."""
    options = options or GraphOptions()
    target = Path(out)
    with new_folder(target, replace=options.replace, marker=DESCRIPTION_FILE) as folder:
        work = _Preparation(source, folder, options, progress)
        work.run()
    bad_lines_file = target / BAD_LINES_FILE if work.bad.count else None
    notes = (*source.notes, *work.notes)
    return GraphReport(
        graph=GraphFolder.open(target), notes=notes, num_bad=work.bad.count, bad_lines_file=bad_lines_file
    )


class _Preparation:
    """The stages of one preparation, in the order of `run`."""

    def __init__(
        self, source: GraphSource, folder: Path, options: GraphOptions, progress: ReportProgress | None
    ) -> None:
        self._source, self._folder, self._options, self._progress = source, folder, options, progress
        self._memory_bytes = options.memory << 20
        self._spool = folder / "spool"
        self._spool.mkdir()
        self._relations, self._classes = Words("relations"), Words("classes")
        self._has_relations: bool | None = None
        self._weighted: bool | None = None
        self._names = Names(self._spool, options.seed, self._memory_bytes) if source.num_nodes is None else None
        self._given: GivenNumbers | None = None
        self._num_nodes = source.num_nodes or 0
        self._numbers: Int64 = np.empty(0, np.int64)
        self._content = hashlib.blake2b(digest_size=16)
        self._found: dict[str, int] = {}
        self.bad = BadLines(options.bad_lines, folder / BAD_LINES_FILE)
        self.notes: list[str] = []

    def run(self) -> None:
        try:
            self._read_nodes()
            num_edges = self._read_edges()
        finally:
            self.bad.close()
        self.bad.check_share(num_edges, self._options.bad_share_max)
        if self._names is not None:
            self._num_nodes, self._numbers = self._names.finish(self._folder / "node-names.arrow")
        if not num_edges or not self._num_nodes:
            raise DataError(f"{self._source.files[0]}: no edge was found; check the file.")
        check_partitions(self._options.partitions, self._num_nodes)
        sizes = self._write_edges()
        nodes = self._write_nodes()
        self._write_relations()
        shutil.rmtree(self._spool)
        self._describe(sizes, nodes)

    # Reading

    def _read_nodes(self) -> None:
        """Names and splits of nodes: what numbering needs to know."""
        splits, places = [], ArrayWriter(self._spool / "places.npy", np.int64)
        with places:
            for chunk, codes in self._node_chunks(self.bad) if self._source.has_nodes else ():
                first = None if codes is None or not self._options.train_nodes_first else codes == 0
                if self._names is not None:
                    places.append(self._names.add(chunk.names, first))
                elif first is not None:
                    splits.append(first)
        if self._names is None:
            self._given = GivenNumbers(self._num_nodes, self._options.seed, np.concatenate(splits) if splits else None)
        elif self._options.train_nodes_first and not self._source.has_nodes:
            raise DataError("there is no split of nodes, so none can come first; leave out --train-nodes-first.")

    def _node_chunks(self, report: BadLines) -> Iterator[tuple[NodeChunk, Any]]:
        """Chunks of nodes, each with the split of its nodes or None."""
        first, drawn = 0, None
        for chunk in self._source.nodes(report):
            if drawn is None:
                drawn = self._options.split == "nodes" or (self._options.split is None and chunk.labels is not None)
            codes = chunk.splits
            if codes is None and drawn:
                key = key_of(self._options.seed, 13)
                codes = split_at_random(first, chunk.num, self._options.shares, key).astype(np.int64)
                codes = np.where(_labelled(chunk), codes, NOWHERE)
            first += chunk.num
            yield chunk, codes

    def _read_edges(self) -> int:
        """All edges into one file: heads and tails as places or numbers, relations as codes."""
        num_edges, writer = 0, None
        draws_edges = self._options.split == "edges" or (self._options.split is None and not self._labels_known())
        with pa.OSFile(str(self._spool / "edges.arrow"), "wb") as file:
            for chunk in self._source.edges(self.bad):
                self._check_kind(chunk)
                splits = np.full(len(chunk), max(0, chunk.split), np.int8)
                if chunk.split == DRAWN and draws_edges:
                    splits = split_at_random(num_edges, len(chunk), self._options.shares, self._options.seed)
                batch = self._spooled(chunk, splits)
                writer = writer or pa.ipc.new_file(file, batch.schema)
                writer.write_batch(batch)
                num_edges += len(chunk)
                if self._progress is not None:
                    self._progress("read", *chunk.done)
            if writer is not None:
                writer.close()
        return num_edges

    def _labels_known(self) -> bool:
        first = next(iter(self._source.nodes(BadLines("keep"))), None) if self._source.has_nodes else None
        return first is not None and first.labels is not None

    def _check_kind(self, chunk: EdgeChunk) -> None:
        kinds = (chunk.relations is not None, chunk.weights is not None)
        if self._has_relations is None:
            self._has_relations, self._weighted = kinds
        if kinds != (self._has_relations, self._weighted):
            raise DataError(
                f"{self._source.files[0]}: some edges have a relation or a weight and others have none; give all files "
                "the same columns."
            )

    def _spooled(self, chunk: EdgeChunk, splits: Any) -> pa.RecordBatch:
        if self._names is not None:
            ends = self._names.add(pa.concat_arrays([chunk.heads, chunk.tails]))
            heads, tails = ends[: len(chunk)], ends[len(chunk) :]
        else:
            assert self._given is not None
            heads, tails = self._given.numbers(chunk.heads), self._given.numbers(chunk.tails)
        relations = np.zeros(len(chunk), np.int32)
        if chunk.relations is not None:
            relations = self._relations.codes(chunk.relations)
        columns = {"head": heads, "relation": relations, "tail": tails, "split": splits}
        if chunk.weights is not None:
            columns["weight"] = chunk.weights
        return pa.RecordBatch.from_pydict(columns)

    def _spool_pieces(self) -> Iterator[tuple[EdgePiece, Any]]:
        """Edges with their final numbers, and their splits."""
        order = self._relations.order() if self._has_relations else np.zeros(1, np.int32)
        with pa.OSFile(str(self._spool / "edges.arrow")) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                heads, tails = batch.column("head").to_numpy(), batch.column("tail").to_numpy()
                if self._names is not None and len(heads):
                    low = min(heads.min(), tails.min())
                    numbers = np.array(self._numbers[low : 1 + max(heads.max(), tails.max())])
                    heads, tails = numbers[heads - low], numbers[tails - low]
                weights = batch.column("weight").to_numpy() if self._weighted else None
                piece = EdgePiece(heads, order[batch.column("relation").to_numpy()], tails, weights)
                yield piece, batch.column("split").to_numpy()

    # Writing

    def _write_edges(self) -> dict[str, int]:
        """Train edges by bucket, the others as they came."""
        sizes = dict.fromkeys(SPLIT_NAMES, 0)
        seen = np.zeros(self._num_nodes, np.uint8)  # 1: in train, 2: elsewhere
        trained = np.zeros(max(1, len(self._relations)), bool)
        sums, num_loops = EdgeSum(), 0
        with ExternalSort(self._spool, self._memory_bytes) as sort, _HeldOut(self._folder, self._num_nodes) as held_out:
            buckets = BucketSort(sort, self._num_nodes, self._options.partitions)
            for piece, splits in self._spool_pieces():
                loops = piece.heads == piece.tails
                num_loops += int(loops.sum())
                wanted = ~loops if self._options.self_loops == "drop" else np.ones(len(piece), bool)
                for code, name in enumerate(SPLIT_NAMES):
                    part = piece.kept(wanted & (splits == code))
                    if not len(part):
                        continue
                    mark = np.uint8(1 if code == 0 else 2)
                    seen[part.heads] |= mark
                    seen[part.tails] |= mark
                    sizes[name] += len(part)
                    if code == 0:
                        trained[part.relations] = True
                        buckets.add(part)
                        sums.add(part)
                    else:
                        held_out.append(name, part)
                        self._content.update(part.rows().data)
            drop = self._options.duplicates == "drop"
            sizes["train"], num_duplicates = buckets.write(self._folder, drop_duplicates=drop, progress=self._progress)
        self._content.update(f"{self._num_nodes} {len(self._relations)} {sums.text()} {drop}".encode())
        self._note_edges(seen, trained, num_loops, num_duplicates)
        if not sizes["train"]:
            raise DataError(f"{self._source.files[0]}: there is no edge to train on; choose other shares.")
        return {name: size for name, size in sizes.items() if size}

    def _note_edges(self, seen: Any, trained: Bool, num_loops: int, num_duplicates: int) -> None:
        self._found = {
            "self_loops": num_loops,
            "duplicates": num_duplicates,
            "without_edges": int((seen == 0).sum()),
            "unseen_nodes": int((seen == 2).sum()),
            "unseen_relations": int((~trained).sum()) if self._has_relations else 0,
        }
        kept = {"keep": "kept", "drop": "left out"}
        loops, twice = kept[self._options.self_loops], kept[self._options.duplicates]
        found = self._found
        sentences = {
            "self_loops": f"{counted(num_loops, 'self loop')} {loops} (--self-loops)",
            "duplicates": f"{counted(num_duplicates, 'duplicate')} of train edges {twice} (--duplicates)",
            "without_edges": f"{counted(found['without_edges'], 'node')} without any edge",
            "unseen_nodes": f"{counted(found['unseen_nodes'], 'node')} of valid and test without an edge in train: "
            "nothing is learnt of them",
            "unseen_relations": f"{counted(found['unseen_relations'], 'relation')} of valid and test without an edge "
            "in train: nothing is learnt of them",
        }
        self.notes += [sentence for name, sentence in sentences.items() if found[name]]

    def _write_nodes(self) -> NodeSort:
        """Labels, splits, features, and the numbers that nodes were given."""
        places = np.load(self._spool / "places.npy", mmap_mode="r") if self._names and self._source.has_nodes else None
        with ExternalSort(self._spool, self._memory_bytes) as sort:
            nodes = NodeSort(sort, self._num_nodes, self._classes)
            first = 0
            chunks = self._node_chunks(BadLines("keep")) if self._source.has_nodes else self._bare_chunks()
            for chunk, splits in chunks:
                if places is not None:
                    numbers = np.array(self._numbers[np.array(places[first : first + chunk.num])])
                else:
                    assert self._given is not None
                    numbers = self._given.numbers(np.arange(first, first + chunk.num))
                nodes.add(numbers, chunk, splits, first)
                first += chunk.num
            nodes.write(self._folder, self._content, given_names=self._names is None, progress=self._progress)
        if places is not None and first < self._num_nodes:
            self.notes.append(f"{counted(self._num_nodes - first, 'node')} of edges not in the file of nodes")
        return nodes

    def _bare_chunks(self) -> Iterator[tuple[NodeChunk, None]]:
        """Nodes of which nothing is known; for those with names there is nothing to write at all."""
        if self._names is None:
            for start in range(0, self._num_nodes, 1 << 16):
                yield NodeChunk(num=min(1 << 16, self._num_nodes - start)), None

    def _write_relations(self) -> None:
        if self._has_relations:
            table = pa.table({"name": self._relations.names()})
            with pa.ipc.new_file(str(self._folder / "relation-names.arrow"), table.schema) as writer:
                writer.write_table(table)

    def _describe(self, sizes: dict[str, int], nodes: NodeSort) -> None:
        graph = GraphFolder(
            path=self._folder,
            num_nodes=self._num_nodes,
            num_relations=len(self._relations),
            num_edges=sizes,
            num_features=nodes.num_features,
            num_classes=len(self._classes),
            num_partitions=self._options.partitions,
            weighted=bool(self._weighted),
            num_split_nodes=nodes.sizes,
            train_nodes_first=self._options.train_nodes_first,
            contents=self._content.hexdigest(),
            best={},
            source={
                "format": self._source.name,
                "files": [file.name for file in self._source.files],
                "seed": self._options.seed,
                "num_bad": self.bad.count,
                "classes": self._classes.names().to_pylist() if len(self._classes) < 1 << 12 else [],
                **self._found,
            },
            _edges_path=self._folder,
        )
        write_description(self._folder, graph)


class _HeldOut:
    """The edges of valid and test, with their weights, in the order of their files."""

    def __init__(self, folder: Path, num_nodes: int) -> None:
        self._folder, self._dtype = folder, id_dtype(num_nodes)
        self._writers: dict[str, ArrayWriter] = {}

    def append(self, split: str, piece: EdgePiece) -> None:
        self._writer(split, self._dtype, (3,)).append(piece.rows())
        if piece.weights is not None:
            self._writer(f"{split}-weights", np.float32, ()).append(piece.weights)

    def _writer(self, name: str, dtype: Any, shape: tuple[int, ...]) -> ArrayWriter:
        if name not in self._writers:
            self._writers[name] = ArrayWriter(self._folder / f"{name}.npy", dtype, shape)
        return self._writers[name]

    def __enter__(self) -> _HeldOut:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        for writer in self._writers.values():
            writer.__exit__(kind, error, trace)


def _labelled(chunk: NodeChunk) -> Bool:
    if chunk.labels is None:
        return np.ones(chunk.num, bool)
    if isinstance(chunk.labels, np.ndarray):
        return chunk.labels >= 0
    return np.asarray(pa.compute.not_equal(chunk.labels, "").to_numpy(zero_copy_only=False), bool)
