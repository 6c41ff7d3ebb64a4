"""A training script as many are: embedding bags, a head, a loop. `after.py` is the same with Foresee."""

import torch
from clicks import DIM, NUM_DENSE, TABLES, auc, batches
from torch import nn

torch.manual_seed(0)
bags = nn.ModuleDict({name: nn.EmbeddingBag(rows, DIM, mode="mean", sparse=True) for name, rows in TABLES.items()})
head = nn.Sequential(nn.Linear(NUM_DENSE + DIM * len(TABLES), 64), nn.ReLU(), nn.Linear(64, 1))
adagrad = torch.optim.Adagrad(bags.parameters(), lr=0.05, eps=1e-8)
adam = torch.optim.Adam(head.parameters())
bce = nn.BCEWithLogitsLoss()

losses = []
for epoch in range(2):
    for dense, ids, labels in batches("train", epoch):
        pooled = torch.cat([bags[name](*ids[name]) for name in TABLES], dim=1)
        loss = bce(head(torch.cat([dense, pooled], dim=1)).squeeze(1), labels)
        loss.backward()
        adam.step()
        adam.zero_grad()
        adagrad.step()
        adagrad.zero_grad()
        losses.append(loss.item())

scores, clicked = [], []
with torch.no_grad():
    for dense, ids, labels in batches("valid"):
        pooled = torch.cat([bags[name](*ids[name]) for name in TABLES], dim=1)
        scores.append(head(torch.cat([dense, pooled], dim=1)).squeeze(1))
        clicked.append(labels)

print(f"{len(losses)} steps, first loss {losses[0]:.5f}, last loss {losses[-1]:.5f}")
print(f"AUC on the valid split {auc(torch.cat(scores), torch.cat(clicked)):.5f}")
