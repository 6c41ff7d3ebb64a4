"""Hosts on one machine: network namespaces on one switch, every link shaped in both directions (tc tbf).

Needs root, `ip`, `tc` and `openssl`. A guard process takes hosts and processes down however the benchmark ends.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ADDRESSES = {"trainer0": "10.77.0.1", "trainer1": "10.77.0.2", "server0": "10.77.0.3", "server1": "10.77.0.4"}
"""Seen only inside the namespaces."""
FAST_MBIT = 1000.0
"""Before a rate is chosen."""

GUARD = """
cat > /dev/null
folder="$1"; shift
for turn in 1 2; do
    for name in "$@"; do ip netns pids "$name" | xargs -r kill -9; done
    sleep 0.1
done
for name in "$@"; do ip netns del "$name"; done
rm -rf "$folder"
"""
"""Reads until whoever holds the other end is gone; then ends all that lives in its namespaces, and removes them."""


def missing() -> str | None:
    """What this machine lacks, as a sentence."""
    if os.geteuid() != 0:
        return "network namespaces need root; run this as root"
    tools = [tool for tool in ("ip", "tc", "openssl") if shutil.which(tool) is None]
    return f"this needs {', '.join(tools)}; install iproute2 and openssl" if tools else None


@contextmanager
def shaped_hosts() -> Iterator[tuple[str, Path]]:
    """One namespace for each host and one for the switch; gives the prefix of their names, and a folder."""
    prefix, folder = f"foresee{os.getpid()}", tempfile.mkdtemp(prefix="foresee-network-")
    spaces = [f"{prefix}-{name}" for name in (*ADDRESSES, "switch")]
    guard = subprocess.Popen(
        ["sh", "-c", GUARD, "guard", folder, *spaces], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert guard.stdin is not None
    try:
        for space in spaces:
            call("ip", "netns", "add", space)
            call("ip", "-n", space, "link", "set", "lo", "up")
        switch = spaces[-1]
        call("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        call("ip", "-n", switch, "link", "set", "bridge", "up")
        for name, address in ADDRESSES.items():
            space = f"{prefix}-{name}"
            call("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", name, "netns", switch)
            call("ip", "-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            call("ip", "-n", switch, "link", "set", name, "master", "bridge")
            call("ip", "-n", space, "link", "set", "eth0", "up")
            call("ip", "-n", switch, "link", "set", name, "up")
        shape(prefix, FAST_MBIT)
        yield prefix, Path(folder)
    finally:
        guard.stdin.close()
        guard.wait()


def shape(prefix: str, rate_mbit: float) -> None:
    """Both ends of every link."""
    shaping = f"root tbf rate {rate_mbit}mbit burst 256kb latency 50ms".split()
    for name in ADDRESSES:
        for space, device in ((f"{prefix}-{name}", "eth0"), (f"{prefix}-switch", name)):
            call("tc", "-n", space, "qdisc", "replace", "dev", device, *shaping)


def make_secrets(folder: Path) -> None:
    """A certificate for the servers' addresses and a token, for this run only."""
    addresses = ",".join(f"IP:{ADDRESSES[f'server{i}']}" for i in range(2))
    call(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
        "-subj", "/CN=foresee-benchmark", "-addext", f"subjectAltName={addresses}",
        "-keyout", str(folder / "server.key"), "-out", str(folder / "server.pem"),
    )  # fmt: skip
    os.environ["FORESEE_TOKEN"] = secrets.token_hex(32)


def start(host: str, words: list[str], output: Path) -> subprocess.Popen[bytes]:
    """A process on a host, with one thread for arithmetic."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "LOCAL_WORLD_SIZE": "1"}
    with open(output, "wb") as file:
        return subprocess.Popen(
            ["ip", "netns", "exec", host, *words], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env=environment,
        )  # fmt: skip


def call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
