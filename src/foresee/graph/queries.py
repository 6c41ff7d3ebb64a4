"""What a trained run is asked: the nodes most like one, its likely tails or heads; and its vectors as plain files.

In: a `Trained` run. Out: the best nodes with their scores, exact, from one pass over the vectors in blocks; or a folder
with the vectors of all nodes as safetensors, .npy or the text of word2vec, beside names and the weights of the model.
Memory is bounded by the size of a block, whatever the size of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file
from torch import Tensor

from foresee.arrays import Float32, Int64
from foresee.errors import ConfigError, StoreError
from foresee.graph.evaluation import Truths
from foresee.graph.folder import DESCRIPTION_FILE
from foresee.graph.npy import ArrayWriter
from foresee.graph.trained import Trained, blocks
from foresee.io.folders import new_folder
from foresee.io.optional import OptionalModule, need
from foresee.run.checkpoint import own_copies
from foresee.run.evaluation import judging

faiss: Any = OptionalModule("faiss")
NODES_AT_ONCE = 1 << 13
CANDIDATES = 8
"""An index is asked for so many times as many nodes as are wanted."""
INDEX_NODES_MIN = 10_000
"""With fewer nodes an index compares with all of them."""
VECTORS_OF_A_LIST = 64
Format = Literal["safetensors", "npy", "word2vec"]
FORMATS: tuple[Format, ...] = ("safetensors", "npy", "word2vec")


@dataclass(frozen=True, slots=True)
class Answer:
    """Nodes, the best first."""

    nodes: Int64
    scores: Float32


def most_similar(run: Trained, node: int, *, top: int, by: Literal["cosine", "dot"] = "cosine") -> Answer:
    """The nodes whose vectors are most like that of a node, which itself is none of them."""
    own = run.vectors.of(np.array([node]))

    def scores(vectors: Tensor) -> Tensor:
        found = (vectors @ own.T)[:, 0]
        return found / (vectors.norm(dim=1) * own.norm()).clamp(min=1e-12) if by == "cosine" else found

    return _best(run, scores, top, np.array([node]))


def similar_by_index(run: Trained, node: int, *, top: int, by: Literal["cosine", "dot"] = "cosine") -> Answer:
    """The same from an index of FAISS, which is near and not exact: its candidates are compared exactly.

    The index is made at the first question and kept in the run folder for the step that it is of.
    """
    need("faiss")
    index = _index(run, by)
    own = _prepared(run.vectors.of(np.array([node])), by)
    _, found = index.search(own.numpy(), min(run.vectors.num_nodes, CANDIDATES * top + 1))
    nodes = np.unique(found[0][(found[0] >= 0) & (found[0] != node)])
    scores = (_prepared(run.vectors.of(nodes), by) @ own.T)[:, 0].numpy()
    order = np.lexsort((nodes, -scores))[:top]
    return Answer(nodes[order], scores[order])


def _prepared(vectors: Tensor, by: str) -> Tensor:
    """So that an inner product is the score."""
    return vectors / vectors.norm(dim=1, keepdim=True).clamp(min=1e-12) if by == "cosine" else vectors.contiguous()


def _index(run: Trained, by: str) -> Any:
    """The index of this step: opened, or made, in one pass over a sample and one over all vectors."""
    path = run.config.run / f"neighbours-{by}-{run.step:09d}.faiss"
    if path.is_file():
        try:
            return faiss.read_index(str(path))
        except RuntimeError as error:
            raise StoreError(f"{path} cannot be read; remove it, and it is made again") from error
    index = _made_index(run, by)
    draft = path.with_suffix(".draft")
    try:
        faiss.write_index(index, str(draft))
        draft.replace(path)
        for older in run.config.run.glob(f"neighbours-{by}-*.faiss"):
            if older != path:
                older.unlink()
    except (RuntimeError, OSError) as error:
        draft.unlink(missing_ok=True)
        raise StoreError(f"{path} cannot be written; free some space, or ask without --index") from error
    return index


def _made_index(run: Trained, by: str) -> Any:
    """Lists of vectors of one byte a number; with few nodes, all of them as they are."""
    num_nodes, width = run.vectors.num_nodes, int(run.vectors.of(np.array([0])).shape[1])
    lists = int(num_nodes**0.5)
    kind = f"IVF{lists},SQ8" if num_nodes >= INDEX_NODES_MIN else "Flat"
    index = faiss.index_factory(width, kind, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        chosen = np.random.default_rng(0).choice(num_nodes, min(num_nodes, VECTORS_OF_A_LIST * lists), replace=False)
        index.train(_prepared(run.vectors.of(np.sort(chosen)), by).numpy())
        index.nprobe = max(8, lists // 16)
    for piece in _pieces(run):
        index.add(_prepared(torch.from_numpy(piece), by).numpy())
    return index


def likely_ends(
    run: Trained, node: int, relation: int, *, top: int, heads: bool = False, known: bool = False
) -> Answer:
    """The tails that the model thinks likeliest for a head and a relation, or the heads for a tail.

    Args:
        run: Trained to predict links.
        node: The end that is known.
        relation: Its number; 0 where there are none.
        top: How many.
        heads: Heads are wanted, the node is their tail.
        known: Also those that are edges of the graph already.
    """
    if run.config.model.task != "links":
        raise ConfigError(f"{run.config.run} was trained to classify nodes; ask it for similar nodes instead")
    decoder = run.model.decoder
    with judging(run.model):
        query = decoder.query(run.vectors.of(np.array([node])), torch.tensor([relation]), heads=heads)
        there = [] if known else Truths(run.graph).of(np.array([node]), np.array([relation]), heads=heads)
        left_out = np.concatenate([np.empty(0, np.int64), *(it.nodes for it in there)])
        return _best(run, lambda vectors: decoder.compare(query, vectors)[0], top, left_out)


def _best(run: Trained, scores: Any, top: int, left_out: Int64) -> Answer:
    """The nodes with the highest scores; of equal ones, the first."""
    nodes, best = np.empty(0, np.int64), np.empty(0, np.float32)
    with torch.no_grad():
        for block in blocks(run.vectors.num_nodes, NODES_AT_ONCE):
            found = scores(run.vectors.of(block)).numpy()
            kept = ~np.isin(block, left_out)
            nodes, best = np.append(nodes, block[kept]), np.append(best, found[kept])
            order = np.lexsort((nodes, -best))[:top]
            nodes, best = nodes[order], best[order]
    return Answer(nodes, best)


def export(run: Trained, out: Path, form: Format) -> dict[str, Any]:
    """Writes vectors, names and weights into a new folder; returns its description."""
    if form not in FORMATS:
        raise ConfigError(f"--format: there is no {form!r}; choose one of {', '.join(FORMATS)}")
    with new_folder(out, replace=False, marker=DESCRIPTION_FILE) as folder:
        width = _write_vectors(run, folder, form)
        pq.write_table(pa.table({"name": run.graph.node_names()}), folder / "nodes.parquet")
        if run.graph.num_relations:
            pq.write_table(pa.table({"name": run.graph.relation_names()}), folder / "relations.parquet")
        save_file(own_copies(run.model.state_dict()), folder / "model.safetensors")
        description = {
            "format": "foresee.graph.export", "version": 1, "vectors": form, "num_nodes": run.vectors.num_nodes,
            "width": width, "num_relations": run.graph.num_relations, "step": run.step,
            "model": run.config.model.model_dump(mode="json", exclude={"folder"}),
        }  # fmt: skip
        (folder / "export.json").write_text(json.dumps(description, indent=2) + "\n", "utf-8")
    return description


def _pieces(run: Trained) -> Iterator[Float32]:
    for block in blocks(run.vectors.num_nodes, NODES_AT_ONCE):
        with torch.no_grad():
            yield run.vectors.of(block).numpy()


def _write_vectors(run: Trained, folder: Path, form: Format) -> int:
    """All vectors, block by block; how wide they are."""
    width = int(run.vectors.of(np.array([0])).shape[1])
    with ExitStack() as files:
        if form == "npy":
            array = files.enter_context(ArrayWriter(folder / "nodes.npy", np.float32, (width,)))
            for piece in _pieces(run):
                array.append(piece)
            return width
        file = files.enter_context(open(folder / ("nodes.txt" if form == "word2vec" else "nodes.safetensors"), "wb"))
        write = _write_word2vec if form == "word2vec" else _write_safetensors
        write(run, file, width)
    return width


def _write_safetensors(run: Trained, file: BinaryIO, width: int) -> None:
    """The format's header and one tensor `nodes` [nodes, width], written as it is read."""
    num_nodes = run.vectors.num_nodes
    shape = {"dtype": "F32", "shape": [num_nodes, width], "data_offsets": [0, 4 * num_nodes * width]}
    header = json.dumps({"nodes": shape}).encode()
    header += b" " * (-len(header) % 8)
    file.write(len(header).to_bytes(8, "little") + header)
    for piece in _pieces(run):
        file.write(piece.tobytes())


def _write_word2vec(run: Trained, file: BinaryIO, width: int) -> None:
    """A line for each node: its name and its numbers, with spaces between; spaces in names become underscores."""
    file.write(f"{run.vectors.num_nodes} {width}\n".encode())
    for block, piece in zip(blocks(run.vectors.num_nodes, NODES_AT_ONCE), _pieces(run), strict=True):
        for name, values in zip(run.names_of(block), piece, strict=True):
            numbers = " ".join(f"{value:.9g}" for value in values.tolist())
            file.write(f"{'_'.join(name.split()) or '_'} {numbers}\n".encode())
