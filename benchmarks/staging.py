"""What staging would gain: rows of the base whose first use lies ahead, brought into the log by sorted joined reads.

A first epoch over tables whose rows were all written before and lie cold in `rows.npy`: Criteo's table sizes times 0.5,
rows of 264 bytes, 4.5 GB. Which rows a step uses for the first time is known from the log. Two ways, step by step
in turn on two folders with the same rows, every row checked:

    single    a step's rows are read from the base when it needs them, as the store does it
    staged    the rows of the next --steps-together steps are read at once, in ascending order, and written to the log
              with the step of their use; each step then reads its own from there, which are neighbours

    staged_over_single          processor time of the process a row, median over groups of steps
    single_us, staged_us        that time, in microseconds
    requests_per_row_*          reads of the disk for each row used
    read_bytes_over_rows_*      bytes read over bytes of the rows used
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from foresee.arrays import Int64
from foresee.data import criteo_table_sizes, synthetic_rows
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore
from foresee.store.layout import Layout, Table

BATCH_SIZE, DIM = 2048, 64


def first_uses(num_steps: int, sizes: tuple[int, ...]) -> Iterator[Int64]:
    """The rows that each step uses and none did before."""
    seen = np.zeros(sum(sizes), np.bool_)
    for rows in synthetic_rows(batch_size=BATCH_SIZE, num_batches=num_steps, table_sizes=sizes):
        new = np.unique(rows)
        new = new[~seen[new]]
        seen[new] = True
        yield new


def read(store: DiskStore, rows: Int64) -> Rows:
    found = Rows.empty(len(rows), store.layout)
    store.read(rows, found)
    return found


def single(store: DiskStore, steps: list[Int64], first: int) -> None:
    for rows in steps:
        read(store, rows)


def staged(store: DiskStore, steps: list[Int64], first: int) -> None:
    rows = np.concatenate(steps)
    uses = np.repeat(np.arange(first, first + len(steps)), [len(it) for it in steps]).astype(np.int32)
    order = np.argsort(rows)
    store.write(rows[order], read(store, rows[order]), uses[order])
    single(store, steps, first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps-together", type=int, default=32)
    parser.add_argument("--groups", type=int, default=6, help="of so many steps; the first one is not counted")
    parser.add_argument("--table-scale", type=float, default=0.5)
    arguments = parser.parse_args()
    together, sizes = arguments.steps_together, criteo_table_sizes(arguments.table_scale)
    layout = Layout(
        tables=tuple(Table(f"C{k}", size) for k, size in enumerate(sizes)), width=DIM, state_width=1,
        optimizer="rowwise_adagrad", seed=0, init_scale=0.05,
    )  # fmt: skip
    steps = list(first_uses(arguments.groups * together, sizes))
    ways, seconds = {"single": single, "staged": staged}, {"single": list[float](), "staged": list[float]()}
    with tempfile.TemporaryDirectory(dir=os.environ.get("FORESEE_BENCH_DIR", ".")) as folder:
        with mock.patch.dict(os.environ, FORESEE_DISK="io_uring"):
            stores = {name: DiskStore.create(Path(folder) / name, layout) for name in ways}
        for store in stores.values():
            store.initialise_all()
            store.fold_at_end = "never"
        for begin in range(0, len(steps), together):
            for name, way in ways.items():
                begun = time.process_time()
                way(stores[name], steps[begin : begin + together], begin)
                number = sum(map(len, steps[begin : begin + together]))
                seconds[name].append((time.process_time() - begun) / number)
        num_rows, figures = sum(map(len, steps)), dict[str, float]()
        ratios = [one / other for one, other in zip(seconds["staged"][1:], seconds["single"][1:], strict=True)]
        figures["staged_over_single"] = round(statistics.median(ratios), 3)
        for name, store in stores.items():
            moved = store.disks()[0]
            figures[f"{name}_us"] = round(1e6 * statistics.median(seconds[name][1:]), 2)
            figures[f"requests_per_row_{name}"] = round(moved["read_requests"] / num_rows, 2)
            figures[f"read_bytes_over_rows_{name}"] = round(moved["read_bytes"] / num_rows / layout.row_bytes, 2)
            store.close()
    print(json.dumps(figures | {"rows_a_step": num_rows // len(steps), "steps_together": together}))


if __name__ == "__main__":
    main()
