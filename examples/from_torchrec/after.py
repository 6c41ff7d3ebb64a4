"""The training script of `before.py` with Foresee: the same configurations and batches, the same losses."""

import torch
from clicks import CONFIGS, NUM_DENSE, batches
from torch import nn
from torchrec import EmbeddingBagCollection

import foresee

torch.manual_seed(0)
start = EmbeddingBagCollection(tables=CONFIGS, device=torch.device("cpu"))
width = sum(config.embedding_dim * len(config.feature_names) for config in CONFIGS)
head = nn.Sequential(nn.Linear(NUM_DENSE + width, 64), nn.ReLU(), nn.Linear(64, 1))
bags = foresee.EmbeddingBags(CONFIGS)
tables = foresee.Tables.in_memory(bags, dim=bags.dim, optimizer=foresee.Adagrad(lr=0.05, eps=1e-8))
bags.load_state_dict(tables, start.state_dict())
adam = torch.optim.Adam(head.parameters())
bce = nn.BCEWithLogitsLoss()

losses = []
for step in foresee.lookahead(foresee.Batches(bags, batches()), tables, cache_rows=3_000):
    pooled = bags.keyed(step.embeddings)
    loss = bce(head(torch.cat([step.dense, pooled.values()], dim=1)).squeeze(1), step.labels)
    loss.backward()
    adam.step()
    adam.zero_grad()
    step.update()
    losses.append(loss.item())

print(f"{len(losses)} steps, first loss {losses[0]:.5f}, last loss {losses[-1]:.5f}")
