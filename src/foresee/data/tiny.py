"""Tiny logs for tests: a few tables, single- and multi-valued features, shared tables, in milliseconds.

In: a path and a seed. Out: a prepared log with everything a real one may have: a shared table, bags that are summed
and averaged, empty bags, repeated ids in a bag, all three splits, several parts. Labels follow the ids a little, so
that a model's loss can go down.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from foresee.base.arrays import Int64
from foresee.data.click_log import ClickLog
from foresee.data.folder import new_folder
from foresee.data.samples import Ids, Samples, offsets_of
from foresee.data.schema import DenseFeature, Feature, Table, Vocabulary
from foresee.data.writer import LogWriter


def tiny(
    path: str | Path,
    *,
    seed: int = 0,
    num_samples: int = 1000,
    multi_valued: bool = True,
    empty_bags: bool = True,
    num_dense: int = 3,
    row_group_samples: int = 64,
    replace: bool = False,
) -> ClickLog:
    """Write a tiny log: 80 % train, 10 % valid, 10 % test. Equal arguments give equal logs."""
    rng = np.random.default_rng(seed)
    tables: tuple[Table, ...] = (Table("user", 50), Table("item", 120), Table("weekday", 7), Table("genre", 12))
    sizes = dict(tables)
    shape = [("user", "user", "one"), ("item", "item", "one"), ("weekday", "weekday", "one")]
    if multi_valued:
        shape += [("genres", "genre", "mean"), ("history", "item", "sum")]
    else:
        tables = tables[:3]
    features = tuple(Feature(name=n, table=t, num_rows=sizes[t], pooling=p) for n, t, p in shape)  # type: ignore[arg-type]
    dense = tuple(DenseFeature(name=f"dense{i}") for i in range(num_dense))
    samples = _samples(features, num_dense, num_samples, rng, bag_min=0 if empty_bags else 1)
    train, valid = num_samples * 8 // 10, num_samples * 9 // 10
    with (
        new_folder(Path(path), replace=replace) as folder,
        LogWriter(folder, features, dense, row_group_samples=row_group_samples) as writer,
    ):
        for name, start, stop in (("train", 0, train), ("valid", train, valid), ("test", valid, num_samples)):
            if stop > start:
                writer.append(name, samples.slice(start, stop))
        writer.finish(
            tables=tables,
            vocabularies={table.name: Vocabulary(kind="none") for table in tables},
            source={"format": "tiny", "seed": seed},
        )
    return ClickLog.open(path)


def _samples(
    features: tuple[Feature, ...], num_dense: int, num_samples: int, rng: np.random.Generator, *, bag_min: int
) -> Samples:
    logits = np.zeros(num_samples)
    columns = []
    for feature in features:
        lengths = rng.integers(bag_min, 5, num_samples) if feature.multi_valued else np.ones(num_samples, np.int64)
        effects = rng.normal(size=feature.num_rows)
        # Squaring a uniform number makes low ids hot, as in a vocabulary by frequency.
        values = (rng.random(int(lengths.sum())) ** 2 * feature.num_rows).astype(np.int32)
        owner: Int64 = np.repeat(np.arange(num_samples), lengths)
        logits += np.bincount(owner, effects[values], minlength=num_samples)
        columns.append(Ids(values, offsets_of(lengths) if feature.multi_valued else None))
    dense = tuple(rng.normal(size=num_samples).astype(np.float32) for _ in range(num_dense))
    labels = (rng.random(num_samples) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return Samples(labels, dense, tuple(columns))
