"""Gather + gradient sum + update of embedding rows: ours against FBGEMM's fused CPU kernel and nn.EmbeddingBag.

26 tables of 200,000 rows, 64 float32 wide, batches of 2,048 samples with one id for each table (53,248 lookups),
row-wise Adagrad (nn.EmbeddingBag: torch's Adagrad, the nearest there is), everything on one thread. Two distributions
of ids: `zipf`, where rank k has probability proportional to k^-1.1 and hot ids come first as in a prepared log, and
`uniform`. 20 batches are drawn and cycled; all sides see the same ids and the same gradient.

Ours is what the engine does for a step: `gather` out of the cache, `order_lookups` (which the engine does ahead, but is
timed here), and `update_rows` with the gradient of what was gathered. The rows lie in slots, as a plan assigns them; to
be no kinder than a long run that has recycled its slots many times, the slots are a random permutation. The cache has a
slot for each row of the 20 batches and lies in memory from `zeroed_rows`. Finding distinct rows and slots (`unique`,
`inverse`) is the plan's work, done ahead and in another thread, and is not timed. FBGEMM has to sort the ids in each
backward pass: that is inherent to it, and what a plan saves. It runs with its bounds checks off.

Sides take turns in one process, and figures are medians of the ratios of each round. At the end our rows are compared
with FBGEMM's. Run: `.venv/bin/python benchmarks/embedding.py` (needs `make bench-env`). The last line is one JSON
object.

`--dtype bfloat16` (or float16) compares ours with ours instead: values of two bytes with stochastic rounding against
float32, same ids, slots and gradient; FBGEMM is not needed. `bf16_over_fp32` is time with skewed ids, as logs have
them; `bf16_over_fp32_uniform` with uniform ones: nearly every lookup is a row of its own, and rounding costs most.
`bf16_bytes_over_fp32` is the bytes of the rows that steps read and write: values, state and version, as they lie in
cache, store and wire.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from foresee.engine.kernels import gather, order_lookups, update_rows, zeroed_rows
from foresee.engine.kernels.values import form_of
from foresee.engine.optimizers import RowwiseAdagrad
from foresee.engine.optimizers.contract import number_of
from foresee.store.contract import Rows
from foresee.store.halves import packed
from foresee.store.layout import Layout, Table

NUM_TABLES, TABLE_ROWS, WIDTH = 26, 200_000, 64
NUM_SAMPLES, NUM_BATCHES = 2048, 20
ZIPF_EXPONENT = 1.1
OPTIMIZER = RowwiseAdagrad(lr=0.05, eps=1e-8)
DIFFERENCE_MAX = 1e-4
"""FBGEMM adds and multiplies in another order; over some hundred steps its rows may differ from ours by this much."""

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Ids = NDArray[np.int64]  # [batches, samples, tables]: local ids

BENCH_ENVIRONMENT = Path(__file__).resolve().parent.parent / ".venv-bench"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of all sides for each distribution")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="of our values")
    options = parser.parse_args()
    num_rounds = options.rounds
    if options.dtype == "float32":
        enter_bench_environment()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Sparse invariant checks")  # of torch's own Adagrad
    figures: dict[str, float] = {}
    for distribution in ("zipf", "uniform"):
        suffix = "" if distribution == "zipf" else f"_{distribution}"
        found = compare(distribution, num_rounds) if options.dtype == "float32" else halved(
            distribution, options.dtype, num_rounds
        )  # fmt: skip
        for name, value in found.items():
            figures[name + suffix] = value
    print(json.dumps(figures))


def enter_bench_environment() -> None:
    """Goes on in the interpreter that has FBGEMM; says what to run if there is none."""
    if Path(sys.prefix).resolve() == BENCH_ENVIRONMENT.resolve():
        return
    python = BENCH_ENVIRONMENT / "bin" / "python"
    if not python.exists():
        print("this benchmark needs FBGEMM in .venv-bench: run `make bench-env` first", file=sys.stderr)
        sys.exit(2)
    os.execv(python, [str(python), *sys.argv])


def compare(distribution: str, num_rounds: int) -> dict[str, float]:
    """Times all sides on one distribution, prints a table, returns the ratios."""
    rng = np.random.default_rng(1)
    ids = draw_ids(distribution, rng=rng)
    gradient = torch.from_numpy(rng.normal(0, 0.01, (NUM_SAMPLES, NUM_TABLES * WIDTH)).astype(np.float32))
    fbgemm = FbgemmTables(ids, gradient)
    ours = OurCache(ids, gradient, initial=fbgemm.values().__getitem__, rng=rng)
    bags = EmbeddingBags(ids, gradient)
    sides: dict[str, Callable[[int], None]] = {"ours": ours.step, "fbgemm": fbgemm.step, "embeddingbag": bags.step}
    seconds = time_in_turns(sides, num_rounds)
    difference = ours.largest_difference(fbgemm.values())
    if not difference <= DIFFERENCE_MAX:
        sys.exit(f"{distribution}: our rows differ from FBGEMM's by {difference}, more than {DIFFERENCE_MAX}")
    print_table(distribution, ours, seconds, difference)
    return {
        "ours_over_fbgemm": median_ratio(seconds["ours"], seconds["fbgemm"]),
        "embeddingbag_over_ours": median_ratio(seconds["embeddingbag"], seconds["ours"]),
    }


def halved(distribution: str, dtype: str, num_rounds: int) -> dict[str, float]:
    """Ours with values of two bytes against ours with float32."""
    rng = np.random.default_rng(1)
    ids = draw_ids(distribution, rng=rng)
    gradient = torch.from_numpy(rng.normal(0, 0.01, (NUM_SAMPLES, NUM_TABLES * WIDTH)).astype(np.float32))

    def initial(rows: Int64) -> NDArray[np.float32]:
        return np.random.default_rng(3).uniform(-0.01, 0.01, (len(rows), WIDTH)).astype(np.float32)

    exact, half = (
        OurCache(ids, gradient, initial=initial, rng=np.random.default_rng(2), dtype=it) for it in ("float32", dtype)
    )
    seconds = time_in_turns({"float32": exact.step, dtype: half.step}, num_rounds)
    print_times(distribution, exact, seconds)
    difference = float(np.abs(half.values() - exact.values()).mean())
    print(f"  mean difference of values after {half.num_steps} steps: {difference:.1e}")
    short = {"bfloat16": "bf16", "float16": "fp16"}[dtype]
    return {
        f"{short}_over_fp32": median_ratio(seconds[dtype], seconds["float32"]),
        f"{short}_bytes_over_fp32": round(half.layout.row_bytes / exact.layout.row_bytes, 3),
    }


def draw_ids(distribution: str, *, rng: np.random.Generator) -> Ids:
    """Local ids of all batches."""
    shape = (NUM_BATCHES, NUM_SAMPLES, NUM_TABLES)
    if distribution == "uniform":
        return rng.integers(0, TABLE_ROWS, shape)
    weights = np.arange(1, TABLE_ROWS + 1, dtype=np.float64) ** -ZIPF_EXPONENT
    ranks = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(shape), side="right")
    return np.minimum(ranks, TABLE_ROWS - 1)


def time_in_turns(sides: dict[str, Callable[[int], None]], num_rounds: int) -> dict[str, list[float]]:
    """Seconds for a step of each side in each round; in a round each side goes once through all batches."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for round_number in range(num_rounds + 1):
        for name, step in sides.items():
            begin = time.perf_counter()
            for batch in range(NUM_BATCHES):
                step(batch)
            if round_number:  # the first round compiles and warms up
                seconds[name].append((time.perf_counter() - begin) / NUM_BATCHES)
    return seconds


class OurCache:
    """Rows in slots of one tensor; unique and inverse as a plan's records give them."""

    def __init__(
        self,
        ids: Ids,
        gradient: torch.Tensor,
        *,
        initial: Callable[[Int64], NDArray[np.float32]],
        rng: np.random.Generator,
        dtype: str = "float32",
    ) -> None:
        self.layout = Layout(
            tables=(Table("rows", NUM_TABLES * TABLE_ROWS),), width=WIDTH, state_width=OPTIMIZER.state_width(WIDTH),
            optimizer=OPTIMIZER.name, dtype=dtype,
        )  # fmt: skip
        self.form = form_of(self.layout)
        rows = (ids + np.arange(NUM_TABLES) * TABLE_ROWS).reshape(NUM_BATCHES, -1)
        self.rows = np.unique(rows)
        self.slots = rng.permutation(len(self.rows)).astype(np.int32)
        self.cache = Rows(
            zeroed_rows(len(self.rows), self.layout.value_words),
            zeroed_rows(len(self.rows), OPTIMIZER.state_width(WIDTH)),
            np.zeros(len(self.rows), np.int32),
        )
        self.cache.values[self.slots] = packed(initial(self.rows), dtype)
        self.row_of_slot = np.empty(len(self.rows), np.int64)
        self.row_of_slot[self.slots] = self.rows
        self.records = [self._record(touched) for touched in rows]
        self.num_unique = statistics.mean(len(unique) for unique, _ in self.records)
        self.gathered = np.empty((NUM_SAMPLES * NUM_TABLES, WIDTH), np.float32)
        self.gradient = gradient.numpy().reshape(-1, WIDTH)
        self.num_steps = 0

    def _record(self, touched: Int64) -> tuple[Int32, Int32]:
        """Distinct slots in order of first touch, and the position of each lookup among them."""
        distinct, first, inverse = np.unique(touched, return_index=True, return_inverse=True)
        by_first_touch = np.argsort(first)
        position = np.empty_like(by_first_touch)
        position[by_first_touch] = np.arange(len(distinct))
        unique = self.slots[np.searchsorted(self.rows, distinct[by_first_touch])]
        return unique, position[inverse].astype(np.int32)

    def step(self, batch: int) -> None:
        unique, inverse = self.records[batch]
        gather(self.cache.values, unique, inverse, self.gathered, form=self.form)
        self.num_steps += 1
        order = order_lookups(inverse, len(unique))
        update_rows(
            OPTIMIZER, self.cache, unique, self.gradient, order, version=self.num_steps, form=self.form,
            row_of_slot=self.row_of_slot,
        )  # fmt: skip

    def values(self) -> NDArray[np.float32]:
        """[rows, width], in the order of `rows`."""
        return self.layout.unpack(self.cache.values[self.slots])

    def largest_difference(self, values: NDArray[np.float32]) -> float:
        return float(np.abs(self.values() - values[self.rows]).max())


class FbgemmTables:
    """FBGEMM's fused tables in host memory."""

    def __init__(self, ids: Ids, gradient: torch.Tensor) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        table = (TABLE_ROWS, WIDTH, EmbeddingLocation.HOST, ComputeDevice.CPU)
        self.module: Any = SplitTableBatchedEmbeddingBagsCodegen(
            [table] * NUM_TABLES,
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=OPTIMIZER.lr,
            eps=OPTIMIZER.eps,
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,
        )
        generator = torch.Generator().manual_seed(0)
        self.module.weights_host.data.uniform_(-0.01, 0.01, generator=generator)
        by_table = np.ascontiguousarray(ids.transpose(0, 2, 1)).reshape(NUM_BATCHES, -1)
        self.indices = [torch.from_numpy(batch) for batch in by_table]
        self.offsets = torch.arange(NUM_TABLES * NUM_SAMPLES + 1)
        self.gradient = gradient

    def step(self, batch: int) -> None:
        self.module(self.indices[batch], self.offsets).backward(self.gradient)

    def values(self) -> NDArray[np.float32]:
        """All rows, table after table."""
        values: NDArray[np.float32] = self.module.weights_host.detach().numpy().reshape(-1, WIDTH)
        return values


class EmbeddingBags:
    """One nn.EmbeddingBag for each table, with sparse gradients, and torch's Adagrad."""

    def __init__(self, ids: Ids, gradient: torch.Tensor) -> None:
        self.tables = [torch.nn.EmbeddingBag(TABLE_ROWS, WIDTH, mode="sum", sparse=True) for _ in range(NUM_TABLES)]
        parameters = [table.weight for table in self.tables]
        self.optimizer = torch.optim.Adagrad(parameters, lr=number_of(OPTIMIZER.lr), eps=OPTIMIZER.eps)
        by_table = np.ascontiguousarray(ids.transpose(0, 2, 1))
        self.indices = [[torch.from_numpy(column) for column in batch] for batch in by_table]
        self.offsets = torch.arange(NUM_SAMPLES)
        self.gradients = list(gradient.reshape(NUM_SAMPLES, NUM_TABLES, WIDTH).unbind(dim=1))

    def step(self, batch: int) -> None:
        columns = zip(self.tables, self.indices[batch], strict=True)
        outputs = [table(column, self.offsets) for table, column in columns]
        torch.autograd.backward(outputs, self.gradients)
        self.optimizer.step()
        self.optimizer.zero_grad()


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(above, below, strict=True)), 3)


def print_table(distribution: str, ours: OurCache, seconds: dict[str, list[float]], difference: float) -> None:
    print_times(distribution, ours, seconds)
    print(f"  largest difference between our rows and FBGEMM's after {ours.num_steps} steps: {difference:.1e}")


def print_times(distribution: str, ours: OurCache, seconds: dict[str, list[float]]) -> None:
    num_lookups = NUM_SAMPLES * NUM_TABLES
    print(f"{distribution}: {num_lookups} lookups a batch, {ours.num_unique:.0f} distinct, {len(ours.rows)} slots")
    for name, rounds in seconds.items():
        low, middle, high = min(rounds), statistics.median(rounds), max(rounds)
        print(f"  {name:<13} {1e3 * middle:7.2f} ms a step (rounds {1e3 * low:.2f} to {1e3 * high:.2f})")


if __name__ == "__main__":
    main()
