"""Writes files of jobs into the current folder, each in the format of another cluster."""

from __future__ import annotations

import csv
import gzip
import json
import random
from pathlib import Path
from typing import Any

random.seed(0)

QUEUE = """\
JobID|User|Partition|State|Submit|Start|Elapsed|Timelimit|NNodes|ReqTRES
1001|ann|gpu|RUNNING|2026-03-02T08:00:00|2026-03-02T08:45:00|01:15:00|1-00:00:00|2|cpu=96,gres/gpu:a100=16
1002|bob|gpu|PENDING|2026-03-02T08:30:00|Unknown|00:00:00|12:00:00|1|cpu=8,gres/gpu:a100=32
1003_[1-4]|eve|gpu|PENDING|2026-03-02T09:00:00|Unknown|00:00:00|02:00:00|1|cpu=4,gres/gpu:a100=8,mem=16G
"""


def workload(name: str, gpus: int, seconds: int) -> dict[str, Any]:
    """As `kubectl get workloads -o json` gives one of Kueue."""
    container = {"resources": {"requests": {"nvidia.com/gpu": gpus}}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "metadata": {"name": name, "namespace": "ann", "creationTimestamp": "2026-03-02T08:00:00Z"},
        "spec": {
            "queueName": "team",
            "podSets": [{"count": 2, "template": {"spec": {"containers": [container]}}}],
            "maximumExecutionTimeSeconds": seconds,
        },
        "status": {},
    }


def trace() -> dict[str, Any]:
    """As Shockwave's: models whose batches grow while they train."""
    jobs = [
        {
            "id": number, "model": "LM", "batch_size": 10, "gpus": 1, "mode": "gns", "arrival": 60.0 * number,
            "steps": 30_000, "epochs": 5, "regimes": [[10, 3, 62.9], [20, 2, 43.8]], "exclusive_seconds": 276.3,
        }
        for number in range(8)
    ]  # fmt: skip
    speeds = {"LM (batch size 10)|1": 95.0, "LM (batch size 20)|1": 68.0}
    return {"gpus": 4, "round_seconds": 120, "dataset_size": {"LM": 59_675}, "jobs": jobs, "steps_per_second": speeds}


with open("jobs.csv", "w", newline="") as file:
    out = csv.writer(file)
    out.writerow(["id", "gpus", "seconds", "arrival"])
    for number, name in enumerate("abcdefgh"):
        out.writerow([name, random.choice([1, 2, 4]), random.randint(600, 7200), 300 * number])
Path("queue.txt").write_text(QUEUE)
Path("workloads.json").write_text(json.dumps({"items": [workload("long", 8, 7200), workload("short", 4, 900)]}))
Path("job.json").write_text(json.dumps([{"id": "new", "gpus": 8, "seconds": 1800}]))
with gzip.open("trace.json.gz", "wt") as packed:
    json.dump(trace(), packed)
with gzip.open("philly_jobs.csv.gz", "wt", newline="") as packed:
    out = csv.writer(packed)
    out.writerow(["timestamp", "duration", "num_gpus", "gpu_time", "cluster"])
    for number in range(300):
        gpus, seconds = random.choice([1, 1, 2, 8]), round(random.lognormvariate(7, 1.5))
        out.writerow([f"2017-10-09 {number // 60:02}:{number % 60:02}:00", seconds, gpus, gpus * seconds, "11cb48"])
