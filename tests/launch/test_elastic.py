"""Nodes of a Ray cluster go for good, and others come: the run goes on with another size, from a commit.

Needs root and network namespaces, and takes minutes: FORESEE_ENGINES=long, or make chaos-machines.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray_cluster import HEAD, RayCluster, missing, ray_cluster
from test_engines import LONG

from foresee.data.synthetic import tiny
from foresee.tools.report.run_records import read_run

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

from machines import NUM_STEPS, SETTINGS, Disturbed, result_in_storage, result_of

WAIT_SECONDS = 240.0
QUICK = ("distributed.elastic.after_seconds=5", "distributed.elastic.every_seconds=5", "cache.rows=400")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not LONG, reason="starts a cluster: FORESEE_ENGINES=long, or make chaos-machines"),
]


def undisturbed(cluster: RayCluster, name: str, *options: str) -> dict[str, bytes]:
    """What the launcher makes of the same run on this machine."""
    file = cluster.shared / f"{name}.yaml"
    file.write_text(f"log: {cluster.shared}/log\nrun: {name}{SETTINGS}")
    words = [sys.executable, "-m", "foresee", "train", str(file), "--set", "cache.rows=400", *options]
    subprocess.run(words, check=True, capture_output=True, timeout=WAIT_SECONDS)
    return result_of(cluster.shared / name) if "--stop-after" not in options else {}


def wait_for(run: Disturbed, what: str) -> re.Match[str]:
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := re.search(what, " ".join(run.output.read_text().split()))) is None:  # lines are broken anywhere
        assert time.monotonic() < deadline, f"{what} was not said:\n{run.output.read_text()[-4000:]}"
        assert not run.over, f"it was over before {what}:\n{run.output.read_text()[-4000:]}"
        time.sleep(0.1)
    return found


def wait_for_a_commit(run: Disturbed) -> None:
    """Which all parts have in the storage: the next one waits for that."""
    begun, pointer = time.monotonic(), run.storage / "checkpoints" / "checkpoints.json"
    while not (pointer.exists() and pointer.read_text().count('"num_shards"') == 2):
        assert time.monotonic() - begun < WAIT_SECONDS, run.output.read_text()[-4000:]
        time.sleep(0.05)


def node_of(run: Disturbed, part: str) -> str:
    node = run.cluster.node_of(run.pid(part))
    assert node is not None
    return node


def lose_and_bring_back_a_server(cluster: RayCluster) -> None:
    """Rows move to the server that is left, and back: the same bytes."""
    run = Disturbed(cluster, 1, "distributed.elastic.servers_min=1", *QUICK)
    wait_for_a_commit(run)
    node = node_of(run, "server 1")
    cluster.lose(node)
    wait_for(run, "room for 2 workers and 1 server,")
    wait_for(run, r"over 2 workers, from step [\d,]+ on.* on 1 server;")
    cluster.start_node(node)
    wait_for(run, "room for 2 workers and 2 servers,")
    assert run.process.wait(WAIT_SECONDS) == 0, run.output.read_text()[-4000:]
    assert_recorded_here(run)
    assert result_in_storage(cluster, run) == undisturbed(cluster, "plain")


def assert_recorded_here(run: Disturbed) -> None:
    """Where the command was typed, `watch` and `report` find what worker 0 and each worker wrote on their disks."""
    records = read_run(run.cluster.disk(HEAD) / "run")
    assert records.finished
    assert [line["step"] for line in records.metrics if line["kind"] == "train"] == list(range(1, NUM_STEPS + 1))
    assert [worker.points[-1].step for worker in records.workers] == [NUM_STEPS, NUM_STEPS]


def lose_a_worker(cluster: RayCluster) -> None:
    """With one worker it is the run that was resumed with one at that commit."""
    run = Disturbed(cluster, 2, "distributed.elastic.workers_min=1", *QUICK)
    wait_for_a_commit(run)
    cluster.lose(node_of(run, "worker 1"))
    wait_for(run, "room for 1 worker and 2 servers,")
    step = wait_for(run, r"over 1 workers, from step ([\d,]+) on")[1].replace(",", "")
    assert run.process.wait(WAIT_SECONDS) == 0, run.output.read_text()[-4000:]
    undisturbed(cluster, "resumed", "--stop-after", step)
    expected = undisturbed(cluster, "resumed", "--resume", "--workers", "1", "--servers", "2")
    assert result_in_storage(cluster, run, "--workers", "1") == expected


def test_a_run_follows_the_nodes_of_its_cluster() -> None:
    """Three nodes with two cores each: five parts have room on all of them, and four on two."""
    pytest.importorskip("ray", reason="Ray is an extra: pip install '.[ray]'")
    if (lacking := missing()) is not None:
        pytest.skip(lacking)
    with ray_cluster(3, cpus=2) as cluster:
        tiny(cluster.shared / "log", seed=5, num_samples=500)
        lose_and_bring_back_a_server(cluster)
        cluster.wait_for_nodes(4)
        lose_a_worker(cluster)
