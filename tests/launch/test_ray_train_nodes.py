"""A loop of one's own inside Ray Train on several machines: Ray nodes in network namespaces, one of which is lost.

Rows are on two servers, the plan comes from a process of its own, all of them over TLS and with a token; a person has
started them on nodes, and starts them elsewhere when their node is lost.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from ray_cluster import HEAD, RayCluster, missing, ray_cluster
from test_engines import LONG
from test_ray_train import Fit, example, result

from foresee.launch.certificates import Authority

EPOCHS, NUM_STEPS = 40, 1400
PORTS = {"server 0": 4440, "server 1": 4441, "planner": 4450}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


class Parts:
    """Servers and planner of a loop, by hand. Where each is now is in a file that all nodes see."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        self.folder, self._cluster = folder, cluster
        self._secrets = cluster.shared / "secrets"
        self._secrets.mkdir(mode=0o700)
        authority = Authority()
        signed = authority.sign(*cluster.addresses.values())
        secrets = {"ca.pem": authority.certificate, "cert.pem": signed.certificate, "key.pem": signed.key}
        for name, content in {**secrets, "token": authority.token}.items():
            (self._secrets / name).write_text(content)
            (self._secrets / name).chmod(0o600)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        subprocess.run(example(folder, EPOCHS, "--write-layout", str(self._layout)), check=True, capture_output=True)

    @property
    def _layout(self) -> Path:
        return self._cluster.shared / "layout.json"

    @property
    def options_of_trainers(self) -> list[str]:
        places = {part: f"file://{self._place(part)}" for part in PORTS}
        words = ["--servers", places["server 0"], places["server 1"], "--planner", places["planner"]]
        words += ["--tls-root-certificate", str(self._secrets / "ca.pem"), "--token-file", str(self._secrets / "token")]
        return [*words, "--address", self._cluster.address]

    def start(self, part: str, node: str) -> None:
        host, port = self._cluster.addresses[node], PORTS[part]
        listens = ["--tls-certificate", str(self._secrets / "cert.pem"), "--tls-key", str(self._secrets / "key.pem")]
        listens += ["--token-file", str(self._secrets / "token")]
        if part == "planner":
            words = example(self.folder, EPOCHS, "--plan", f"{host}:{port}")
        else:
            shard = part.removeprefix("server ")
            words = [sys.executable, "-m", "foresee", "serve", "--host", host, "--port", str(port), "--num-shards", "2"]
            words += ["--layout", str(self._layout), "--shard", shard, "--folder", str(self._place(f"shard-{shard}"))]
        output = self._cluster.shared / f"{part.replace(' ', '-')}.txt"
        self.kill(part)
        self._processes[part] = self._cluster.start(node, [*words, *listens], output)
        self._place(part).write_text(f"grpc+tls://{host}:{port}")

    def kill(self, part: str) -> None:
        if (process := self._processes.pop(part, None)) is not None:
            process.kill()
            process.wait()

    def end(self) -> None:
        for part in PORTS:
            self.kill(part)

    def _place(self, part: str) -> Path:
        return self._cluster.shared / part.replace(" ", "-")


def on_head(cluster: RayCluster, words: Sequence[str], output: Path) -> subprocess.Popen[bytes]:
    return cluster.start(HEAD, words, output, {"GLOO_SOCKET_IFNAME": "eth0"})


def trainers_of(fit: Fit, begun: int) -> list[int]:
    """Process ids of the trainers that began after this step."""
    return [int(it) for it in re.findall(rf"trainer \d is process (\d+), begins after step {begun}\n", fit.said)]


@pytest.fixture
def expected(tmp_path: Path) -> str:
    """Of an undisturbed run on this machine, before the nodes take their share of it."""
    return result(Fit(tmp_path / "undisturbed", EPOCHS).end())


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    pytest.importorskip("ray.train", reason="Ray Train is not here: pip install 'ray[train]'")
    with ray_cluster(3) as cluster:
        yield cluster


@pytest.fixture
def parts(cluster: RayCluster) -> Iterator[Parts]:
    parts = Parts(cluster, cluster.shared / "loop")
    yield parts
    parts.end()


@pytest.mark.skipif(not LONG, reason="trains for some minutes: FORESEE_ENGINES=long, or make chaos-machines")
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_lost_node_a_killed_trainer_and_a_stop_cost_no_byte(expected: str, cluster: RayCluster, parts: Parts) -> None:
    folder, start = parts.folder, partial(on_head, cluster)
    homes = {"server 0": "node1", "server 1": "node2", "planner": "node3"}
    for part, node in homes.items():
        parts.start(part, node)
    fit = Fit(folder, EPOCHS, *parts.options_of_trainers, start=start)
    fit.wait_for(r"has kept step 60 of")
    nodes = {cluster.node_of(it) for it in trainers_of(fit, 0)}
    assert len(nodes) == 2, "each trainer has a machine of its own"

    shard, lost = next((part, node) for part, node in homes.items() if node in nodes and part != "planner")
    cluster.link(lost, up=False)  # nobody is told of its end
    cluster.lose(lost)
    parts.start(shard, "node3")
    begun = int(fit.wait_for(r"begins after step ([1-9]\d*)\n")[1])
    fit.wait_for(rf"trainer 0 has kept step {begun + 60} of")

    os.kill(trainers_of(fit, begun)[0], signal.SIGKILL)
    again = int(fit.wait_for(rf"begins after step (?!(?:0|{begun})\n)(\d+)\n")[1])
    parts.kill("planner")
    parts.start("planner", "node3")
    fit.wait_for(rf"trainer 0 has kept step {again + 60} of")
    (folder / "stop").touch()
    kept = int(re.findall(rf"has kept step (\d+) of {NUM_STEPS}", fit.end())[-1])
    assert begun < again < kept < NUM_STEPS, "it was stopped before its end"

    onwards = Fit(folder, EPOCHS, *parts.options_of_trainers, start=start).end()
    assert f"begins after step {kept}\n" in onwards
    assert result(onwards) == expected
