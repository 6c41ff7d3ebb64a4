"""Tables described as in TorchRec: embedding bags with names, sizes, features and pooling.

    bags = EmbeddingBags([EmbeddingBagConfig(name="films", num_embeddings=10_000, embedding_dim=64,
                                             feature_names=["seen", "clicked"], pooling="mean"), ...])

In: configurations, our `EmbeddingBagConfig` or TorchRec's own: any object with these attributes. Out: the tables and
features that `Tables` and `Batches` take, embeddings by name, and weights to give back to PyTorch. TorchRec is never
imported. Tables of several widths share one row width, the largest; narrower ones use their first columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from foresee.custom_data.jagged import KeyedEmbeddings, bags_of
from foresee.engine.cache import look_up
from foresee.engine.planned_step import Pooling
from foresee.engine.tables import Tables
from foresee.errors import ConfigError
from foresee.store.contract import Table

SUM, MEAN = "sum", "mean"


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
    """How the rows of a bag become one vector: sum or mean."""


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
    mean: bool


class EmbeddingBags:
    """Tables and features of a model, in the order of their configurations. Stands where a log is asked for tables.

    Args:
        configs: `EmbeddingBagConfig`s, or objects of TorchRec's class of that name.

    Raises:
        ConfigError: There is none, two have one name, or one says what Foresee cannot do.
    """

    def __init__(self, configs: Iterable[Any]) -> None:
        known = [_checked(config) for config in configs]
        if not known:
            raise ConfigError("no tables were given; give at least one EmbeddingBagConfig")
        twice = [name for name, times in Counter(config.name for config in known).items() if times > 1]
        if twice:
            raise ConfigError(f"two tables are named {twice[0]!r}; give every EmbeddingBagConfig a name of its own")
        self.tables = tuple(Table(config.name, config.num_embeddings) for config in known)
        self.features = _features(known)
        self.dim = max(config.embedding_dim for config in known)
        """Width of a row: the largest of all tables."""
        self._dims = {config.name: config.embedding_dim for config in known}

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
        return tuple(feature.mean for feature in self.features)

    def keyed(self, embeddings: Tensor) -> KeyedEmbeddings:
        """Embeddings by feature name, each as wide as its table. Gradients flow back.

        Args:
            embeddings: [samples, features, width], as `step.embeddings` has them.

        Returns:
            Something with `[name]`, [samples, dim], and what TorchRec's KeyedTensor has.
        """
        return KeyedEmbeddings([(feature.name, feature.dim) for feature in self.features], embeddings)

    def look_up(self, tables: Tables, ids: Any) -> Tensor:
        """Pooled rows with every update so far, also inside a loop.

        Args:
            tables: Where the rows are.
            ids: Of a batch, in any of the forms that `Batches` takes.

        Returns:
            [samples, features, width].
        """
        tables.bring_up_to_date()
        batch = bags_of(ids, self.features, step=0).batch(None, None)
        return look_up(tables.store, batch, Pooling.of(self.mean_features))

    def state_dict(self, tables: Tables, prefix: str = "embedding_bags.") -> dict[str, Tensor]:
        """All tables as PyTorch has them. For tables that fit into memory.

        Args:
            tables: Where the rows are.
            prefix: Before each name.

        Returns:
            `{prefix}{table}.weight` → [rows, dim].
        """
        return {
            f"{prefix}{name}.weight": torch.from_numpy(np.ascontiguousarray(tables.values(name)[:, :dim]))
            for name, dim in self._dims.items()
        }

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
            values = np.zeros((len(weight), self.dim), np.float32)
            values[:, :dim] = weight.detach().cpu().numpy()
            tables.set_values(name, values)

    def check_tables(self, tables: Tables) -> None:
        """Refuses tables of other rows, and an optimiser that would see the columns narrower tables do not use.

        Args:
            tables: To be used with these bags.

        Raises:
            ConfigError: They do not fit.
        """
        if tables.layout.tables != self.tables or tables.layout.width != self.dim:
            raise ConfigError(
                f"these tables have {tables.layout.num_rows} rows of width {tables.layout.width}, the bags "
                f"{self.num_rows} of width {self.dim}; make tables with Tables.on_disk(path, bags, dim=bags.dim)"
            )
        narrow = [name for name, dim in self._dims.items() if dim < self.dim]
        if narrow and not tables.optimizer.elementwise:
            raise ConfigError(
                f"table {narrow[0]!r} is {self._dims[narrow[0]]} wide and rows are {self.dim}: "
                f"{tables.optimizer.name} looks at a whole row; use Adagrad, or give all tables one embedding_dim"
            )


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
            mean=config.pooling == MEAN,
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
    if not hasattr(config, "pooling"):
        # TorchRec's EmbeddingConfig: one vector for each id of a sequence, where a bag has one for all of them.
        raise ConfigError(
            f"table {config.name!r}: {type(config).__name__} has no pooling, so it describes sequences; bags have one "
            "vector: give an EmbeddingBagConfig with pooling sum or mean"
        )
    name, pooling = config.name, _word(config.pooling)
    data_type = _word(getattr(config, "data_type", "fp32"))
    if pooling not in (SUM, MEAN):
        raise ConfigError(f"table {name!r}: pooling {pooling!r} is not known; use sum or mean")
    if data_type != "fp32":
        raise ConfigError(f"table {name!r}: data_type {data_type!r} is not known; rows are float32 (FP32)")
    for field in ("num_embeddings", "embedding_dim"):
        value = getattr(config, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"table {name!r}: {field} is {value!r}; give a whole number of at least 1")
    keys = config.feature_names
    if isinstance(keys, str) or not keys or len(set(keys)) != len(keys):
        raise ConfigError(f"table {name!r}: feature_names is {keys!r}; give a list of different names")
    return EmbeddingBagConfig(
        name=name, num_embeddings=config.num_embeddings, embedding_dim=config.embedding_dim,
        feature_names=tuple(keys), pooling=pooling,
    )  # fmt: skip


def _word(value: Any) -> str:
    """`PoolingType.MEAN`, "MEAN" and "mean" are the same."""
    return str(getattr(value, "value", value)).lower()
