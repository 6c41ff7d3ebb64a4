"""Writes avazu_union_sorted.csv into the current folder: some thousand lines with the columns of Avazu's log."""

from __future__ import annotations

import csv
import random

random.seed(0)
NUM_VALUES = {
    "C1": 7, "banner_pos": 7, "site_id": 900, "site_domain": 800, "site_category": 20, "app_id": 900, "app_domain": 80,
    "app_category": 20, "device_id": 4000, "device_ip": 9000, "device_model": 1500, "device_type": 5,
    "device_conn_type": 4, "C14": 600, "C15": 8, "C16": 9, "C17": 300, "C18": 4, "C19": 60, "C20": 150, "C21": 60,
}  # fmt: skip

with open("avazu_union_sorted.csv", "w", newline="") as file:
    out = csv.writer(file)
    out.writerow(["id", "click", "hour", *NUM_VALUES])
    for number in range(30_000):
        values = [f"{int(size * random.random() ** 3):x}" for size in NUM_VALUES.values()]
        hour = 14_102_100 + 100 * (number // 3000) + number // 125 % 24
        out.writerow([10**19 + number, int(random.random() < 0.17), hour, *values])
