"""DIN on what people watched: will they watch this film? Attention of the candidate over the films before it.

    python examples/sequences/din.py

One table of films is looked up twice: the candidate, one film a sample, and the history, which is not pooled: the model
gets a vector for each film of it. Half of the samples are films that were watched next, half are drawn by chance. In
the end everybody's last film is scored beside films drawn by chance: the share of right orders is the AUC.
"""

from __future__ import annotations

import numpy as np
import torch
from films import asked, films_at, histories, learn, pairs, watched
from torch import nn

import foresee

DIM, LENGTH, BATCH_SIZE = 32, 50, 256


def main() -> None:
    arguments = asked(__doc__, "din", epochs=3)
    people, num_films = watched(arguments.people)
    bags = foresee.EmbeddingBags(
        [
            foresee.EmbeddingBagConfig(
                name="films", num_embeddings=num_films, embedding_dim=DIM, feature_names=["candidate", "watched"],
                pooling="none",
            )
        ]
    )  # fmt: skip

    def batches(epoch):
        """({feature: ids}, labels): each history with the film that came next and with one that did not."""
        rng = np.random.default_rng([2, epoch])
        for person, position in pairs(people, epoch, BATCH_SIZE, each=4):
            labels = rng.integers(0, 2, BATCH_SIZE)
            chance = rng.integers(1, num_films, BATCH_SIZE)
            candidate = np.where(labels == 1, films_at(people, person, position), chance)
            yield (
                np.zeros((BATCH_SIZE, 0), np.float32),
                {"candidate": candidate, "watched": histories(people, person, position, LENGTH)},
                labels.astype(np.float32),
            )

    torch.manual_seed(0)
    model = foresee.models.DIN(DIM)
    bce = nn.BCEWithLogitsLoss()

    def loss_of(step):
        films = bags.keyed(step)
        history = films["watched"]
        logits = model(films["candidate"].values(), history.values(), history.lengths())
        return bce(logits, step.labels)

    with foresee.Tables.on_disk(arguments.folder, bags, dim=DIM, optimizer=foresee.Adagrad(lr=0.05)) as tables:
        source = foresee.Batches(bags, batches, epochs=arguments.epochs, read_ahead_steps=32)
        learn(foresee.steps(source, tables, cache_rows=num_films), model, loss_of)
        print(f"AUC of the films that were held out {held_out(model, bags, tables, people, num_films):.4f}")


@torch.no_grad()
def held_out(model, bags, tables, people, num_films):
    """Everybody's last film against one by chance."""
    everyone, last = np.arange(len(people)), np.array([len(films) - 1 for films in people])
    chance = np.random.default_rng(3).integers(1, num_films, len(people))
    history = histories(people, everyone, last, LENGTH)
    scores = []
    for candidate in (films_at(people, everyone, last), chance):
        films = bags.look_up_keyed(tables, {"candidate": candidate, "watched": history})
        scores.append(model(films["candidate"].values(), films["watched"].values(), films["watched"].lengths()))
    return (scores[0][:, None] > scores[1]).float().mean().item()


if __name__ == "__main__":
    main()
