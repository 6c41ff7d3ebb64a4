"""Embeddings of a batch read straight from a store, without a cache: for evaluation and scoring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

import numpy as np
import torch

from foresee.arrays import Int64
from foresee.data.batch import Batch, Pooling, Vectors
from foresee.engine.cache import pool, shape_of
from foresee.engine.kernels import (
    ONE_THREAD,
    Threads,
)
from foresee.engine.kernels.values import form_of
from foresee.engine.planned_step import group_features
from foresee.errors import UsageError
from foresee.plan.row_groups import RowGroup, numbering_of
from foresee.store.contract import Rows, Store
from foresee.store.layout import Layout
from foresee.store.row_groups import groups_of

FeatureEmbeddings = list[torch.Tensor]
"""Of tables of several widths: for each feature [samples, width of its table]."""


def in_feature_order(groups: Sequence[GroupVectors]) -> FeatureEmbeddings:
    """The embeddings of all row groups, feature by feature."""
    if any(group.vectors.of_bag is not None for group in groups):
        raise UsageError(
            "features of tables of several widths have a vector for each id; ask EmbeddingBags.keyed(step) for them by "
            "name"
        )
    found: dict[int, torch.Tensor] = {}
    for group in groups:
        # unbind: its backward is one stack, where that of taking feature by feature would add up whole tensors.
        found |= dict(zip(group.features.tolist(), group.embeddings.unbind(1), strict=True))
    return [found[feature] for feature in range(len(found))]


def look_up(store: Store, batch: Batch, pooling: Pooling, threads: Threads = ONE_THREAD) -> torch.Tensor:
    """[samples, features, width], or [vectors, width]: the vectors of a batch, as the store has its rows now.

    Of tables of several widths a list with a tensor for each feature.
    """
    groups = look_up_groups(store, batch, pooling, threads)
    if not store.layout.widths:
        return groups[0].embeddings
    return cast("torch.Tensor", in_feature_order(groups))  # a list if tables have several widths


@dataclass(frozen=True, slots=True)
class GroupVectors:
    """The embeddings of one row group."""

    embeddings: torch.Tensor  # [samples, its features, width], or [vectors, width]
    vectors: Vectors
    features: Int64
    """Which features of the batch it has."""
    lookups: Int64 | slice
    """Which lookups of the batch are theirs."""


def look_up_groups(store: Store, batch: Batch, pooling: Pooling, threads: Threads = ONE_THREAD) -> list[GroupVectors]:
    """The vectors of each row group; of one width there is one."""
    if not store.layout.widths:
        vectors = pooling.vectors(batch)
        embeddings = _look_up(store, batch.rows, batch, vectors, threads)
        return [GroupVectors(embeddings, vectors, np.arange(batch.num_features), slice(None))]
    numbering, groups = numbering_of(row_groups(store.layout)), groups_of(store)
    found = []
    for group, features in zip(groups, group_features(pooling, numbering.groups), strict=True):
        part, lookups = batch.of_features(features)
        vectors = pooling.of_features(features).vectors(part)
        embeddings = _look_up(group, numbering.of_rows(part.rows)[1], part, vectors, threads)
        found.append(GroupVectors(embeddings, vectors, features, lookups))
    return found


def _look_up(store: Store, lookups: Int64, batch: Batch, vectors: Vectors, threads: Threads) -> torch.Tensor:
    unique, inverse = np.unique(lookups, return_inverse=True)
    rows = Rows.empty(len(unique), store.layout)
    store.read(unique, rows)
    shape = shape_of(batch, vectors)
    out = np.empty((math.prod(shape), store.layout.width), np.float32)
    slots = np.arange(len(unique), dtype=np.int32)
    pool(rows.values, slots, inverse.astype(np.int32), vectors, out, threads, form_of(store.layout))
    return torch.from_numpy(out).view(*shape, -1)


def row_groups(layout: Layout) -> tuple[RowGroup, ...]:
    """The row groups of tables of several widths, without slots; none where all rows have one width."""
    if not layout.widths:
        return ()
    firsts = accumulate((table.num_rows for table in layout.tables), initial=0)
    tables = [(first, table.num_rows) for first, table in zip(firsts, layout.tables, strict=False)]
    widths = [width for width, _ in layout.widths]
    of_groups = [
        tuple(table for table, width in zip(tables, widths, strict=True) if width == group.width)
        for group in layout.groups
    ]
    return tuple(
        RowGroup(f"width {group.width}", 0, some, (1,) * len(some))
        for group, some in zip(layout.groups, of_groups, strict=True)
    )
