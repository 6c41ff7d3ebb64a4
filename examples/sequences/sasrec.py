"""SASRec on what people watched: the next film at every position, from the films up to there.

    python examples/sequences/sasrec.py

A sample is one person's last films. Three features look up one table of films: the sequence, the film that came next
at each position, and one drawn by chance. At the end everybody's last film is ranked among all films.
"""

from __future__ import annotations

import numpy as np
import torch
from films import asked, learn, watched

import foresee
from foresee.models import next_item_loss

DIM, LENGTH, BATCH_SIZE = 32, 50, 128


def main() -> None:
    arguments = asked(__doc__, "sasrec", epochs=5)
    people, num_films = watched(arguments.people)
    films = foresee.EmbeddingBagConfig(
        name="films", num_embeddings=num_films, embedding_dim=DIM, feature_names=["sequence", "following", "others"],
        pooling="none",
    )  # fmt: skip
    bags = foresee.EmbeddingBags([films])

    def batches(epoch):
        """{feature: (ids, offsets)}; each person with a different end in every epoch, the last film left out."""
        rng = np.random.default_rng([1, epoch])
        order = rng.permutation(len(people))
        for start in range(0, len(order), BATCH_SIZE):
            parts = []
            for person in order[start : start + BATCH_SIZE]:
                end = rng.integers(3, len(people[person]))
                parts.append(people[person][max(0, end - LENGTH - 1) : end])
            sizes = np.array([len(part) - 1 for part in parts])
            offsets = np.cumsum(sizes) - sizes
            yield {
                "sequence": (np.concatenate([part[:-1] for part in parts]), offsets),
                "following": (np.concatenate([part[1:] for part in parts]), offsets),
                "others": (rng.integers(1, num_films, sizes.sum()), offsets),
            }

    torch.manual_seed(0)
    model = foresee.models.SASRec(DIM, positions=LENGTH, dropout=0.1)

    def loss_of(step):
        found = bags.keyed(step)
        sequence, following, others = (found[name].to_padded_dense(LENGTH) for name in films.feature_names)
        return next_item_loss(model(sequence), following, others, found["sequence"].lengths())

    with foresee.Tables.on_disk(arguments.folder, bags, dim=DIM, optimizer=foresee.Adagrad(lr=0.05)) as tables:
        source = foresee.Batches(bags, batches, epochs=arguments.epochs, read_ahead_steps=32)
        learn(foresee.steps(source, tables, cache_rows=num_films), model, loss_of)
        ndcg, recall = held_out(model, bags, tables, people)
        print(f"the film held out, among all {num_films - 1:,}: NDCG@10 {ndcg:.4f}, recall@50 {recall:.4f}")


@torch.no_grad()
def held_out(model, bags, tables, people):
    """Where everybody's last film comes among all films."""
    model.eval()
    parts = [films[-LENGTH - 1 : -1] for films in people]
    sizes = np.array([len(part) for part in parts])
    ids = (np.concatenate(parts), np.cumsum(sizes) - sizes)
    sequence = bags.look_up_keyed(tables, {"sequence": ids, "following": ids, "others": ids})["sequence"]
    state = model(sequence.to_padded_dense(LENGTH))[torch.arange(len(people)), sequence.lengths() - 1]
    scores = state @ torch.from_numpy(tables.values("films")[1:]).T
    right = scores.gather(1, torch.tensor([[films[-1] - 1] for films in people]))
    place = (scores > right).sum(1)
    return torch.where(place < 10, 1 / torch.log2(place + 2.0), 0.0).mean().item(), (place < 50).float().mean().item()


if __name__ == "__main__":
    main()
