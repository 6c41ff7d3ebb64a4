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
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from foresee.arrays import Bool
from foresee.data.order import SPLIT_NAMES
from foresee.data.source import BAD_LINES_FILE, BadLines, ReportProgress
from foresee.errors import DataError
from foresee.graph.edges import BucketSort, EdgePiece, EdgeSum
from foresee.graph.external_sort import ExternalSort
from foresee.graph.folder import (
    DESCRIPTION_FILE,
    NAMES_FILE,
    GraphFolder,
    check_partitions,
    id_dtype,
    stored_names,
    write_description,
)
from foresee.graph.formats.source import GraphSource
from foresee.graph.nodes import NodeSort, Words
from foresee.graph.npy import ArrayWriter
from foresee.graph.options import GraphOptions
from foresee.graph.reading import Reading
from foresee.io.folders import new_folder
from foresee.io.units import counted
from foresee.io.urls import name_of, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphReport:
    """What came out."""

    graph: GraphFolder
    notes: tuple[str, ...]
    """Sentences about what was found on the way."""
    num_bad: int
    bad_lines_file: Path | None


def prepare_graph(
    source: GraphSource,
    out: str | Path,
    options: GraphOptions | None = None,
    progress: ReportProgress | None = None,
    *,
    best: Callable[[GraphFolder], dict[str, float]] | None = None,
) -> GraphReport:
    """Write the prepared graph of `source` to the folder `out`; `best` says which scores are within reach."""
    options = options or GraphOptions()
    target = Path(out)
    with new_folder(target, replace=options.replace, marker=DESCRIPTION_FILE) as folder:
        work = _Preparation(source, folder, options, progress)
        graph = work.run()
        write_description(folder, graph if best is None else replace(graph, best=best(graph)))
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
        self._spool = folder / "spool"
        self._spool.mkdir()
        self.bad = BadLines(options.bad_lines, folder / BAD_LINES_FILE)
        self._reading = Reading(source, self._spool, options, self.bad)
        self._classes = Words("classes")
        self._content = hashlib.blake2b(digest_size=16)
        self._found: dict[str, int] = {}
        self.notes: list[str] = []

    def run(self) -> GraphFolder:
        reading = self._reading
        try:
            num_edges = reading.read(self._progress)
        finally:
            self.bad.close()
        self.bad.check_share(num_edges, self._options.bad_share_max)
        if not num_edges:
            raise DataError(f"{shown(self._source.files[0])}: no edge was found; check the file.")
        reading.number(self._folder / NAMES_FILE)
        check_partitions(self._options.partitions, reading.num_nodes)
        sizes = self._write_edges()
        nodes = self._write_nodes()
        self._write_relations()
        shutil.rmtree(self._spool)
        return self._described(sizes, nodes)

    def _write_edges(self) -> dict[str, int]:
        """Train edges by bucket, the others as they came."""
        sizes = dict.fromkeys(SPLIT_NAMES, 0)
        seen = np.zeros(self._reading.num_nodes, np.uint8)  # 1: in train, 2: elsewhere
        trained = np.zeros(max(1, len(self._reading.relations)), bool)
        sums, num_loops = EdgeSum(), 0
        with (
            ExternalSort(self._spool, self._options.memory << 20) as sort,
            _HeldOut(self._folder, self._reading.num_nodes) as held_out,
        ):
            buckets = BucketSort(sort, self._reading.num_nodes, self._options.partitions)
            for piece, splits in self._reading.pieces():
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
        self._content.update(f"{self._reading.num_nodes} {len(self._reading.relations)} {sums.text()} {drop}".encode())
        self._note_edges(seen, trained, num_loops, num_duplicates)
        if not sizes["train"]:
            raise DataError(
                f"{shown(self._source.files[0])}: there is no edge to train on; choose other shares, or keep self "
                "loops."
            )
        return {name: size for name, size in sizes.items() if size}

    def _note_edges(self, seen: Any, trained: Bool, num_loops: int, num_duplicates: int) -> None:
        self._found = {
            "self_loops": num_loops,
            "duplicates": num_duplicates,
            "without_edges": int((seen == 0).sum()),
            "unseen_nodes": int((seen == 2).sum()),
            "unseen_relations": int((~trained).sum()) if self._reading.has_relations else 0,
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
        num_nodes, num_known = self._reading.num_nodes, 0
        with ExternalSort(self._spool, self._options.memory << 20) as sort:
            nodes = NodeSort(sort, num_nodes, self._classes, self._twice)
            for numbers, chunk, splits in self._reading.node_rows():
                nodes.add(numbers, chunk, splits, num_known)
                num_known += chunk.num
            given_names = not self._reading.named
            nodes.write(self._folder, self._content, given_names=given_names, progress=self._progress)
        if 0 < num_known < num_nodes:
            self.notes.append(f"{counted(num_nodes - num_known, 'node')} of edges not in the file of nodes")
        return nodes

    def _twice(self, number: int) -> DataError:
        name = stored_names(self._folder / NAMES_FILE, self._reading.num_nodes)[number].as_py()
        where = shown(self._source.files[-1])
        return DataError(f"{where}: the node {name!r} stands there twice; keep one line for each node.")

    def _write_relations(self) -> None:
        if self._reading.has_relations:
            table = pa.table({"name": self._reading.relations.names()})
            with pa.ipc.new_file(str(self._folder / "relation-names.arrow"), table.schema) as writer:
                writer.write_table(table)

    def _described(self, sizes: dict[str, int], nodes: NodeSort) -> GraphFolder:
        return GraphFolder(
            path=self._folder,
            num_nodes=self._reading.num_nodes,
            num_relations=len(self._reading.relations),
            num_edges=sizes,
            num_features=nodes.num_features,
            num_classes=len(self._classes),
            num_partitions=self._options.partitions,
            weighted=bool(self._reading.weighted),
            num_split_nodes=nodes.sizes,
            train_nodes_first=self._options.train_nodes_first,
            contents=self._content.hexdigest(),
            best={},
            source={
                "format": self._source.name,
                "files": [name_of(file) for file in self._source.files],
                "seed": self._options.seed,
                "num_bad": self.bad.count,
                "classes": self._classes.names().to_pylist() if len(self._classes) < 1 << 12 else [],
                **self._found,
            },
            _edges_path=self._folder,
        )


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
