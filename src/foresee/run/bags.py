"""Tables described as in TorchRec: embedding bags with names, sizes, features and pooling.

    bags = EmbeddingBags([EmbeddingBagConfig(name="films", num_embeddings=10_000, embedding_dim=64,
                                             feature_names=["seen", "clicked"], pooling="mean"), ...])

In: configurations, our `EmbeddingBagConfig` or TorchRec's own: any object with these attributes. Out: the tables and
features that `Tables` and `Batches` take, embeddings by name, and weights to give back to PyTorch. TorchRec is never
imported. Sums and means are pooled with the lookup; maxima, weighted bags and sequences get a vector for each id and
are pooled, or not, by `keyed`. Every table is as wide as its configuration says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from foresee.arrays import Float32
from foresee.data.batch import Pooling
from foresee.data.jagged import MAX, MEAN, NONE, SUM, bags_of
from foresee.engine.lookup import GroupVectors, look_up, look_up_groups
from foresee.engine.step import Step
from foresee.engine.tables import Tables
from foresee.errors import ConfigError, UsageError
from foresee.run.keyed import JaggedEmbeddings, KeyedEmbeddings, pooled, vectors_of
from foresee.store.layout import Table

POOLINGS = (SUM, MEAN, MAX, NONE)
DATA_TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""Dtypes by TorchRec's names."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingBagConfig:
    """One table: what TorchRec's class of this name says, for who does not have TorchRec."""

    name: str
    """Of the table."""
    num_embeddings: int
    """Rows."""
    embedding_dim: int
    """Width of a row."""
    feature_names: Sequence[str]
    """Features whose ids are rows of this table."""
    pooling: str = SUM
    """How the rows of a bag become one vector: sum, mean or max; none: each id keeps its own, as in a sequence."""
    padding_idx: int | None = None
    """An id that stands for none and is left out."""
    data_type: str = "fp32"
    """What values are: fp32, fp16 or bf16, one for all tables."""
    init_fn: Callable[[Tensor], Any] | None = None
    """Fills a whole table in place, for `EmbeddingBags.reset_parameters`; None: uniform in ± 1/√rows."""


class BagFeature(NamedTuple):
    """One feature: a column of bags, looked up in one table."""

    name: str
    """In embeddings: the key, or key@table where several tables look up the same key."""
    key: str
    """In batches."""
    table: str
    first_row: int
    num_rows: int
    dim: int
    pooling: str
    padding_idx: int | None


class EmbeddingBags:
    """Tables and features of a model, in the order of their configurations. Stands where a log is asked for tables.

    Args:
        configs: `EmbeddingBagConfig`s, or objects of TorchRec's classes `EmbeddingBagConfig` and `EmbeddingConfig`.
        is_weighted: Every id comes with a weight, as in `nn.EmbeddingBag(per_sample_weights)`; sums and means only.

    Raises:
        ConfigError: There is none, two have one name, or one says what Foresee cannot do.
    """

    def __init__(self, configs: Iterable[Any], *, is_weighted: bool = False) -> None:
        configs = list(configs)
        known = [_checked(config) for config in configs]
        self._init_fns = {config.name: getattr(config, "init_fn", None) for config in configs}
        if not known:
            raise ConfigError("no tables were given; give at least one EmbeddingBagConfig")
        twice = [name for name, times in Counter(config.name for config in known).items() if times > 1]
        if twice:
            raise ConfigError(f"two tables are named {twice[0]!r}; give every EmbeddingBagConfig a name of its own")
        self.tables = tuple(Table(config.name, config.num_embeddings) for config in known)
        self.features = _features(known)
        self.dtype = _one_dtype(known)
        """Of values, as `Tables` take it over."""
        self._dims = {config.name: config.embedding_dim for config in known}
        several = len(set(self._dims.values())) > 1
        self.dim: Any = dict(self._dims) if several else known[0].embedding_dim
        """Width of a row, or that of each table by its name where they differ: what `Tables` take."""
        self.is_weighted = is_weighted
        """Every id comes with a weight."""
        unweighted = [config for config in known if config.pooling not in (SUM, MEAN)]
        if is_weighted and unweighted:
            raise ConfigError(
                f"table {unweighted[0].name!r}: pooling {unweighted[0].pooling} takes no weights; use sum or mean"
            )

    @property
    def num_rows(self) -> int:
        """Rows of all tables."""
        return sum(table.num_rows for table in self.tables)

    @property
    def num_features(self) -> int:
        """Columns of `step.embeddings`."""
        return len(self.features)

    @property
    def mean_features(self) -> tuple[bool, ...]:
        """For each feature: is its bag averaged (True) or summed (False)?"""
        return tuple(feature.pooling == MEAN for feature in self.features)

    @property
    def pooling(self) -> Pooling:
        """How lookups become vectors: those of maxima, weights and sequences stay apart."""
        apart = (self.is_weighted or feature.pooling in (MAX, NONE) for feature in self.features)
        places = {table.name: place for place, table in enumerate(self.tables)}
        return Pooling.of(self.mean_features, apart, (places[feature.table] for feature in self.features))

    def keyed(self, step: Step | Tensor | Sequence[Tensor]) -> KeyedEmbeddings:
        """Embeddings by feature name, each as wide as its table. Gradients flow back.

        Args:
            step: Of these bags' batches; or its `embeddings`, [samples, features, width] or a list of one tensor for
                each feature, where all are pooled.

        Returns:
            Something with `[name]`, [samples, dim] or a `JaggedEmbeddings`, and what TorchRec's KeyedTensor has.

        Raises:
            UsageError: Embeddings of other bags, or without the step that says which vector belongs to which id.
        """
        if isinstance(step, Step):
            return self._keyed(step.groups, step.weights)
        return self._keyed_tensor(step)

    def _keyed_tensor(self, embeddings: Tensor | Sequence[Tensor]) -> KeyedEmbeddings:
        if self.pooling.apart is not None:
            raise UsageError("these bags have a vector for each id; give keyed() the step instead of its embeddings")
        if not isinstance(embeddings, Tensor):
            if len(embeddings) != self.num_features:
                raise UsageError(
                    f"these are the embeddings of {len(embeddings)} features, and there are {self.num_features}; give "
                    "step.embeddings of the same bags"
                )
            return KeyedEmbeddings(self._widths, lambda position: embeddings[position])
        if embeddings.dim() != 3 or embeddings.shape[1] != self.num_features:
            raise UsageError(
                f"embeddings have shape {tuple(embeddings.shape)}; there are {self.num_features} features: give "
                "step.embeddings of the same bags, [samples, features, width]"
            )
        return KeyedEmbeddings(self._widths, lambda position: embeddings[:, position])

    def _keyed(self, groups: Sequence[GroupVectors], weights: Float32 | None) -> KeyedEmbeddings:
        places = {feature: (group, at) for group in groups for at, feature in enumerate(group.features.tolist())}

        def look_up(position: int) -> Tensor | JaggedEmbeddings:
            group, at = places[position]
            how, num_features = self.features[position].pooling, len(group.features)
            each = vectors_of(group.embeddings, group.vectors, num_features, at)
            if how == NONE:
                return each
            if how != MAX and weights is None:
                return each.values()  # pooled with the lookup
            own = None if weights is None else _own(weights, group, at).to(group.embeddings.device)
            return pooled(each, how, own)

        return KeyedEmbeddings(self._widths, look_up)

    @property
    def _widths(self) -> dict[str, int]:
        return {feature.name: feature.dim for feature in self.features}

    def look_up(self, tables: Tables, ids: Any) -> Tensor:
        """Pooled rows with every update so far, also inside a loop.

        Args:
            tables: Where the rows are.
            ids: Of a batch, in any of the forms that `Batches` takes.

        Returns:
            [samples, features, width]; of tables of several widths a list with a tensor for each feature. For features
            that are not summed or averaged, ask `look_up_keyed`.
        """
        if self.pooling.apart is not None:
            raise UsageError("these bags have a vector for each id; ask look_up_keyed() for them by name")
        tables.bring_up_to_date()
        batch = bags_of(ids, self.features, step=0).batch(None, None)
        return look_up(tables.store, batch, self.pooling)

    def look_up_keyed(self, tables: Tables, ids: Any) -> KeyedEmbeddings:
        """The same by feature name, for every kind of pooling, as `keyed` gives it.

        Args:
            tables: Where the rows are.
            ids: Of a batch, in any of the forms that `Batches` takes.

        Returns:
            Something with `[name]`, [samples, dim] or a `JaggedEmbeddings`.
        """
        tables.bring_up_to_date()
        bags = bags_of(ids, self.features, step=0, weighted=self.is_weighted)
        return self._keyed(look_up_groups(tables.store, bags.batch(None, None), self.pooling), bags.weights)

    def state_dict(self, tables: Tables, prefix: str = "embedding_bags.") -> dict[str, Tensor]:
        """All tables as PyTorch has them. For tables that fit into memory.

        Args:
            tables: Where the rows are.
            prefix: Before each name.

        Returns:
            `{prefix}{table}.weight` → [rows, dim], of the tables' dtype.
        """
        dtype = getattr(torch, tables.layout.dtype)
        return {f"{prefix}{name}.weight": torch.from_numpy(tables.values(name)).to(dtype) for name in self._dims}

    def load_state_dict(self, tables: Tables, weights: Mapping[str, Tensor], prefix: str = "embedding_bags.") -> None:
        """Takes the weights of a PyTorch or TorchRec model over into the tables, and commits them.

        Args:
            tables: Where the rows go.
            weights: `{prefix}{table}.weight` → [rows, dim], for every table.
            prefix: Before each name.

        Raises:
            ConfigError: A weight is missing or has another shape.
        """
        for name, dim in self._dims.items():
            weight = weights.get(f"{prefix}{name}.weight")
            if weight is None:
                raise ConfigError(f"there is no {prefix}{name}.weight; the weights given are {', '.join(weights)}")
            if weight.dim() != 2 or weight.shape[1] != dim:
                raise ConfigError(f"{prefix}{name}.weight has shape {tuple(weight.shape)}; the table is {dim} wide")
            tables.set_values(name, np.ascontiguousarray(weight.detach().cpu().float().numpy(), np.float32))

    def reset_parameters(self, tables: Tables) -> None:
        """Gives every table the values that its `init_fn` draws, from torch's generator, and commits them.

        As TorchRec's collections begin. For tables that fit into memory: without it rows begin with values that follow
        from the tables' seed, and take no space until they are trained.

        Args:
            tables: Where the rows go.
        """
        weights = {}
        for table in self.tables:
            weight = torch.empty(table.num_rows, self._dims[table.name])
            bound = table.num_rows**-0.5
            (self._init_fns[table.name] or (lambda it, bound=bound: it.uniform_(-bound, bound)))(weight)
            weights[f"{table.name}.weight"] = weight
        self.load_state_dict(tables, weights, prefix="")

    def check_tables(self, tables: Tables) -> None:
        """Refuses tables of other rows or widths.

        Args:
            tables: To be used with these bags.

        Raises:
            ConfigError: They do not fit.
        """
        layout = tables.layout
        widths = {table.name: group.width for group in layout.groups for table in group.tables}
        if layout.tables != self.tables or widths != self._dims:
            raise ConfigError(
                f"these tables have {layout.num_rows} rows of width {_listed(widths)}, the bags {self.num_rows} of "
                f"width {_listed(self._dims)}; make tables with Tables.on_disk(path, bags, dim=bags.dim)"
            )


def _listed(widths: Mapping[str, int]) -> str:
    return ", ".join(map(str, dict.fromkeys(widths.values())))


def _own(weights: Float32, group: GroupVectors, position: int) -> Tensor:
    """The weights of one feature. Where ids have weights all vectors are apart: one for each lookup."""
    columns, num_features = torch.from_numpy(weights[group.lookups])[:, None], len(group.features)
    if group.vectors.of_bag is None:
        columns = columns.view(-1, num_features, 1)
    return vectors_of(columns, group.vectors, num_features, position).values()[:, 0]


def _features(configs: Sequence[EmbeddingBagConfig]) -> tuple[BagFeature, ...]:
    times = Counter(key for config in configs for key in config.feature_names)
    starts = accumulate((config.num_embeddings for config in configs), initial=0)
    return tuple(
        BagFeature(
            name=key if times[key] == 1 else f"{key}@{config.name}",
            key=key,
            table=config.name,
            first_row=start,
            num_rows=config.num_embeddings,
            dim=config.embedding_dim,
            pooling=config.pooling,
            padding_idx=config.padding_idx,
        )
        for config, start in zip(configs, starts, strict=False)
        for key in config.feature_names
    )


def _checked(config: Any) -> EmbeddingBagConfig:
    """Our own configuration of what TorchRec's, or anything like it, says."""
    fields = ("name", "num_embeddings", "embedding_dim", "feature_names")
    missing = [field for field in fields if not hasattr(config, field)]
    if missing:
        raise ConfigError(f"{config!r} has no {missing[0]}; give EmbeddingBagConfig objects")
    # TorchRec's EmbeddingConfig has no pooling: a vector for each id of a sequence.
    name, pooling = config.name, _word(getattr(config, "pooling", NONE))
    data_type = _word(getattr(config, "data_type", "fp32"))
    if pooling not in POOLINGS:
        raise ConfigError(f"table {name!r}: pooling {pooling!r} is not known; use {', '.join(POOLINGS)}")
    if data_type not in DATA_TYPES:
        raise ConfigError(f"table {name!r}: data_type {data_type!r} is not known; use {', '.join(DATA_TYPES)}")
    for field in ("num_embeddings", "embedding_dim"):
        value = getattr(config, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"table {name!r}: {field} is {value!r}; give a whole number of at least 1")
    keys = config.feature_names
    if isinstance(keys, str) or not keys or len(set(keys)) != len(keys):
        raise ConfigError(f"table {name!r}: feature_names is {keys!r}; give a list of different names")
    return EmbeddingBagConfig(
        name=name, num_embeddings=config.num_embeddings, embedding_dim=config.embedding_dim,
        feature_names=tuple(keys), pooling=pooling, padding_idx=getattr(config, "padding_idx", None),
        data_type=data_type,
    )  # fmt: skip


def _one_dtype(configs: Sequence[EmbeddingBagConfig]) -> str:
    first = configs[0]
    for config in configs:
        if config.data_type != first.data_type:
            raise ConfigError(
                f"table {config.name!r} has data_type {config.data_type}, table {first.name!r} {first.data_type}; give "
                "all tables one"
            )
    return DATA_TYPES[first.data_type]


def _word(value: Any) -> str:
    """`PoolingType.MEAN`, "MEAN" and "mean" are the same."""
    return str(getattr(value, "value", value)).lower()
