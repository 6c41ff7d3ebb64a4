"""A raw graph read once into a file of edges, and its nodes numbered: what comes before anything can be sorted.

Names go into an external sort while edges are read; afterwards `pieces` gives the same edges with numbers, and
`node_rows` what is known of nodes. Splits that nobody gave are drawn here, from the seed and the place of a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from foresee.arrays import Bool, Int64
from foresee.data.order import split_at_random
from foresee.data.source import BadLines, ReportProgress
from foresee.errors import DataError
from foresee.graph.edges import EdgePiece
from foresee.graph.formats.source import DRAWN, NOWHERE, EdgeChunk, GraphSource, NodeChunk
from foresee.graph.naming import GivenNumbers, Names
from foresee.graph.nodes import Words
from foresee.graph.npy import ArrayWriter, read_rows
from foresee.graph.options import GraphOptions
from foresee.io.hashing import key_of
from foresee.io.urls import shown


class Reading:
    """One reading of a source; `read`, then `number`, then the rest."""

    def __init__(self, source: GraphSource, spool: Path, options: GraphOptions, bad: BadLines) -> None:
        self._source, self._spool, self._options, self._bad = source, spool, options, bad
        self._names = Names(spool, options.seed, options.memory << 20) if source.num_nodes is None else None
        self._given: GivenNumbers | None = None
        self.relations = Words("relations")
        self.has_relations: bool | None = None
        self.weighted: bool | None = None
        self.num_nodes = source.num_nodes or 0

    @property
    def named(self) -> bool:
        """Do nodes have names? Else they were numbers before."""
        return self._names is not None

    def read(self, progress: ReportProgress | None) -> int:
        """Reads everything once; gives the number of edges."""
        self._read_nodes()
        return self._read_edges(progress)

    def number(self, out: Path) -> None:
        """Gives every name its number, and writes names by number to `out`."""
        if self._names is not None:
            self.num_nodes = self._names.finish(out)

    def _read_nodes(self) -> None:
        """Names and splits of nodes: what numbering needs to know."""
        splits, places = [], ArrayWriter(self._spool / "places.npy", np.int64)
        split_known = False
        with places:
            for chunk, codes in self._node_chunks(self._bad):
                split_known = split_known or codes is not None
                first = None if codes is None or not self._options.train_nodes_first else codes == 0
                if self._names is not None:
                    places.append(self._names.add(chunk.names, first))
                elif first is not None:
                    splits.append(first)
        if self._names is None:
            self._given = GivenNumbers(self.num_nodes, self._options.seed, np.concatenate(splits) if splits else None)
        if self._options.train_nodes_first and not split_known:
            raise DataError("there is no split of nodes, so none can come first; leave out --train-nodes-first.")
        if self._options.split == "nodes" and not split_known:
            raise DataError("which nodes there are is not known before edges are read; name them with --node-file.")

    def _node_chunks(self, report: BadLines) -> Iterator[tuple[NodeChunk, Any]]:
        """Chunks of nodes, each with the split of its nodes or None."""
        first, drawn = 0, None
        for chunk in self._source.nodes(report) if self._source.has_nodes else self._bare_chunks():
            if drawn is None:
                drawn = self._options.split == "nodes" or (self._options.split is None and chunk.labels is not None)
            codes = chunk.splits
            if codes is None and drawn:
                key = key_of(self._options.seed, 13)
                codes = split_at_random(first, chunk.num, self._options.shares, key).astype(np.int64)
                codes = np.where(_labelled(chunk), codes, NOWHERE)
            first += chunk.num
            yield chunk, codes

    def _read_edges(self, progress: ReportProgress | None) -> int:
        """All edges into one file: heads and tails as places or numbers, relations as codes."""
        num_edges, writer = 0, None
        draws_edges = self._options.split == "edges" or (self._options.split is None and not self._labels_known())
        with pa.OSFile(str(self._spool / "edges.arrow"), "wb") as file:
            for chunk in self._source.edges(self._bad):
                self._check_kind(chunk)
                splits = np.full(len(chunk), max(0, chunk.split), np.int8)
                if chunk.split == DRAWN and draws_edges:
                    splits = split_at_random(num_edges, len(chunk), self._options.shares, self._options.seed)
                batch = self._spooled(chunk, splits)
                writer = writer or pa.ipc.new_file(file, batch.schema)
                writer.write_batch(batch)
                num_edges += len(chunk)
                if progress is not None:
                    progress("read", *chunk.done)
            if writer is not None:
                writer.close()
        return num_edges

    def _labels_known(self) -> bool:
        first = next(iter(self._source.nodes(BadLines("keep"))), None) if self._source.has_nodes else None
        return first is not None and first.labels is not None

    def _check_kind(self, chunk: EdgeChunk) -> None:
        kinds = (chunk.relations is not None, chunk.weights is not None)
        if self.has_relations is None:
            self.has_relations, self.weighted = kinds
        if kinds != (self.has_relations, self.weighted):
            raise DataError(
                f"{shown(self._source.files[0])}: some edges have a relation or a weight and others have none; give "
                "all files the same columns."
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
            relations = self.relations.codes(chunk.relations)
        columns = {"head": heads, "relation": relations, "tail": tails, "split": splits}
        if chunk.weights is not None:
            columns["weight"] = chunk.weights
        return pa.RecordBatch.from_pydict(columns)

    def pieces(self) -> Iterator[tuple[EdgePiece, Any]]:
        """Edges with their final numbers, and their splits."""
        order = self.relations.order() if self.has_relations else np.zeros(1, np.int32)
        with pa.OSFile(str(self._spool / "edges.arrow")) as file:
            reader = pa.ipc.open_file(file)
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                heads, tails = batch.column("head").to_numpy(), batch.column("tail").to_numpy()
                if self._names is not None:
                    heads, tails = np.split(self._names.numbers(np.concatenate([heads, tails])), 2)
                weights = batch.column("weight").to_numpy() if self.weighted else None
                piece = EdgePiece(heads, order[batch.column("relation").to_numpy()], tails, weights)
                yield piece, batch.column("split").to_numpy()

    def node_rows(self) -> Iterator[tuple[Int64, NodeChunk, Any]]:
        """(numbers, what is known, splits) of nodes, in the order of their files."""
        first = 0
        for chunk, splits in self._node_chunks(BadLines("keep")):
            if self._names is not None:
                numbers = self._names.numbers(read_rows(self._spool / "places.npy", first, first + chunk.num))
            else:
                assert self._given is not None
                numbers = self._given.numbers(np.arange(first, first + chunk.num))
            first += chunk.num
            yield numbers, chunk, splits

    def _bare_chunks(self) -> Iterator[NodeChunk]:
        """Nodes of which nothing is known; those with names are not known at all before edges are read."""
        if not self.named:
            for start in range(0, self.num_nodes, 1 << 16):
                yield NodeChunk(num=min(1 << 16, self.num_nodes - start))


def _labelled(chunk: NodeChunk) -> Bool:
    if chunk.labels is None:
        return np.ones(chunk.num, bool)
    if isinstance(chunk.labels, np.ndarray):
        return chunk.labels >= 0
    return np.asarray(pa.compute.not_equal(chunk.labels, "").to_numpy(zero_copy_only=False), bool)
