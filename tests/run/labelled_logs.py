"""A small log with a click, a number, classes and weights, as a person would have it: one CSV, prepared."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from foresee.data import Categorical, ClickLog, Columns, Csv, Dense, Label, PrepareOptions, prepare

DEVICES = ("phone", "tablet", "desktop")
LABELS = (
    Label(name="click"),
    Label(name="rating", kind="number"),
    Label(name="liked", column="rating", threshold=4),
    Label(name="device", kind="class", classes=DEVICES),
)


def write_csv(file: Path, num_samples: int = 1200, seed: int = 3) -> Path:
    """user, film, age → click, rating, device and a weight, each of which can be learned a little."""
    rng = np.random.default_rng(seed)
    users, films = rng.integers(0, 40, num_samples), rng.integers(0, 60, num_samples)
    taste = rng.normal(size=40)[users] + rng.normal(size=60)[films]
    rating = np.clip(np.round(3 + taste + 0.3 * rng.normal(size=num_samples)), 1, 5)
    click = rng.random(num_samples) < 1 / (1 + np.exp(-2 * taste))
    device = (users + (rng.random(num_samples) < 0.2)) % 3
    lines = ["user,film,age,click,rating,device,importance"]
    lines += [
        f"u{users[i]},f{films[i]},{20 + users[i] % 7},{int(click[i])},{rating[i]:g},{DEVICES[device[i]]},{0.5 + i % 4}"
        for i in range(num_samples)
    ]
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file


def labelled_log(folder: Path, labels: tuple[Label, ...] = LABELS, weight: str | None = "importance") -> ClickLog:
    """The same, prepared."""
    columns = Columns(
        labels=labels, weight=weight, dense=(Dense(name="age", transform="standard"),),
        categorical=(Categorical(name="user"), Categorical(name="film")),
    )  # fmt: skip
    source = Csv(files=(write_csv(folder / "raw.csv"),), columns=columns)
    return prepare(source, folder / "log", PrepareOptions(split="random", valid_share=0.2)).log
