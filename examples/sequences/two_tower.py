"""Two towers on what people watched: a vector for a history and one for each film, to look for films by their vector.

    python examples/sequences/two_tower.py

A history is the mean of its films, so it is pooled with the lookup. Negatives are the other films of the batch; popular
films are negatives more often, which the loss corrects by how often each came. At the end everybody's last film is
looked for among all films.
"""

from __future__ import annotations

import numpy as np
import torch
from films import asked, films_at, histories, learn, pairs, watched

import foresee
from foresee.models import in_batch_loss

DIM, LENGTH, BATCH_SIZE = 32, 50, 512


def main() -> None:
    arguments = asked(__doc__, "two_tower", epochs=5)
    people, num_films = watched(arguments.people)
    batch_size = min(BATCH_SIZE, len(people))
    bags = foresee.EmbeddingBags(
        [
            foresee.EmbeddingBagConfig(
                name="watched_films", num_embeddings=num_films, embedding_dim=DIM, feature_names=["watched"],
                pooling="mean",
            ),
            foresee.EmbeddingBagConfig(
                name="films", num_embeddings=num_films, embedding_dim=DIM, feature_names=["film"]
            ),
        ]
    )  # fmt: skip

    def batches(epoch):
        for person, position in pairs(people, epoch, batch_size, each=4):
            yield {
                "watched": histories(people, person, position, LENGTH),
                "film": films_at(people, person, position),
            }

    shares = torch.from_numpy(np.bincount(np.concatenate(people), minlength=num_films) / sum(map(len, people)))
    torch.manual_seed(0)
    model = foresee.models.TwoTower(DIM, DIM)

    def loss_of(step):
        pooled, film = bags.keyed(step.embeddings), torch.from_numpy(step.item["film"])
        queries, items = model(pooled["watched"], pooled["film"])
        return in_batch_loss(queries, items, film, shares=shares[film])

    with foresee.Tables.on_disk(arguments.folder, bags, dim=DIM, optimizer=foresee.Adagrad(lr=0.1)) as tables:
        source = foresee.Batches(bags, batches, epochs=arguments.epochs, read_ahead_steps=32)
        learn(foresee.steps(source, tables, cache_rows=2 * num_films), model, loss_of)
        recall = held_out(model, bags, tables, people)
        print(f"the film held out is among the 50 nearest of {num_films - 1:,}: {recall:.4f}, by chance "
              f"{50 / (num_films - 1):.4f}")  # fmt: skip


@torch.no_grad()
def held_out(model, bags, tables, people):
    """How often everybody's last film is among the fifty nearest."""
    everyone, last = np.arange(len(people)), np.array([len(films) - 1 for films in people])
    film = films_at(people, everyone, last)
    ids = {"watched": histories(people, everyone, last, LENGTH), "film": film}
    queries = model.queries(bags.look_up_keyed(tables, ids)["watched"])
    scores = queries @ model.items(torch.from_numpy(tables.values("films")[1:])).T
    place = (scores > scores.gather(1, torch.from_numpy(film - 1)[:, None])).sum(1)
    return (place < 50).float().mean().item()


if __name__ == "__main__":
    main()
