"""A run over a graph, validated: what the run file of `foresee graph train` may say, every default in one place.

In: nested keys and values. Out: a frozen `GraphConfig`. It reads like the run file of click logs, and shares its words
for tables, optimisers, schedules, commits and reports. Whether a name or a path exists is found out by who uses it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from foresee.graph.evaluation import EvaluationOptions
from foresee.graph.negatives import NegativeOptions
from foresee.io.urls import Place, place
from foresee.run.config import (
    BestConfig,
    DenseOptimizerConfig,
    LoopConfig,
    ReportConfig,
    RowOptimizerConfig,
    Section,
    TablesConfig,
)


class GraphModelConfig(Section):
    """What is learned about the graph."""

    task: Literal["links", "nodes"] = "links"
    """links: which edges there are. nodes: which class a node has."""
    dim: int = Field(default=50, ge=1)
    """Width of a node's embedding."""
    decoder: str = "distmult"
    """distmult, complex, transe, rotate, dot, or a class of yours as package.module:Class. Of links."""
    decoder_options: dict[str, Any] = Field(default_factory=dict)
    """Passed to it, such as `norm: 1` for transe, or `init_scale` of relations for distmult and complex."""
    inverse: bool = True
    """Relations have a second table for the side of heads."""
    loss: str = "softmax"
    """softmax, logistic or margin."""
    loss_options: dict[str, float] = Field(default_factory=dict)
    """margin; temperature, above 0: negatives that score high count more (not of softmax)."""
    both_sides: bool = True
    """Negatives stand for heads as for tails."""
    n3: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the cubes of an edge's vectors: of both nodes, and of its relation on both sides."""
    l2: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of their squares."""
    encoder: str | None = None
    """graph_sage, gcn, gat, or a class of yours. Left out: embeddings go to the decoder as they are."""
    encoder_options: dict[str, Any] = Field(default_factory=dict)
    """Passed to it, such as `hidden: [64]`, `heads: 4` or `dropout: 0.5`."""
    fanouts: list[int] = Field(default=[10], min_length=1)
    """Neighbours that are sampled at each hop, the one next to the node first; 0: all."""
    direction: Literal["incoming", "outgoing", "both"] = "both"
    """Neighbours that point to a node, that it points to, or both."""
    neighbours: Literal["graph", "buffer"] = "graph"
    """Where they come from: the whole graph, or the partitions in the buffer."""
    inputs: Literal["embeddings", "features"] = "embeddings"
    """What an encoder reads: embeddings that are learned, or the features of the graph, which stay."""
    folder: Path | None = Field(default=None, strict=False)
    """Where package.module is looked for besides the current folder. Left out: the folder of the run file."""


class NegativesConfig(Section):
    """Wrong ends that each edge is compared with. All are drawn from the seed before anything is trained."""

    num_chunks: int = Field(default=10, ge=1)
    """Groups of a batch's edges that share their negatives."""
    num_nodes: int = Field(default=500, ge=1)
    """Negatives of each chunk and side."""
    degree_share: float = Field(default=0.0, ge=0, le=1)
    """Of these, how many are ends of edges of the batch, so that nodes come as often as their degree has it."""
    source: Literal["graph", "buffer", "pool"] | None = None
    """The whole graph, the buffer's partitions, or a pool. Left out: the buffer if there is one, else the graph."""
    pool_nodes: int = Field(default=10_000, ge=1)
    """Nodes of the pool."""
    pool_life_steps: int = Field(default=16, ge=1)
    """After how many steps a node of the pool has been replaced. Long lives cost quality."""
    filtered: bool = False
    """Leave out negatives that are edges of the graph."""

    def options(self, seed: int, *, one_state: bool) -> NegativeOptions:
        """As batches take them."""
        source = self.source or ("graph" if one_state else "buffer")
        return NegativeOptions(**{**self.model_dump(), "source": source, "seed": seed})


class OrderConfig(Section):
    """In which order an epoch meets the edges. This does change the result: it is the knob between random and cheap."""

    name: str | None = None
    """random, ring, comet, beta and so on; docs/graphs.md has all. Left out: ring with a buffer, else random."""
    partitions: int | None = Field(default=None, ge=1)
    """Partitions of the nodes. Left out: as the graph was prepared."""
    buffer: int | None = Field(default=None, ge=2)
    """Partitions that are in memory at once. Left out: all."""
    memory_bytes: int | None = Field(default=None, ge=1)
    """Choose name, partitions and buffer for so much memory, instead of giving them."""
    logical_partitions: int | None = Field(default=None, ge=1)
    """Groups of partitions that move together, for comet. Left out: 2 * partitions / buffer."""
    turns: int = Field(default=1, ge=1)
    """How often every pair of partitions meets in an epoch, for orders that can: more reads, closer to random."""

    @model_validator(mode="after")
    def one_way(self) -> OrderConfig:
        if self.memory_bytes is not None and (self.buffer is not None or self.partitions is not None):
            raise ValueError("give either memory_bytes, or partitions and buffer yourself")
        return self


class GraphCacheConfig(Section):
    """The cache of rows, and who plans what is in it. No choice here changes the result, only what is moved."""

    rows: int | None = Field(default=None, ge=1)
    """Rows that the cache holds. Left out, with `share`: those of the buffer, or all."""
    share: float | None = Field(default=None, gt=0, le=1)
    """The same as a share of all nodes."""
    unit: Literal["rows", "partitions"] | None = None
    """What moves: only the rows that the coming steps touch, or whole partitions. Left out: what reads fewer bytes."""
    planner: str = "lookahead"
    """Which rows stay in the cache; all planners train to the same bytes."""
    window_steps: int | None = Field(default=None, ge=0)
    """A fixed lookahead. Left out: as far as the cache can use, within `window_bytes`."""
    window_bytes: int | None = Field(default=None, ge=1)
    """Memory for the batches that the planner looks at."""

    @model_validator(mode="after")
    def one_size(self) -> GraphCacheConfig:
        if self.rows is not None and self.share is not None:
            raise ValueError("give the size of the cache either as rows or as a share of all nodes")
        return self


class NodeTablesConfig(TablesConfig):
    """The embeddings of nodes and where their rows live."""

    store: str = "disk"
    """disk: in a folder, of any size, kept. memory: in this process. Or servers: grpc://host:port,grpc://host:port"""
    optimizer: RowOptimizerConfig = RowOptimizerConfig(name="adagrad", lr=0.1)
    """How rows learn."""
    init_scale: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # type: ignore[assignment]
    """Initial values are uniform in [-init_scale, init_scale). Left out: sqrt(6 / (nodes + dim)), as Glorot has it."""


class EvaluationConfig(Section):
    """How edges of the valid and test splits are ranked."""

    at: list[int] = Field(default=[1, 3, 10], min_length=1)
    """The k of Hits@k."""
    ties: Literal["realistic", "pessimistic"] = "realistic"
    """Equal scores count as half, or all as higher."""
    filtered: bool = True
    """Other edges of the graph are no mistakes."""
    num_candidates: int | None = Field(default=None, ge=1)
    """Rank against so many nodes drawn from the seed. Left out: against all."""
    degree_share: float = Field(default=0.0, ge=0, le=1)
    """Of these, how many are ends of train edges."""
    queries_at_once: int = Field(default=1 << 15, ge=1)
    """The table is read once for so many queries."""
    candidates_at_once: int = Field(default=1 << 11, ge=1)
    """Nodes that are in memory at once."""
    fanouts: list[int] | None = None
    """Neighbours at each hop for an encoder's vectors after training and in evaluations. Left out: `model.fanouts`."""

    def options(self, *, both_sides: bool, seed: int, edges_max: int | None = None) -> EvaluationOptions:
        """As evaluation takes them."""
        given = {**self.model_dump(exclude={"fanouts"}), "at": tuple(self.at)}
        return EvaluationOptions(**given, both_sides=both_sides, seed=seed, edges_max=edges_max)


class GraphTrainConfig(LoopConfig):
    """Training itself."""

    batch_size: int = Field(default=1000, ge=1)
    """Edges, or nodes to classify, of a step at most; the steps of a state are of nearly equal size."""
    epochs: int = Field(default=10, ge=1)
    """Passes over the train split, each in an order of its own."""
    seed: int = Field(default=0, ge=0)
    """Order, negatives, neighbours and the initial weights of the model follow from it."""
    optimizer: DenseOptimizerConfig = DenseOptimizerConfig(lr=0.1)
    """How relations, encoder and decoder learn."""
    best: BestConfig = BestConfig()
    """The best evaluation, and early stopping: metric mrr, hits@K, accuracy or macro_f1."""
    evaluate_samples_max: int | None = Field(default=None, ge=1)
    """Edges or nodes of an evaluation before the end. Left out: the whole split."""
    staleness_bound: int = Field(default=1, ge=1)
    """Batches in flight, as Marius has them: a batch reads its rows before the updates of so many less one. 1: none."""


class GraphConfig(Section):
    """Everything a run over a graph needs to know."""

    path_keys: ClassVar[tuple[str, ...]] = ("graph", "run", "model.folder", "tables.folder")
    option_keys: ClassVar[tuple[str, ...]] = (
        "model.decoder_options.", "model.loss_options.", "model.encoder_options.", "tables.optimizer.",
        "train.optimizer.options.", "train.schedule.options.",
    )  # fmt: skip
    result_keys: ClassVar[tuple[str, ...]] = (
        "model.task", "model.dim", "model.decoder", "model.decoder_options", "model.inverse", "model.loss",
        "model.loss_options", "model.both_sides", "model.n3", "model.l2", "model.encoder", "model.encoder_options",
        "model.fanouts", "model.direction", "model.neighbours", "model.inputs", "negatives", "order", "tables.store",
        "tables.optimizer", "tables.seed", "tables.init_scale", "tables.dtype", "tables.rounding", "train.batch_size",
        "train.staleness_bound",
        "train.seed", "train.optimizer", "train.schedule", "train.num_threads",
    )  # fmt: skip
    """The others say where things are, how often something is shown or kept, how far to train, or what is cached."""

    graph: Path | str
    """Folder of a prepared graph, made by `foresee graph prepare`, or a URL of one, which is copied here."""
    run: Path = Field(strict=False)
    """Folder of this run: tables, checkpoints, metrics. Or a URL, which is then its `storage`."""
    storage: str | None = None
    """A URL, such as s3://bucket/runs/1: commits are copied there, and a lost folder is had back from it."""
    model: GraphModelConfig = GraphModelConfig()
    """What is learned."""
    negatives: NegativesConfig = NegativesConfig()
    """Wrong ends that edges are compared with."""
    order: OrderConfig = OrderConfig()
    """In which order an epoch meets the edges."""
    tables: NodeTablesConfig = NodeTablesConfig()
    """The embeddings of nodes."""
    cache: GraphCacheConfig = GraphCacheConfig()
    """The cache of rows and its planner."""
    train: GraphTrainConfig = GraphTrainConfig()
    """Training itself."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """How edges are ranked."""
    report: ReportConfig = ReportConfig()
    """What a run records of itself."""

    @field_validator("graph", "run", mode="before")
    @classmethod
    def some_path(cls, value: object) -> object:
        if value in ("", None):
            raise ValueError("give a path")
        return place(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def fits_together(self) -> GraphConfig:
        model = self.model
        if model.encoder is None and (model.task == "nodes" or model.inputs == "features"):
            raise ValueError("model.encoder is missing: nodes and features need one, such as model.encoder: graph_sage")
        if self.evaluation.fanouts is not None and len(self.evaluation.fanouts) != len(model.fanouts):
            raise ValueError(f"evaluation.fanouts: give {len(model.fanouts)}, one for each of model.fanouts")
        return self

    @property
    def source(self) -> Place:
        """What is trained on."""
        return self.graph

    @property
    def tables_folder(self) -> Path:
        """Where the tables on disk are."""
        return self.tables.folder if self.tables.folder is not None else self.run / "tables"

    @property
    def num_servers(self) -> int:
        """A run over a graph is one process."""
        return 0
