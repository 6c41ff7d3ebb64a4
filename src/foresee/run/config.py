"""A run, validated: what `run.yaml` may say, with every default in one place.

In: nested keys and values. Out: a frozen `RunConfig`, or pydantic's refusal, which `run_file` puts in words. Never
opens a log or a table: whether a name or a path exists is found out by who uses it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from foresee.io.urls import Place, place


class Section(BaseModel):
    """Unknown keys are refused, nothing is converted behind a person's back, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class TaskConfig(Section):
    """One thing to learn: a label of the log, with its loss."""

    name: str | None = Field(default=None, min_length=1)
    """How it is called in figures and scores. Left out: as its label."""
    label: str | None = Field(default=None, min_length=1)
    """A label of the log. Left out: the one that is called `name`, or the only one."""
    loss: Literal["binary", "mse", "huber", "softmax"] | None = None
    """binary: of a click, its log loss. mse, huber: of a number. softmax: of classes. Left out: as suits the label."""
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """What its loss is multiplied with before all are added up."""
    delta: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Of huber: errors beyond it count linearly."""


class RankingConfig(Section):
    """Figures within groups of samples, such as those shown to one user."""

    group: str | None = None
    """A feature whose value makes a group, such as `user`: evaluations then have GAUC, NDCG@k and recall@k."""
    at: list[int] = Field(default=[10], min_length=1)
    """The k of NDCG@k and recall@k; several if you like."""

    @field_validator("at")
    @classmethod
    def ranks(cls, value: list[int]) -> list[int]:
        if any(rank < 1 for rank in value):
            raise ValueError(f"found {value}; give whole numbers from 1 up")
        return sorted(set(value))

    @property
    def figures(self) -> list[str]:
        """The names of the figures within groups, if there are groups."""
        ranked = ["gauc", *(f"{name}@{k}" for name in ("ndcg", "recall") for k in self.at)]
        return ranked if self.group is not None else []


class MetricConfig(Section):
    """A metric of torchmetrics, or of one's own, beside the figures that evaluations have anyway."""

    name: str
    """As package.module:Class, such as torchmetrics.classification:BinaryF1Score."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the class."""
    task: str | None = None
    """The task that it judges. Left out: the only one."""
    figure: str | None = Field(default=None, min_length=1)
    """How it is called in metrics and in best.metric. Left out: the class's name, as in binary_f1_score."""

    @model_validator(mode="before")
    @classmethod
    def name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


SMALLER_IS_BETTER = ("log_loss", "normalised_entropy", "rmse", "mae")


class BestConfig(Section):
    """The best evaluation: its rows and weights are kept beside the last ones, and training may stop after it."""

    metric: str | None = None
    """A figure of the valid split: auc, log_loss, gauc, rmse, …; of several tasks, task.figure. Left out: no best."""
    mode: Literal["max", "min"] | None = None
    """Whether more or less is better. Left out: as the metric has it."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after so many evaluations in a row that are not better. Left out: train all epochs."""
    min_delta: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """By how much an evaluation has to be better to count."""

    @property
    def larger_is_better(self) -> bool:
        return (
            self.mode == "max"
            if self.mode is not None
            else str(self.metric).rpartition(".")[2] not in SMALLER_IS_BETTER
        )


def _place(value: object) -> object:
    """Text becomes a path, unless it is a URL."""
    return place(value) if isinstance(value, str) else value


Dim = Annotated[int, Field(ge=1)]


class ModelConfig(Section):
    """The dense part of the model."""

    name: str = "dlrm"
    """dlrm, deepfm, wide_and_deep, dcn_v2, ncf, or a class of yours as package.module:Class."""
    dim: Dim | dict[str, Dim] = 16
    """Width of an embedding; or that of each table by its name, such as `{country: 4, default: 64}`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the model, such as `top: [512, 256]` for a DLRM."""
    folder: Path | None = Field(default=None, strict=False)
    """Where package.module is looked for besides the current folder. Left out: the folder of the run file."""


class RowScheduleConfig(Section):
    """The rate of rows by step: a rise, then what `shape` says."""

    shape: Literal["constant", "step", "cosine"] = "constant"
    """constant: it stays. step: times `gamma` after every `steps`. cosine: down to `floor` within `steps`."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps in which it rises from nothing to `lr`."""
    steps: int | None = Field(default=None, ge=1)
    """Over how many steps it falls: needed by step and cosine."""
    gamma: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    """What it is multiplied with at each stair of step."""
    floor: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The rate at the end of a cosine, and after it."""

    @model_validator(mode="after")
    def has_steps(self) -> RowScheduleConfig:
        """A rate that falls says over how many steps."""
        if self.shape != "constant" and self.steps is None:
            raise ValueError(f"steps is missing: say over how many steps the rate falls ({self.shape})")
        return self


class RowOptimizerConfig(Section):
    """How rows learn. Its state lives with each row. Beside `name` and `lr`, the numbers of that optimiser."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, float] = Field(init=False)

    name: str = "rowwise_adagrad"
    """sgd, adagrad, rowwise_adagrad, lazy_adam, or one that an installed package has; each with its own numbers."""
    lr: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    """Learning rate."""
    schedule: RowScheduleConfig = RowScheduleConfig()

    @model_validator(mode="before")
    @classmethod
    def left_out(cls, value: Any) -> Any:
        """A number without a value is left out: the optimiser has its own default."""
        return {key: it for key, it in value.items() if it is not None} if isinstance(value, dict) else value

    @property
    def numbers(self) -> dict[str, float]:
        """The fields of the optimiser that are given, beside the rate."""
        return self.__pydantic_extra__ or {}


class TablesConfig(Section):
    """The embedding tables and where their rows live."""

    store: str = "disk"
    """disk: in a folder, of any size, kept. memory: in this process, gone when it ends. Or one of a package's."""
    folder: Path | None = Field(default=None, strict=False)
    """Folder of the tables. Left out: `tables` inside the run folder."""
    optimizer: RowOptimizerConfig = RowOptimizerConfig()
    """How rows learn."""
    seed: int = Field(default=0, ge=0)
    """Initial values of rows follow from it."""
    init_scale: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    """Initial values are uniform in [-init_scale, init_scale)."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """What the values of rows are: bfloat16 and float16 take half of the bytes everywhere. Their state is float32."""
    rounding: Literal["stochastic", "nearest"] = "stochastic"
    """How an update rounds to two bytes: by random bits of (seed, row, column, step), or to nearest."""
    fold: Literal["auto", "always", "never"] = "auto"
    """Whether the end of a run writes the log's rows to rows.npy, for numpy. auto: if the log is at most 256 MB."""

    @field_validator("fold", mode="before")
    @classmethod
    def _former_default(cls, fold: object) -> object:
        return "auto" if fold == "at_end" else fold  # in config.yaml of every run that an older version began


class CacheConfig(Section):
    """The cache of rows, and who plans what is in it. No choice here changes the result, only what is moved."""

    rows: int | None = Field(default=None, ge=1)
    """Rows that the cache holds; at least the distinct rows of the largest batch. Give this or `share`."""
    share: float | None = Field(default=None, gt=0, le=1)
    """Rows that the cache holds, as a share of all rows of the log's tables."""
    planner: str = "lookahead"
    """Which rows stay in the cache: any policy that `foresee plan` lists; all train to the same bytes."""
    window_steps: int | None = Field(default=None, ge=0)
    """A fixed lookahead as in the Bagpipe paper. Left out: as far as the cache can use, within `window_bytes`."""
    window_bytes: int | None = Field(default=None, ge=1)
    """Memory for the batches that the planner looks at. Left out: 2 GB, and as much as `window_steps` need."""
    uses_ahead_steps: int | None = Field(default=None, ge=0)
    """How far to look for next uses. Left out: 16,384 steps if the store lays rows out by them; 0: the window only."""
    plan_file: Path | str | None = None
    """A plan kept by `foresee plan --out`, or its URL. Left out: planned while training."""

    _place = field_validator("plan_file", mode="before")(_place)

    @model_validator(mode="after")
    def one_size(self) -> CacheConfig:
        if (self.rows is None) == (self.share is None):
            raise ValueError("give the size of the cache either as rows or as a share of all rows")
        return self


class DenseOptimizerConfig(Section):
    """How the dense part of the model learns."""

    name: str = "adam"
    """An optimiser of torch.optim: adam, adamw, sgd, adagrad, rmsprop, nadam, radam, adamax, adadelta, and so on."""
    lr: float = Field(default=0.001, ge=0, allow_inf_nan=False)
    """Learning rate; where a schedule begins from."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """L2 penalty; decoupled in adamw."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The optimiser's other options by torch's names, such as `betas: [0.9, 0.99]` or `momentum: 0.9`."""


class ScheduleConfig(Section):
    """How the learning rate of the dense part changes. It follows from the step alone."""

    name: str | None = None
    """A schedule of torch.optim.lr_scheduler, such as CosineAnnealingLR. Left out: the rate stays."""
    every: Literal["step", "epoch"] = "step"
    """When it moves on: after every step, or after every epoch. Its options count in these."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Its options by torch's names, such as `T_max: 10000`."""


class LoopConfig(Section):
    """Training itself, of any kind of run."""

    batch_size: int = Field(default=2048, ge=1)
    """Samples of a step."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the train split, each in an order of its own."""
    seed: int = Field(default=0, ge=0)
    """The order of samples and the initial weights of the model follow from it."""
    optimizer: DenseOptimizerConfig = DenseOptimizerConfig()
    """How the dense part learns."""
    schedule: ScheduleConfig = ScheduleConfig()
    """How its learning rate changes."""
    best: BestConfig = BestConfig()
    """The best evaluation, and early stopping."""
    evaluate_every_steps: int | None = Field(default=None, ge=1)
    """Evaluate on the valid split so often. Left out: at the end only."""
    evaluate_samples_max: int | None = Field(default=None, ge=1)
    """Samples of an evaluation before the end. Left out: the whole split."""
    commit_every_steps: int | None = Field(default=None, ge=1)
    """Keep the state so often. Left out: by time alone, and at the end."""
    commit_every_seconds: float | None = Field(default=None, gt=0)
    """Keep the state at least so often. Left out: as often as costs about two hundredths of the time."""
    log_every_steps: int = Field(default=100, ge=1)
    """One line of metrics.jsonl so often."""
    num_threads: int | None = Field(default=None, ge=1)
    """Threads of the arithmetic. Left out: torch's own choice. Another number may change the last bits of a result."""
    tensorboard: bool = False
    """Write the same figures for TensorBoard into the run folder; needs `pip install foresee[tensorboard]`."""

    @model_validator(mode="after")
    def something_to_compare(self) -> LoopConfig:
        best = self.best
        if best.metric is None and (best.patience is not None or best.mode is not None or best.min_delta):
            raise ValueError("best.metric is missing: say which figure is compared, such as best.metric: auc")
        if best.patience is not None and self.evaluate_every_steps is None:
            raise ValueError("best.patience counts evaluations; say how often with evaluate_every_steps")
        return self


class TrainConfig(LoopConfig):
    """Training itself."""

    shuffle_samples: int = Field(default=131_072, ge=1)
    """Samples that are decoded and mixed together. More mixes better and takes more memory."""
    clip_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Gradients of weights and rows are scaled to this norm, all together, where it is larger. Left out: never."""
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: matrix products of the model in bfloat16 (torch.autocast); weights, rows and updates stay float32."""
    ranking: RankingConfig = RankingConfig()
    """Figures within groups."""
    metrics: list[MetricConfig] = Field(default=[])
    """More figures of evaluations, by metrics of torchmetrics or of your own."""
    device: str = "cpu"
    """Where the model computes: cpu, cuda, cuda:1, mps. Several workers: cpu, or cuda for a GPU each."""

    @model_validator(mode="after")
    def known_figure(self) -> TrainConfig:
        """Which figures there are follows from the labels of the log; those within groups are known here."""
        metric, ranked = str(self.best.metric), self.ranking.figures
        figure = metric.rpartition(".")[2]
        if figure.partition("@")[0] in ("gauc", "ndcg", "recall") and figure not in ranked:
            more = "" if ranked else "; with ranking.group also gauc, ndcg@K and recall@K"
            known = ", ".join(["auc", "log_loss", "normalised_entropy", *ranked])
            raise ValueError(f"best.metric: there is no {metric!r}; choose one of {known}{more}")
        return self


class ResourcesConfig(Section):
    """What each part of a run reserves on a cluster, by the names that the cluster has for it, such as CPU and GPU."""

    server: dict[str, float] = Field(default={"CPU": 1})
    """An embedding server."""
    planner: dict[str, float] = Field(default={"CPU": 1})
    """The planner."""
    worker: dict[str, float] = Field(default={"CPU": 1})
    """A trainer; on a cluster it computes with as many threads as it has cores."""


class ElasticConfig(Section):
    """Fewer parts while a cluster lacks nodes, and more when they have come."""

    workers_min: int = Field(default=0, ge=0)
    """With how few trainers a run goes on where nodes are gone. 0: it waits for all places."""
    servers_min: int = Field(default=0, ge=0)
    """The same for servers; rows move to those that are left."""
    after_seconds: float = Field(default=60.0, ge=0.0)
    """How long parts wait for a place before the run goes on with fewer."""
    every_seconds: float = Field(default=600.0, ge=0.0)
    """Nodes that have come are taken up at a commit, at most so often."""


class DistributedConfig(Section):
    """Several processes that train one model. The rows are then on embedding servers."""

    workers: int = Field(default=1, ge=1)
    """Trainers; they share every batch equally, or but for one sample where it does not divide."""
    servers: int = Field(default=0, ge=0)
    """Embedding servers that `foresee train` starts. Left at 0: one if there are several workers, else none."""
    restarts_max: int = Field(default=10, ge=0)
    """How often `foresee train` starts parts again that were killed, before it gives up."""
    placement: Literal["contiguous", "herald", "location_aware"] = "location_aware"
    """Which worker trains which sample of a batch; contiguous, herald, or location_aware, which moves fewest rows."""
    placement_features: list[str] | None = None
    """Features that location_aware looks at. Left out: all. `foresee plan features` finds those worth their time."""
    resources: ResourcesConfig = ResourcesConfig()
    """What each part reserves on a cluster; one machine takes no notice."""
    elastic: ElasticConfig = ElasticConfig()
    """Whether the numbers of trainers and servers follow the nodes of a cluster (`--on ray`)."""


class ReportConfig(Section):
    """What a run records of itself for `foresee report` and `foresee watch`. No choice here changes the result."""

    timeline_steps: int = Field(default=96, ge=0)
    """Steps of which everything that every thread did is kept, in windows of 12 over the whole run. 0: of none."""
    series_points: int = Field(default=1000, ge=0)
    """Points of the curves over the run, such as time by activity and bytes by link; at most. 0: no curves."""


class AnyRun(Protocol):
    """What run files, run folders and the loop ask of a run, whatever it trains on."""

    path_keys: ClassVar[tuple[str, ...]]
    """Keys that are paths."""
    option_keys: ClassVar[tuple[str, ...]]
    """Beginnings of keys that belong to something a person chose, and are not known here."""
    result_keys: ClassVar[tuple[str, ...]]
    """Keys that change what a run computes."""

    @property
    def source(self) -> Place: ...
    @property
    def run(self) -> Path: ...
    @property
    def storage(self) -> str | None: ...
    @property
    def tables(self) -> TablesConfig: ...
    @property
    def train(self) -> LoopConfig: ...
    @property
    def report(self) -> ReportConfig: ...
    @property
    def tables_folder(self) -> Path: ...
    @property
    def num_servers(self) -> int: ...
    def model_dump(self, *, mode: str = ...) -> dict[str, Any]: ...


class RunConfig(Section):
    """Everything a run needs to know."""

    path_keys: ClassVar[tuple[str, ...]] = ("log", "run", "model.folder", "tables.folder", "cache.plan_file")
    option_keys: ClassVar[tuple[str, ...]] = (
        "model.options.", "tables.optimizer.", "train.optimizer.options.", "train.schedule.options.",
    )  # fmt: skip
    result_keys: ClassVar[tuple[str, ...]] = (
        "model.name", "model.dim", "model.options", "tasks", "tables.store", "tables.optimizer", "tables.seed",
        "tables.init_scale", "tables.dtype", "tables.rounding", "train.batch_size", "train.seed",
        "train.shuffle_samples", "train.optimizer", "train.schedule", "train.clip_norm", "train.precision",
        "train.num_threads", "train.device",
        "distributed.placement", "distributed.placement_features",
    )  # fmt: skip
    """The others say where things are, how often something is shown or kept, how far to train, or how rows are cached:
    a run may be resumed with other values of these and ends with the same bytes."""

    log: Path | str
    """Folder of a prepared click log, made by `foresee prepare`, or a URL of one, which is read ahead of training."""
    run: Path = Field(strict=False)
    """Folder of this run: tables, checkpoints, metrics. Or a URL, which is then its `storage`."""
    storage: str | None = None
    """A URL, such as s3://bucket/runs/1: commits are copied there, and a lost node or folder is had back from it."""
    model: ModelConfig = ModelConfig()
    """The dense part of the model."""
    tasks: list[TaskConfig] = Field(default=[])
    """What is learned. Left out: every label of the log, each with the loss that suits it."""
    tables: TablesConfig = TablesConfig()
    """The embedding tables."""
    cache: CacheConfig
    """The cache of rows and its planner."""
    train: TrainConfig = TrainConfig()
    """Training itself."""
    distributed: DistributedConfig = DistributedConfig()
    """Several processes that train one model."""
    report: ReportConfig = ReportConfig()
    """What a run records of itself."""

    @field_validator("log", "run", mode="before")
    @classmethod
    def some_path(cls, value: object) -> object:
        if value in ("", None):
            raise ValueError("give a path")
        return _place(value)

    @model_validator(mode="after")
    def servers_are_started(self) -> RunConfig:
        if "://" in self.tables.store:
            raise ValueError(
                "tables.store: addresses are for runs over graphs; servers of this run are started by "
                "distributed.servers, or given to its trainers (docs/servers.md)"
            )
        return self

    @property
    def source(self) -> Place:
        """What is trained on."""
        return self.log

    @property
    def tables_folder(self) -> Path:
        """Where the tables on disk are; with servers, a folder `shard-N` in it for each."""
        return self.tables.folder if self.tables.folder is not None else self.run / "tables"

    @property
    def num_servers(self) -> int:
        """Embedding servers of this run; 0: one process has everything."""
        return max(self.distributed.servers, int(self.distributed.workers > 1))
