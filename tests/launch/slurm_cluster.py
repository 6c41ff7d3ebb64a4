"""A whole Slurm on this machine: a controller and four nodes, each a network namespace with its own name and address,
and a disk of its own beside all that they share.

Needs root, `ip`, `unshare`, and munged, slurmctld, slurmd and Slurm's commands, on PATH or below the folder in
FORESEE_SLURM, where Debian's packages (munge, libmunge2, libhwloc15, liblua5.1-0, slurmctld, slurmd, slurm-client,
slurm-wlm-basic-plugins) were unpacked with `dpkg -x`. Nothing outside the namespaces and one folder is touched; a guard
process ends everything in them however the tests end.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from waiting import wait_until

NODES = ("node1", "node2", "node3", "node4")
CONTROLLER = "controller"
ADDRESSES = {**{name: f"10.78.0.{number}" for number, name in enumerate(NODES, 1)}, CONTROLLER: "10.78.0.100"}
UNPACKED = os.environ.get("FORESEE_SLURM", "")
PLACES = os.pathsep.join([f"{UNPACKED}/usr/sbin", f"{UNPACKED}/usr/bin"] if UNPACKED else [])

CONFIG = """
ClusterName=foresee
SlurmctldHost={controller}({controller_address})
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=10
MinJobAge=3600
SchedulerParameters=sched_interval=1
{plugins}
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

GUARD = """
cat > /dev/null
folder="$1"; shift
for turn in 1 2 3; do
    for name in "$@"; do ip netns pids "$name" | xargs -r kill -9; done
    sleep 0.1
done
for name in "$@"; do ip netns del "$name"; done
rm -rf "$folder"
"""
"""Reads until whoever holds the other end is gone; then ends all that lives in its namespaces, and removes them."""

INSIDE = 'hostname "$1"; mount --bind "$2" /etc/hosts; mount --bind "$3" "$4"; shift 4; exec "$@"'
"""A machine's own name, the names of the others, and its own disk, seen by nobody else."""


def find(program: str) -> str | None:
    """Debian's packages have another name for what `update-alternatives` links at installation."""
    for name in (program, f"{program}-wlm"):
        found = shutil.which(name, path=PLACES) if PLACES else shutil.which(name)
        if found is not None:
            return found
    return None


def missing() -> str | None:
    """What this machine lacks, as a sentence."""
    if os.geteuid() != 0:
        return "Slurm in network namespaces needs root"
    tools = [it for it in ("ip", "nsenter", "unshare", "openssl") if shutil.which(it) is None]
    tools += [it for it in ("munged", "slurmctld", "slurmd", "slurmstepd", "sbatch", "srun") if find(it) is None]
    if tools:
        return (
            f"Slurm is not here ({', '.join(tools)}); install Debian's slurmctld, slurmd, slurm-client and munge, or "
            "unpack them and say where with FORESEE_SLURM"
        )
    made = subprocess.run(["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, check=False)
    return None if made.returncode == 0 else "this machine does not let us make namespaces"


class SlurmCluster:
    """The controller's commands, and ways to break a node."""

    def __init__(self, prefix: str, folder: Path) -> None:
        self.prefix, self.folder, self.daemons = prefix, folder, list[subprocess.Popen[bytes]]()
        self.disk = folder / "disk"
        """The path of every node's own disk, there."""
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
        if UNPACKED:
            libraries = [str(it) for it in Path(UNPACKED).glob("usr/lib/*-linux-gnu*")]
            libraries += [str(it) for it in Path(UNPACKED).glob("usr/lib/*/slurm-wlm")]
            self.environment["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
            self.environment["PATH"] = os.pathsep.join([PLACES, os.environ["PATH"]])

    def space(self, host: str) -> str:
        return f"{self.prefix}-{host}"

    def _on(self, host: str) -> list[str]:
        """Unlike `ip netns exec` this leaves /sys as it is, where slurmd looks for control groups."""
        return ["nsenter", f"--net=/run/netns/{self.space(host)}"]

    def disk_of(self, host: str) -> Path:
        """The same disk, seen from here."""
        return self.folder / f"disk-{host}"

    def start(self, host: str, *words: str) -> None:
        """A daemon that stays on a host; what it says is in a file of its name."""
        places = [str(self.folder / "hosts"), str(self.disk_of(host)), str(self.disk)]
        inside = ["unshare", "--mount", "--uts", "sh", "-c", INSIDE, "sh", host, *places]
        with open(self.folder / f"{Path(words[0]).name}-{host}.txt", "ab") as output:
            daemon = subprocess.Popen(
                [*self._on(host), *inside, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                env=self.environment, start_new_session=True,
            )  # fmt: skip
        self.daemons.append(daemon)

    def start_node(self, host: str) -> None:
        self.start(host, _path("slurmd"), "-D", "-N", host, "-d", _path("slurmstepd"))

    def ask(self, *words: str, folder: Path | None = None) -> str:
        """What one of Slurm's commands says, asked on the controller."""
        asked = subprocess.run(
            [*self._on(CONTROLLER), _path(words[0]), *words[1:]], env=self.environment, cwd=folder,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if asked.returncode:
            raise AssertionError(f"{' '.join(words)}: {asked.stderr}{self.said()}")
        return asked.stdout.strip()

    def state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED, …"""
        return self.details(job).get("JobState", "")

    def details(self, job: str) -> dict[str, str]:
        words = self.ask("scontrol", "--oneliner", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def lose(self, host: str) -> None:
        """All its processes at once, as when its power is cut; its disk is gone, too."""
        for _ in range(2):
            for process_id in self.processes(host):
                with suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
        self.empty_disks(host)

    def empty_disks(self, *hosts: str) -> None:
        """Of all nodes, if none is named."""
        for host in hosts or NODES:
            for path in self.disk_of(host).iterdir():
                shutil.rmtree(path)

    def processes(self, host: str) -> list[int]:
        listed = subprocess.run(["ip", "netns", "pids", self.space(host)], capture_output=True, text=True, check=True)
        return [int(it) for it in listed.stdout.split()]

    def said(self) -> str:
        return "".join(f"\n--- {it.name}\n{it.read_text()[-2000:]}" for it in sorted(self.folder.glob("*.txt")))


def _path(program: str) -> str:
    found = find(program)
    assert found is not None, program
    return found


@contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Up, with all nodes idle."""
    cluster = SlurmCluster(f"foreseeslurm{os.getpid()}", Path(tempfile.mkdtemp(prefix="foresee-slurm-")))
    spaces = [cluster.space(host) for host in ADDRESSES]
    guard = subprocess.Popen(
        ["sh", "-c", GUARD, "guard", str(cluster.folder), *spaces], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert guard.stdin is not None
    try:
        _connect(cluster)
        _write_files(cluster.folder)
        munge = [
            f"--{it}={cluster.folder}/munge.{it.removesuffix('-file')}"
            for it in ("socket", "pid-file", "log-file", "seed-file")
        ]
        key = f"--key-file={cluster.folder}/munge.key"
        cluster.start(CONTROLLER, _path("munged"), "--foreground", "--force", key, *munge)
        wait_until((cluster.folder / "munge.socket").exists, "munged")
        cluster.start(CONTROLLER, _path("slurmctld"), "-D")
        for host in NODES:
            cluster.start_node(host)
        try:
            wait_until(lambda: _idle(cluster) == len(NODES), "nodes of Slurm")
        except AssertionError as error:
            raise AssertionError(f"{error}{cluster.said()}") from None
        yield cluster
    finally:
        guard.stdin.close()
        guard.wait()
        for daemon in cluster.daemons:
            daemon.wait()


def _idle(cluster: SlurmCluster) -> int:
    try:
        return cluster.ask("sinfo", "--noheader", "--Node", "--format=%t").split().count("idle")
    except AssertionError:  # the controller is not there yet
        return 0


def _connect(cluster: SlurmCluster) -> None:
    """All hosts on a bridge, which is on the controller."""
    switch = cluster.space(CONTROLLER)
    for host in ADDRESSES:
        _call("ip", "netns", "add", cluster.space(host))
        _call("ip", "-n", cluster.space(host), "link", "set", "lo", "up")
    _call("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
    _call("ip", "-n", switch, "address", "add", f"{ADDRESSES[CONTROLLER]}/24", "dev", "bridge")
    _call("ip", "-n", switch, "link", "set", "bridge", "up")
    for host in NODES:
        space = cluster.space(host)
        _call("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", host, "netns", switch)
        _call("ip", "-n", space, "address", "add", f"{ADDRESSES[host]}/24", "dev", "eth0")
        _call("ip", "-n", switch, "link", "set", host, "master", "bridge")
        _call("ip", "-n", space, "link", "set", "eth0", "up")
        _call("ip", "-n", switch, "link", "set", host, "up")


def _write_files(folder: Path) -> None:
    names = "".join(f"{address} {host}\n" for host, address in ADDRESSES.items())
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o400)
    for name in ("state", "disk", *(f"disk-{host}" for host in ADDRESSES)):
        (folder / name).mkdir()
    folder.chmod(0o755)
    plugins = [str(it) for it in Path(UNPACKED).glob("usr/lib/*/slurm-wlm")] if UNPACKED else []
    nodes = "\n".join(f"NodeName={it} NodeAddr={ADDRESSES[it]} CPUs=8 RealMemory=64000" for it in NODES)
    text = CONFIG.format(
        folder=folder, controller=CONTROLLER, controller_address=ADDRESSES[CONTROLLER], nodes=nodes,
        plugins=f"PluginDir={plugins[0]}" if plugins else "",
    )  # fmt: skip
    (folder / "slurm.conf").write_text(text)


def _call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
