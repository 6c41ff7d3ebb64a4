"""Several trainers in your own loop: torchrun starts them, each trains its share of every batch.

    torchrun --nproc-per-node 2 examples/several_trainers_loop.py
    python examples/several_trainers_loop.py                          # the same with one trainer

Clicks are those of from_pytorch. Every trainer reads the same batches; trainer 0 keeps the rows on disk and plans.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import foresee

sys.path.insert(0, str(Path(__file__).parent / "from_pytorch"))

from clicks import DIM, NUM_DENSE, NUM_TRAIN, TABLES, auc, batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="of the tables; left out: a temporary one")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a model this small computes on one core
    bags = foresee.EmbeddingBags(
        foresee.EmbeddingBagConfig(
            name=name, num_embeddings=rows, embedding_dim=DIM, feature_names=[name], pooling="mean"
        )
        for name, rows in TABLES.items()
    )
    num_steps = 2 * -(-NUM_TRAIN // 256)
    source = foresee.Batches(bags, lambda epoch: batches("train", epoch), epochs=2, num_steps=num_steps)
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(NUM_DENSE + DIM * len(TABLES), 64), nn.ReLU(), nn.Linear(64, 1))
    adam, bce = torch.optim.Adam(head.parameters()), nn.BCEWithLogitsLoss()
    with (
        tempfile.TemporaryDirectory() as temporary,
        foresee.Trainers(arguments.folder or temporary, bags, dim=DIM, optimizer=foresee.Adagrad(lr=0.05)) as trainers,
    ):
        together = trainers.share(head)
        for step in trainers.steps(source, cache_rows=1_500):
            pooled = bags.keyed(step).values()
            logits = together(torch.cat([step.dense, pooled], dim=1)).squeeze(1)
            loss = bce(logits, step.labels) * trainers.weight(step)
            loss.backward()
            adam.step()
            adam.zero_grad()
            step.update()
        if trainers.rank == 0:
            scores, clicked = [], []
            with torch.no_grad():
                for dense, ids, labels in batches("valid"):
                    pooled = bags.keyed(bags.look_up(trainers.tables, ids)).values()
                    scores.append(head(torch.cat([dense, pooled], dim=1)).squeeze(1))
                    clicked.append(labels)
            print(f"{trainers.steps_done} steps by {trainers.num_trainers} trainers")
            print(f"AUC on the valid split {auc(torch.cat(scores), torch.cat(clicked)):.4f}")


if __name__ == "__main__":
    main()
