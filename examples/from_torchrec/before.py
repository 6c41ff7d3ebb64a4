"""A training script for TorchRec on one process: bags, a head, a loop. `after.py` is the same with Foresee."""

import torch
from clicks import CONFIGS, NUM_DENSE, batches
from torch import nn
from torchrec import EmbeddingBagCollection

torch.manual_seed(0)
bags = EmbeddingBagCollection(tables=CONFIGS, device=torch.device("cpu"))
width = sum(config.embedding_dim * len(config.feature_names) for config in CONFIGS)
head = nn.Sequential(nn.Linear(NUM_DENSE + width, 64), nn.ReLU(), nn.Linear(64, 1))
adagrad = torch.optim.Adagrad(bags.parameters(), lr=0.05, eps=1e-8)
adam = torch.optim.Adam(head.parameters())
bce = nn.BCEWithLogitsLoss()

losses = []
for batch in batches():
    pooled = bags(batch.sparse_features)
    loss = bce(head(torch.cat([batch.dense_features, pooled.values()], dim=1)).squeeze(1), batch.labels)
    loss.backward()
    adam.step()
    adam.zero_grad()
    adagrad.step()
    adagrad.zero_grad()
    losses.append(loss.item())

print(f"{len(losses)} steps, first loss {losses[0]:.5f}, last loss {losses[-1]:.5f}")
