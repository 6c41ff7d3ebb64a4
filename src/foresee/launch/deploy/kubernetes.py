"""Kubernetes manifests of a run: a JobSet of its parts, or a RayJob on a cluster that KubeRay makes.

In: a configuration, its sizes, and names of image and volumes. Out: manifests as plain dictionaries. Exit codes are the
restart policy: 2 is a person's mistake and fails the whole; whatever else ends a part makes the JobSet start all parts
again, and workers go on from the last commit (`--resume auto`). Servers keep their rows on a volume, each in a folder
of its own. Certificates for the parts' names and a token are in a Secret that is made with the manifests.

Where the run has a storage, its folder and rows are on disks of the nodes' own (`emptyDir`), which end with their pods:
whatever is started again has the last commit from the storage. Then a volume that all pods see is needed for a log that
has no URL, and for nothing else. Credentials are in a Secret of the person's own, and only its name is here.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Any

from foresee.errors import INPUT_CODE
from foresee.launch.certificates import Authority
from foresee.launch.deploy.sizes import PartSize, Sizes
from foresee.run.config import RunConfig
from foresee.store.registry import store_kind

Manifest = dict[str, Any]

SERVER_PORT, PLANNER_PORT, MEETING_PORT = 4440, 4450, 29500
CONFIG, SECRETS = "/run/foresee/config", "/run/foresee/secrets"
DATA, ROWS, SCRATCH = "/data", "/rows", "/scratch"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
GIBIBYTE = 1 << 30
NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
"""Names of jobs and pods are made from it, and have to be names in DNS."""
GRACE_SECONDS = 180
"""For a commit when a pod is asked to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the manifests are for."""

    name: str
    image: str
    run_file: str
    """The text of the run file."""
    layout: str
    """The text that `foresee layout` writes."""
    log: str
    """A URL, or a path in a pod."""
    storage: str | None = None
    """Of the run: commits are copied there, and pods keep nothing."""
    data_claim: str | None = None
    """A volume that all pods can mount and write (ReadWriteMany): what has no URL of log and run folder."""
    env_secret: str | None = None
    """A Secret whose keys become variables of all pods, such as credentials of the storage."""
    overrides: tuple[str, ...] = ()
    """`key=value` that come on top of the run file."""

    @property
    def settings(self) -> list[str]:
        """For every command that reads the run file."""
        where = [f"log={self.log}", f"run={DATA}/{self.name}"]
        if self.storage is not None:
            # Who looks at the run later has its rows in its folder, wherever that is brought to.
            where[1:] = [f"run={SCRATCH}/{self.name}", f"storage={self.storage}", "tables.folder=null"]
        return [word for setting in (*self.overrides, *where) for word in ("--set", setting)]

    @property
    def config(self) -> Volume:
        return Volume("config", {"configMap": {"name": self.name}}, CONFIG, {"readOnly": True})

    @property
    def secrets(self) -> Volume:
        source = {"secret": {"secretName": self.name, "defaultMode": 0o400}}
        return Volume("secrets", source, SECRETS, {"readOnly": True})

    @property
    def data(self) -> list[Volume]:
        return [] if self.data_claim is None else [Volume("data", _claimed(self.data_claim), DATA)]

    @property
    def environment(self) -> Manifest:
        """More of a container."""
        return {} if self.env_secret is None else {"envFrom": [{"secretRef": {"name": self.env_secret}}]}

    def scratch(self, num_bytes: int | None) -> list[Volume]:
        """Disk of a node's own for the run folder, where that is not on the volume."""
        return [] if self.storage is None else [Volume("scratch", _own_disk(num_bytes), SCRATCH)]

    def rows(self, num_bytes: int) -> Volume:
        """A folder for each server."""
        if self.storage is not None:
            return Volume("rows", _own_disk(num_bytes), ROWS)
        return Volume("rows", _claimed(f"{self.name}-rows"), ROWS, {"subPathExpr": "shard-$(JOB_INDEX)"})


@dataclass(frozen=True, slots=True)
class Volume:
    """One of a pod, and where it is."""

    name: str
    source: Manifest
    path: str
    more: Manifest = field(default_factory=dict)
    """How it is mounted."""

    @property
    def volume(self) -> Manifest:
        return {"name": self.name, **self.source}

    @property
    def size_limit(self) -> str | None:
        """Of a node's own disk."""
        limit: str | None = self.source.get("emptyDir", {}).get("sizeLimit")
        return limit

    @property
    def mount(self) -> Manifest:
        return {"name": self.name, "mountPath": self.path, **self.more}


def _claimed(claim: str) -> Manifest:
    return {"persistentVolumeClaim": {"claimName": claim}}


def _own_disk(num_bytes: int | None) -> Manifest:
    """None: nobody knows how much."""
    return {"emptyDir": {} if num_bytes is None else {"sizeLimit": _gibibytes(num_bytes)}}


def _gibibytes(num_bytes: int) -> str:
    return f"{max(1, -(-num_bytes // GIBIBYTE))}Gi"


def jobset(config: RunConfig, sizes: Sizes, target: Target) -> list[Manifest]:
    """Everything but the volume with the log."""
    workers, servers = config.distributed.workers, max(1, config.num_servers)
    hosts = [f"{target.name}-server-{i}-0.{target.name}" for i in range(servers)]
    planner = f"{target.name}-planner-0-0.{target.name}"
    settings = [*target.settings, "--set", f"distributed.workers={workers}", "--set", f"distributed.servers={servers}"]
    settings += ["--set", f"tables.folder={ROWS}"] if target.storage is None else []
    listen = ["--host", "0.0.0.0", "--tls-certificate", f"{SECRETS}/tls.crt", "--tls-key", f"{SECRETS}/tls.key"]
    serve = ["foresee", "serve", "--layout", f"{CONFIG}/layout.json", "--folder", ROWS, "--shard", "$(JOB_INDEX)"]
    serve += ["--num-shards", str(servers), "--port", str(SERVER_PORT), *listen]
    serve += ["--store", store_kind(config.tables.store).name]
    serve += [] if target.storage is None else ["--storage", target.storage]
    plan = ["foresee", "plan-server", f"{CONFIG}/run.yaml", *settings, "--port", str(PLANNER_PORT), *listen]
    work = ["foresee", "worker", f"{CONFIG}/run.yaml", *settings, "--resume", "auto"]
    work += ["--planner", f"grpc+tls://{planner}:{PLANNER_PORT}", "--tls-root-certificate", f"{SECRETS}/ca.crt"]
    work += [word for host in hosts for word in ("--server", f"grpc+tls://{host}:{SERVER_PORT}")]
    meeting = {
        "WORLD_SIZE": str(workers), "MASTER_ADDR": f"{target.name}-worker-0-0.{target.name}",
        "MASTER_PORT": str(MEETING_PORT), "OMP_NUM_THREADS": str(sizes.worker.cores),
    }  # fmt: skip
    rows, scratch = [target.rows(sizes.shard_bytes)], target.scratch(sizes.run_bytes)
    jobs = [
        _job("server", servers, _pod(target, serve, sizes.server, SERVER_PORT, {}, rows)),
        _job("planner", 1, _pod(target, plan, sizes.planner, PLANNER_PORT, {}, scratch)),
        _job("worker", workers, _pod(target, work, sizes.worker, MEETING_PORT, meeting, scratch, index="RANK")),
    ]
    return [
        _secret(target, [*hosts, planner]),
        _config(target),
        *([_claim(target, servers, sizes)] if target.storage is None else []),
        _set(config, target, jobs),
    ]


def _set(config: RunConfig, target: Target, jobs: list[Manifest]) -> Manifest:
    mistakes = {"name": "mistakes", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": target.name},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": target.name, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["worker"]},
            "failurePolicy": {"maxRestarts": config.distributed.restarts_max, "rules": [mistakes]},
            "replicatedJobs": jobs,
        },
    }


def _job(name: str, replicas: int, pod: Manifest) -> Manifest:
    mistake = {"containerName": name, "operator": "In", "values": [INPUT_CODE]}
    pod["spec"]["containers"][0]["name"] = name
    spec = {
        "parallelism": 1, "completions": 1, "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": mistake}]}, "template": pod,
    }  # fmt: skip
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}


def _pod(
    target: Target,
    command: list[str],
    size: PartSize,
    port: int,
    environment: dict[str, str],
    volumes: list[Volume],
    index: str = "JOB_INDEX",
) -> Manifest:
    volumes = [target.config, target.secrets, *target.data, *volumes]
    container = {
        "name": "",
        "image": target.image,
        "command": command,
        "env": [
            {"name": index, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{JOB_INDEX}']"}}},
            {"name": "FORESEE_TOKEN", "valueFrom": {"secretKeyRef": {"name": target.name, "key": "token"}}},
            *({"name": name, "value": value} for name, value in environment.items()),
        ],
        **target.environment,
        "ports": [{"containerPort": port}],
        "resources": _resources(size, volumes),
        "volumeMounts": [it.mount for it in volumes],
    }
    return {
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": GRACE_SECONDS, "containers": [container],
            "volumes": [it.volume for it in volumes],
        }
    }  # fmt: skip


def _resources(size: PartSize, volumes: list[Volume]) -> Manifest:
    """Disk is asked for where it is the node's own: pods go where there is enough."""
    memory = {"memory": f"{size.memory_mebibytes}Mi"}
    gpus = {"nvidia.com/gpu": str(size.gpus)} if size.gpus else {}
    disk = next(({"ephemeral-storage": it.size_limit} for it in volumes if it.size_limit), {})
    return {"requests": {"cpu": str(size.cores), **memory, **disk}, "limits": {**memory, **gpus}}


def _secret(target: Target, hosts: list[str]) -> Manifest:
    authority = Authority()
    signed = authority.sign(*hosts)
    content = {
        "token": authority.token, "ca.crt": authority.certificate, "tls.crt": signed.certificate, "tls.key": signed.key,
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": target.name}, "stringData": content}


def _config(target: Target) -> Manifest:
    texts = {"run.yaml": target.run_file, "layout.json": target.layout}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": target.name}, "data": texts}


def _claim(target: Target, servers: int, sizes: Sizes) -> Manifest:
    room = {"storage": _gibibytes(servers * sizes.shard_bytes)}
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": room}}
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": f"{target.name}-rows"}, "spec": spec,
    }  # fmt: skip


def kuberay(config: RunConfig, sizes: Sizes, target: Target, *, nodes: int) -> list[Manifest]:
    """One RayJob: `foresee train --on ray` on a cluster of so many nodes, whose certificates the run makes itself."""
    workers, servers = config.distributed.workers, max(1, config.num_servers)
    settings = f"{shlex.join(target.settings)} --workers {workers} --servers {servers}"
    train = f"foresee train {CONFIG}/run.yaml --on ray --address auto {settings} --resume-or-begin"
    # One word with blanks stays what it is on its way through KubeRay and `ray job submit`, whose quotes differ.
    entry = shlex.join(["sh", "-c", train])
    each = _node_size(sizes, workers, servers, nodes)
    disk_bytes = -(-servers // nodes) * sizes.shard_bytes + sizes.run_bytes
    head = _ray_pod(target, "head", PartSize(cores=1, memory_bytes=4 * GIBIBYTE), target.scratch(None))
    group = {
        "groupName": "parts", "replicas": nodes, "minReplicas": nodes, "maxReplicas": nodes, "rayStartParams": {},
        "template": _ray_pod(target, "node", each, target.scratch(disk_bytes)),
    }  # fmt: skip
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": target.name},
        "spec": {
            "entrypoint": entry,
            "shutdownAfterJobFinishes": True,
            "backoffLimit": config.distributed.restarts_max,
            "rayClusterSpec": {
                "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": head}, "workerGroupSpecs": [group],
            },
        },
    }  # fmt: skip
    return [_config(target), job]


def _node_size(sizes: Sizes, workers: int, servers: int, nodes: int) -> PartSize:
    """A node has its share of all parts, and room for the planner."""
    share_of_workers, share_of_servers = -(-workers // nodes), -(-servers // nodes)
    parts = [(sizes.worker, share_of_workers), (sizes.server, share_of_servers), (sizes.planner, 1)]
    return PartSize(
        cores=sum(size.cores * number for size, number in parts),
        memory_bytes=sum(size.memory_bytes * number for size, number in parts),
        gpus=sizes.worker.gpus * share_of_workers,
    )


def _ray_pod(target: Target, name: str, size: PartSize, scratch: list[Volume]) -> Manifest:
    volumes = [target.config, *target.data, *scratch]
    container = {
        "name": name, "image": target.image, **target.environment,
        "volumeMounts": [it.mount for it in volumes], "resources": _resources(size, volumes),
    }  # fmt: skip
    return {"spec": {"containers": [container], "volumes": [it.volume for it in volumes]}}
