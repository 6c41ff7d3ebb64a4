"""Built-in logs: a synthetic one of any length, with the best reachable AUC known, and a tiny one for tests.

`synthetic` writes a prepared log; `synthetic_rows` yields the row ids alone, for traces of any table size without a
file. Both draw from the same population: `population.py` says who clicks and how often, `planted.py` why.

`tiny` writes in milliseconds a log with everything a real one may have: a shared table, bags that are summed and
averaged, empty bags, repeated ids, all three splits, several parts, and labels that can be learned a little.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np

from foresee.arrays import Int64
from foresee.data.click_log import ClickLog
from foresee.data.samples import Ids, Samples, offsets_of
from foresee.data.schema import DenseFeature, Feature, Table, Vocabulary
from foresee.data.source import ReportProgress
from foresee.data.synthetic.planted import PlantedModel, ScoreHistogram, plant
from foresee.data.synthetic.population import Population
from foresee.data.writer import DESCRIPTION_FILE, LogWriter
from foresee.errors import DataError
from foresee.io.folders import new_folder
from foresee.io.hashing import hash_counters, key_of

# fmt: off
CRITEO_TABLE_SIZES = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)
# fmt: on
"""Rows of the 26 tables of Criteo's Display Advertising data set: 33,762,577 in all."""

CHUNK_SAMPLES = 65_536
ROWS_KEPT_MIN = 1000
"""Scaling down leaves tables of up to this many rows alone, and makes none smaller than this."""


def criteo_table_sizes(scale: float) -> tuple[int, ...]:
    """Criteo's table sizes times `scale`; small tables stay as they are when scaling down."""
    if not scale > 0:
        raise DataError(f"table_scale={scale} makes no tables; give a number above 0.")
    return tuple(max(min(size, ROWS_KEPT_MIN), round(size * scale)) for size in CRITEO_TABLE_SIZES)


def population_of(
    *,
    seed: int,
    table_scale: float = 1.0,
    table_sizes: tuple[int, ...] | None = None,
    zipf: float = 1.1,
    correlated: bool = True,
    num_users: int | None = None,
) -> Population:
    """Users for these tables; their number follows the number of rows unless it is given."""
    sizes = criteo_table_sizes(table_scale) if table_sizes is None else tuple(table_sizes)
    if not sizes or min(sizes) < 1 or max(sizes) >= 1 << 31:
        raise DataError(f"table_sizes={sizes} cannot be used; give at least one table of 1 to 2^31 - 1 rows.")
    if num_users is None:
        num_users = max(1000, sum(sizes) // 32)
    return Population(seed=seed, table_sizes=sizes, zipf=zipf, correlated=correlated, num_users=num_users)


def synthetic(
    path: str | Path,
    *,
    num_samples: int,
    seed: int = 0,
    table_scale: float = 0.01,
    table_sizes: tuple[int, ...] | None = None,
    num_dense: int = 13,
    zipf: float = 1.1,
    correlated: bool = True,
    num_users: int | None = None,
    valid_share: float = 0.1,
    test_share: float = 0.0,
    replace: bool = False,
    progress: ReportProgress | None = None,
) -> ClickLog:
    """Write a synthetic log; `best_auc` of the result says how well anyone could do on each split.

    The last samples are valid and test. Equal arguments give equal logs; a longer log has the same effects and users.
    """
    population = population_of(
        seed=seed,
        table_scale=table_scale,
        table_sizes=table_sizes,
        zipf=zipf,
        correlated=correlated,
        num_users=num_users,
    )
    bounds = _split_bounds(num_samples, valid_share, test_share)
    tables = tuple(Table(f"C{i + 1}", size) for i, size in enumerate(population.table_sizes))
    features = tuple(Feature(name=table.name, table=table.name, num_rows=table.num_rows) for table in tables)
    dense = tuple(DenseFeature(name=f"I{i + 1}") for i in range(num_dense))
    planted = plant(population, num_dense)
    best = {name: ScoreHistogram() for name in bounds}
    with (
        new_folder(Path(path), replace=replace, marker=DESCRIPTION_FILE) as folder,
        LogWriter(folder, features, dense, with_probability=True) as writer,
    ):
        for name, (start, stop) in bounds.items():
            for first in range(start, stop, CHUNK_SAMPLES):
                chunk = make_samples(population, planted, num_dense, first, min(CHUNK_SAMPLES, stop - first))
                assert chunk.true_probability is not None
                best[name].add(chunk.true_probability.astype(np.float64), chunk.labels)
                writer.append(name, chunk)
                if progress is not None:
                    progress("write", first + chunk.num_samples, num_samples)
        writer.finish(
            tables=tables,
            vocabularies={table.name: Vocabulary(kind="none") for table in tables},
            best_auc={name: histogram.auc() for name, histogram in best.items()},
            source={"format": "synthetic", "seed": seed, "zipf": zipf, "correlated": correlated},
        )
    return ClickLog.open(path)


def make_samples(
    population: Population, planted: PlantedModel, num_dense: int, first_sample: int, num_samples: int
) -> Samples:
    """Samples first_sample.. of the population with labels drawn from the planted model."""
    columns = np.empty((len(population.table_sizes), num_samples), np.int32)
    dense = np.empty((num_dense, num_samples), np.float32)
    population.draw_ids(first_sample, columns.T)
    population.draw_dense(first_sample, dense.T)
    probability = planted.probability(columns.T, dense.T).astype(np.float32)
    draws = hash_counters(key_of(population.seed, 4), first_sample, first_sample + num_samples) >> np.uint64(11)
    labels = (draws.astype(np.float64) / (1 << 53) < probability).astype(np.float32)
    return Samples(labels, tuple(dense), tuple(Ids(column) for column in columns), probability)


def synthetic_rows(
    *,
    batch_size: int,
    num_batches: int,
    seed: int = 0,
    table_scale: float = 1.0,
    table_sizes: tuple[int, ...] | None = None,
    zipf: float = 1.1,
    correlated: bool = True,
    num_users: int | None = None,
    first_batch: int = 0,
) -> Iterator[Int64]:
    """Global row ids of batch after batch, [batch_size, tables]: a trace of any table size, without files."""
    population = population_of(
        seed=seed,
        table_scale=table_scale,
        table_sizes=table_sizes,
        zipf=zipf,
        correlated=correlated,
        num_users=num_users,
    )
    offsets = np.array(list(accumulate(population.table_sizes[:-1], initial=0)), np.int64)
    for batch in range(first_batch, first_batch + num_batches):
        rows = np.empty((batch_size, len(offsets)), np.int64)
        population.draw_ids(batch * batch_size, rows)
        yield rows + offsets


def _split_bounds(num_samples: int, valid_share: float, test_share: float) -> dict[str, tuple[int, int]]:
    if num_samples < 1:
        raise DataError(f"num_samples={num_samples} makes no log; give 1 or more.")
    if valid_share < 0 or test_share < 0 or valid_share + test_share >= 1:
        raise DataError(
            f"valid_share={valid_share} and test_share={test_share} leave nothing to train on; "
            "give shares from 0 up that sum to less than 1."
        )
    test = num_samples - round(num_samples * test_share)
    valid = test - round(num_samples * valid_share)
    bounds = {"train": (0, valid), "valid": (valid, test), "test": (test, num_samples)}
    return {name: (start, stop) for name, (start, stop) in bounds.items() if stop > start}


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
        new_folder(Path(path), replace=replace, marker=DESCRIPTION_FILE) as folder,
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
