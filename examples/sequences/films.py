"""Films that people watched, by time: MovieLens-1M if it is there, else made up; batches of them, and the loop.

Where MovieLens is: the folder that $FORESEE_DATA names, or shared/data beside this project. Film 0 is no film.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

DATA = Path(os.environ.get("FORESEE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
MOVIELENS = DATA / "movielens" / "ml1m_user_sequences_timeordered.parquet"


def watched(num_people: int | None = None) -> tuple[list[np.ndarray], int]:
    """What each person watched, and how many films there are, with film 0."""
    if MOVIELENS.exists():
        column = pq.read_table(MOVIELENS)["item_ids"]
        people = [np.asarray(films, np.int64) for films in column.to_pylist()]
    else:
        print(f"{MOVIELENS} is not there: people and films are made up")
        people = made_up()
    people = [films for films in people if len(films) >= 5][:num_people]
    return people, int(max(films.max() for films in people)) + 1


def made_up(num_people: int = 1000, num_films: int = 600, genres: int = 12) -> list[np.ndarray]:
    """Return what made-up people watched: mostly films of the two genres each of them likes, popular films more often.

    A model learns from both within a few steps, as it does from MovieLens.
    """
    rng = np.random.default_rng(0)
    genre = rng.integers(0, genres, num_films)
    popularity = 1 / rng.permutation(np.arange(10, num_films + 10))
    watched = []
    for _ in range(num_people):
        liked = np.isin(genre, rng.choice(genres, 2, replace=False))
        weight = popularity * np.where(liked, 20, 1)
        watched.append(1 + rng.choice(num_films, rng.integers(20, 120), p=weight / weight.sum()))
    return watched


def pairs(people: list[np.ndarray], epoch: int, batch_size: int, each: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(person, position) of films to learn from: `each` of every person, the last two of everyone left out."""
    rng = np.random.default_rng([1, epoch])
    person = np.repeat(np.arange(len(people)), each)
    position = np.array([rng.integers(1, len(people[it]) - 2) for it in person])
    order = rng.permutation(len(person))
    for start in range(0, len(order) - batch_size + 1, batch_size):
        chosen = order[start : start + batch_size]
        yield person[chosen], position[chosen]


def histories(people: list[np.ndarray], person: np.ndarray, position: np.ndarray, length: int) -> tuple:
    """The last `length` films before each position, as (ids, offsets), which is how bags are given."""
    parts = [people[who][max(0, at - length) : at] for who, at in zip(person, position, strict=True)]
    sizes = np.array([len(part) for part in parts])
    return np.concatenate(parts), np.cumsum(sizes) - sizes


def films_at(people: list[np.ndarray], person: np.ndarray, position: np.ndarray) -> np.ndarray:
    return np.array([people[who][at] for who, at in zip(person, position, strict=True)])


def asked(description: str | None, name: str, epochs: int) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build") / name, help="of the tables")
    parser.add_argument("--people", type=int, help="only so many")
    parser.add_argument("--epochs", type=int, default=epochs)
    torch.set_num_threads(1)  # models this small compute on one core
    return parser.parse_args()


def learn(steps: Iterable, model: torch.nn.Module, loss_of: Callable) -> None:
    """Every step once: the model's weights by Adam, and the step's rows by the optimiser of their tables."""
    adam, losses = torch.optim.Adam(model.parameters(), lr=0.002), []
    for step in steps:
        loss = loss_of(step)
        loss.backward()
        adam.step()
        adam.zero_grad()
        step.update()
        losses.append(loss.item())
    if losses:
        print(f"{len(losses)} steps, first loss {losses[0]:.4f}, last loss {losses[-1]:.4f}")
