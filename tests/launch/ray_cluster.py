"""Several Ray nodes on this machine, each a network namespace with its own address, its own /tmp and its own disk.

Needs root, `ip`, `nsenter` and `unshare`. A folder that all nodes see stands for a shared file system; `own` below it
is another one on every node. The controller of a run is started on the head node, which has no places for parts.
Nothing outside the namespaces and one folder is touched; a guard process ends everything in them however this ends.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from slurm_cluster import GUARD

HEAD = "head"
PORT = 6379
SUBNET = "10.79.0"
INSIDE = 'mount --bind "$1/tmp" /tmp; mount --bind "$1/own" "$2"; shift 2; exec "$@"'
WAIT_SECONDS = 120.0


def missing() -> str | None:
    """What this machine lacks, as a sentence."""
    if os.geteuid() != 0:
        return "nodes in network namespaces need root"
    tools = [it for it in ("ip", "nsenter", "unshare", "mount") if shutil.which(it) is None]
    if tools:
        return f"nodes in network namespaces need {', '.join(tools)}"
    made = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False)
    return None if made.returncode == 0 else "this machine does not let us make namespaces"


class RayCluster:
    """Nodes, and ways to break them."""

    def __init__(self, prefix: str, shared: Path, nodes: Sequence[str], cpus: int) -> None:
        self.prefix, self.shared, self.nodes, self._cpus = prefix, shared, tuple(nodes), cpus
        self.own = shared / "own"
        self.addresses = {name: f"{SUBNET}.{number}" for number, name in enumerate((HEAD, *nodes), 1)}
        token = shared / "ray-token"
        token.write_text(secrets.token_hex(32))
        token.chmod(0o600)
        quick = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "5"}
        self.environment = {
            **os.environ, **quick, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": "/tmp",
        }  # fmt: skip
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"{self.addresses[HEAD]}:{PORT}"

    def space(self, node: str) -> str:
        return f"{self.prefix}-{node}"

    def disk(self, node: str) -> Path:
        """What the node sees as `own`, seen from here."""
        return self.shared / "nodes" / node / "own"

    def start(
        self, node: str, words: Sequence[str], output: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A process on a node."""
        inside = ["nsenter", f"--net=/run/netns/{self.space(node)}", "unshare", "--mount", "sh", "-c", INSIDE, "sh"]
        with open(output, "ab") as file:
            return subprocess.Popen(
                [*inside, str(self.shared / "nodes" / node), str(self.own), *words], stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT, env={**self.environment, **(environment or {})},
                start_new_session=True,
            )  # fmt: skip

    def start_node(self, node: str) -> None:
        """A node joins, or comes back."""
        ray = str(Path(sys.executable).with_name("ray"))
        words = [ray, "start", "--block", f"--node-ip-address={self.addresses[node]}", "--disable-usage-stats"]
        words += ["--object-store-memory=80000000"]
        if node == HEAD:
            words += ["--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false"]
        else:
            words += [f"--address={self.address}", f"--num-cpus={self._cpus}"]
        self._daemons.append(self.start(node, words, self.shared / f"ray-{node}.txt"))

    def wait_for_nodes(self, number: int) -> None:
        """Until so many can be used."""
        asking = f"import ray; ray.init('{self.address}', log_to_driver=False, logging_level=50); "
        asking += "print('alive', sum(it['Alive'] for it in ray.nodes()))"
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            output = self.shared / "alive.txt"
            output.write_text("")
            code = self.start(HEAD, [sys.executable, "-c", asking], output).wait(WAIT_SECONDS)
            if code == 0 and f"alive {number}" in output.read_text():
                return
            assert time.monotonic() < deadline, f"{number} nodes did not come up:\n{output.read_text()}{self.said()}"
            time.sleep(0.5)

    def lose(self, node: str) -> None:
        """All its processes at once, as when its power is cut; its disk is gone, too."""
        for _ in range(3):
            for process_id in self.processes(node):
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
        for daemon in [it for it in self._daemons if it.poll() is not None]:
            self._daemons.remove(daemon)
        for name in ("own", "tmp"):
            self._empty(self.shared / "nodes" / node / name)

    @staticmethod
    def _empty(folder: Path) -> None:
        for path in folder.iterdir():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def link(self, node: str, *, up: bool) -> None:
        """The cable of a node."""
        state = "up" if up else "down"
        _call("ip", "-n", self.space(HEAD), "link", "set", node, state)

    def processes(self, node: str) -> list[int]:
        listed = subprocess.run(["ip", "netns", "pids", self.space(node)], capture_output=True, text=True, check=True)
        return [int(it) for it in listed.stdout.split()]

    def node_of(self, process_id: int) -> str | None:
        """Where a process runs."""
        return next((node for node in self.nodes if process_id in self.processes(node)), None)

    def said(self) -> str:
        return "".join(f"\n--- {it.name}\n{it.read_text()[-2000:]}" for it in sorted(self.shared.glob("ray-*.txt")))

    def connect(self) -> None:
        """All nodes on a bridge, which is on the head."""
        switch = self.space(HEAD)
        for node in self.addresses:
            for name in ("own", "tmp"):
                (self.shared / "nodes" / node / name).mkdir(parents=True)
            _call("ip", "netns", "add", self.space(node))
            _call("ip", "-n", self.space(node), "link", "set", "lo", "up")
        _call("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        _call("ip", "-n", switch, "address", "add", f"{self.addresses[HEAD]}/24", "dev", "bridge")
        _call("ip", "-n", switch, "link", "set", "bridge", "up")
        for node in self.nodes:
            space = self.space(node)
            _call("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", node, "netns", switch)
            _call("ip", "-n", space, "address", "add", f"{self.addresses[node]}/24", "dev", "eth0")
            _call("ip", "-n", switch, "link", "set", node, "master", "bridge")
            _call("ip", "-n", space, "link", "set", "eth0", "up")
            _call("ip", "-n", switch, "link", "set", node, "up")

    def reap(self) -> None:
        for daemon in self._daemons:
            daemon.wait()


@contextmanager
def ray_cluster(num_nodes: int, cpus: int = 4) -> Iterator[RayCluster]:
    """Up, with so many nodes beside the head."""
    shared = Path(tempfile.mkdtemp(prefix="foresee-ray-", dir="/var/tmp"))
    (shared / "own").mkdir()
    names = [f"node{number}" for number in range(1, num_nodes + 1)]
    cluster = RayCluster(f"foreseeray{os.getpid()}", shared, names, cpus)
    spaces = [cluster.space(node) for node in cluster.addresses]
    guard = subprocess.Popen(
        ["sh", "-c", GUARD, "guard", str(shared), *spaces], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert guard.stdin is not None
    try:
        cluster.connect()
        cluster.start_node(HEAD)
        cluster.wait_for_nodes(1)
        for node in names:
            cluster.start_node(node)
        cluster.wait_for_nodes(num_nodes + 1)
        yield cluster
    finally:
        guard.stdin.close()
        guard.wait()
        cluster.reap()


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
