"""Your own data: a CSV becomes a prepared log, a trained model, an exported one, and scores of samples it never saw.

    python examples/own_data.py                     # makes up a CSV of visits to a shop and goes through with it

The same on the command line stands beside each step. Tables are in build/own_data, as everything that is made.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from pathlib import Path

import numpy as np
from rich.console import Console

import foresee
from foresee.data import Categorical, Columns, Csv, Dense, prepare
from foresee.run.config_file import load_run
from foresee.run.serving.export import export
from foresee.run.session import train

RUN_FILE = """\
log: log
run: run
model: {name: deepfm, dim: 8, options: {deep: [64, 32]}}
tables: {store: disk, optimizer: {name: adagrad, lr: 0.05}}
cache: {share: 0.3}
train: {batch_size: 256, epochs: 2, num_threads: 1}   # a model this small computes on one core
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build") / "own_data")
    parser.add_argument("--visits", type=int, default=30_000)
    arguments = parser.parse_args()
    folder, console = arguments.folder, Console(width=120)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    raw = folder / "visits.csv"
    write_visits(raw, arguments.visits)
    print(f"1. {raw}: {raw.read_text().splitlines()[1]}")

    # foresee prepare csv visits.csv --out log --label bought --dense hour --dense price:log1p
    #     --categorical visitor --categorical product --categorical 'tags:mean:separator=|'
    columns = Columns(
        label="bought",
        dense=(Dense(name="hour"), Dense(name="price", transform="log1p")),
        categorical=(
            Categorical(name="visitor"),
            Categorical(name="product"),
            Categorical(name="tags", pooling="mean", separator="|"),
        ),
    )
    log = prepare(Csv(files=(raw,), columns=columns), folder / "log").log
    sizes = ", ".join(f"{table.name} {table.num_rows:,}" for table in log.tables)
    print(f"2. prepared: {log.split_sizes['train']:,} samples to train on; rows: {sizes}")

    # foresee train run.yaml
    (folder / "run.yaml").write_text(RUN_FILE)
    outcome = train(load_run(folder / "run.yaml"), console=console)
    assert outcome.valid is not None
    print(f"3. trained: {outcome.steps_done} steps, AUC on the valid split {outcome.valid.auc:.4f}")

    # foresee export run --out export
    export(folder / "run", folder / "export")
    print(f"4. exported: {', '.join(sorted(path.name for path in (folder / 'export').iterdir()))}")

    model = foresee.load_exported(folder / "export")  # needs neither the log nor the run
    visits = [
        {"visitor": "v1", "product": "p3", "tags": ["tag3", "sale"], "hour": 20, "price": 9.5},
        {"visitor": "v1", "product": "p3", "tags": ["tag3"], "hour": 20, "price": 900.0},
        {"visitor": "never seen", "product": "p3", "tags": [], "hour": 4, "price": 9.5},
    ]
    for visit, score in zip(visits, model.score(visits), strict=True):
        print(f"5. scored: {score:.1%} that {visit['visitor']} buys {visit['product']} at {visit['price']}")


def write_visits(path: Path, num_visits: int) -> None:
    """A log such as a shop might have: cheap things and things on sale are bought, and everyone has a taste."""
    rng = np.random.default_rng(3)
    visitors = (rng.random(num_visits) ** 3 * 3_000).astype(int)
    products = (rng.random(num_visits) ** 3 * 800).astype(int)
    hours, prices = rng.integers(0, 24, num_visits), np.exp(rng.normal(3, 1.5, num_visits)).round(2)
    on_sale = rng.random(num_visits) < 0.3
    likes, worth = rng.normal(size=3_000), rng.normal(size=800)
    logits = likes[visitors] + worth[products] + 1.5 * on_sale - np.log1p(prices) + 2
    bought = rng.random(num_visits) < 1 / (1 + np.exp(-logits))
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["bought", "visitor", "product", "tags", "hour", "price"])
        for k in range(num_visits):
            tags = f"tag{products[k] % 40}" + ("|sale" if on_sale[k] else "")
            writer.writerow([int(bought[k]), f"v{visitors[k]}", f"p{products[k]}", tags, hours[k], prices[k]])


if __name__ == "__main__":
    main()
