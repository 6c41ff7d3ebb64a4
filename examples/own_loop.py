"""Your own loop and model: a small network on a click log whose tables live on disk, kept and gone on with.

    python examples/own_loop.py                        # trains, evaluates, keeps everything in build/own_loop
    python examples/own_loop.py --stop-after 60        # stops early ...
    python examples/own_loop.py                        # ... and goes on: the same result, to the last bit

The log is synthetic, so the best AUC that anyone could reach is known. Start again with another --folder.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import torch
from torch import Tensor, nn

import foresee
from foresee import checkpoint
from foresee.data import synthetic
from foresee.run.evaluation import evaluate

DIM, BATCH_SIZE, KEEP_EVERY_STEPS = 8, 512, 50


class TwoTowers(nn.Module):
    """Any nn.Module will do, if it takes (dense, embeddings) and gives one logit a sample."""

    def __init__(self, log: foresee.ClickLog) -> None:
        super().__init__()
        self.wide = nn.Linear(log.num_dense, 1)
        self.deep = nn.Sequential(nn.Linear(log.num_features * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:  # [samples, features, dim] -> [samples]
        logits: Tensor = (self.wide(dense) + self.deep(embeddings.flatten(1))).squeeze(1)
        return logits


def main() -> None:
    arguments = parse()
    checkpoints = arguments.folder / "checkpoints"
    log = open_log(arguments)
    torch.manual_seed(0)
    model = TwoTowers(log)
    adam = torch.optim.Adam(model.parameters(), lr=0.002)
    bce = nn.BCEWithLogitsLoss()
    optimizer = foresee.Adagrad(lr=0.05)
    with foresee.Tables.on_disk(arguments.folder / "tables", log, dim=DIM, optimizer=optimizer) as tables:
        first_step = tables.store.committed_step
        if first_step:
            checkpoint.load(checkpoints, first_step, model, adam)
            print(f"going on after step {first_step}")
        run = foresee.lookahead(log, tables, batch_size=BATCH_SIZE, epochs=2, cache_rows=log.num_rows // 5)
        run.commit_at_end = False  # rows and the dense half are kept together, below
        for step in run:
            loss = bce(model(step.dense, step.embeddings), step.labels)
            loss.backward()
            adam.step()
            adam.zero_grad()
            step.update()
            last = run.steps_done in (run.stream.num_steps, arguments.stop_after)
            if last or run.steps_done % KEEP_EVERY_STEPS == 0:
                checkpoint.save(checkpoints, run.steps_done, model, adam)  # the dense half first,
                run.commit()  # then the rows: from here on the step stands, whatever happens
                print(f"step {run.steps_done:4} of {run.stream.num_steps}: loss {loss.item():.4f}, kept")
            if last:
                break
        report(model, tables, log, run)


def report(model: nn.Module, tables: foresee.Tables, log: foresee.ClickLog, run: foresee.Run) -> None:
    """What was learned, and what it moved."""
    found = evaluate(model, tables.store, log)
    rows = hashlib.sha256(b"".join(tables.values(table.name).tobytes() for table in log.tables)).hexdigest()
    if run.counters.num_steps:
        print(f"{run.counters.hit_rate:.0%} of a step's rows were in a cache of a fifth of all {log.num_rows:,} rows")
    print(f"AUC on the valid split {found.auc:.4f}; the best that anyone could reach is {log.best_auc['valid']:.4f}")
    print(f"all rows together: {rows[:16]}")


def open_log(arguments: argparse.Namespace) -> foresee.ClickLog:
    """Your prepared log; here one is made up."""
    path = arguments.folder / "log"
    if path.exists():
        return foresee.ClickLog.open(path)
    return synthetic(path, num_samples=arguments.samples, table_scale=0.002)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build") / "own_loop")
    parser.add_argument("--samples", type=int, default=60_000, help="of the log, when it is made")
    parser.add_argument("--stop-after", type=int, help="this step, and go on at the next call")
    return parser.parse_args()


if __name__ == "__main__":
    main()
