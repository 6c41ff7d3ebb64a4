"""Writes clicks.csv into the current folder: some thousand clicks with users, items, tags, an age and a time."""

from __future__ import annotations

import csv
import random
import sys

random.seed(0)
taste = {f"u{user}": random.gauss(0, 1) for user in range(300)}
quality = {f"i{item}": random.gauss(0, 1) for item in range(200)}
tags = ["news", "sport", "film", "music", "food"]

with open(sys.argv[1] if len(sys.argv) > 1 else "clicks.csv", "w", newline="") as file:
    out = csv.writer(file)
    out.writerow(["clicked", "user", "item", "tags", "age", "clicked_at"])
    for number in range(6000):
        user, item, age = random.choice(list(taste)), random.choice(list(quality)), random.randint(16, 80)
        likes = taste[user] + quality[item] + (age - 48) / 40 + random.gauss(0, 1)
        some = "|".join(random.sample(tags, random.randint(1, 3)))
        out.writerow([int(likes > 0.5), user, item, some, age, 1_700_000_000 + 60 * number])
