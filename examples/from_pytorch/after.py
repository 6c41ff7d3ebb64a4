"""The training script of `before.py` with Foresee: the same head, the same loop, the same losses."""

import torch
from clicks import DIM, NUM_DENSE, TABLES, auc, batches
from torch import nn

import foresee

torch.manual_seed(0)
start = nn.ModuleDict({name: nn.EmbeddingBag(rows, DIM, mode="mean", sparse=True) for name, rows in TABLES.items()})
head = nn.Sequential(nn.Linear(NUM_DENSE + DIM * len(TABLES), 64), nn.ReLU(), nn.Linear(64, 1))
bags = foresee.EmbeddingBags(
    foresee.EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=DIM, feature_names=[name], pooling="mean")
    for name, rows in TABLES.items()
)
tables = foresee.Tables.in_memory(bags, dim=DIM, optimizer=foresee.Adagrad(lr=0.05, eps=1e-8))
bags.load_state_dict(tables, start.state_dict(), prefix="")
adam = torch.optim.Adam(head.parameters())
bce = nn.BCEWithLogitsLoss()

losses = []
source = foresee.Batches(bags, lambda epoch: batches("train", epoch), epochs=2)
for step in foresee.lookahead(source, tables, cache_rows=1_500):
    dense, ids, labels = step.item
    pooled = bags.keyed(step.embeddings).values()
    loss = bce(head(torch.cat([dense, pooled], dim=1)).squeeze(1), labels)
    loss.backward()
    adam.step()
    adam.zero_grad()
    step.update()
    losses.append(loss.item())

scores, clicked = [], []
with torch.no_grad():
    for dense, ids, labels in batches("valid"):
        pooled = bags.keyed(bags.look_up(tables, ids)).values()
        scores.append(head(torch.cat([dense, pooled], dim=1)).squeeze(1))
        clicked.append(labels)

print(f"{len(losses)} steps, first loss {losses[0]:.5f}, last loss {losses[-1]:.5f}")
print(f"AUC on the valid split {auc(torch.cat(scores), torch.cat(clicked)):.5f}")
