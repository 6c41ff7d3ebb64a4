"""Kubernetes manifests of a run: a JobSet of its parts, or a RayJob on a cluster that KubeRay makes.

In: a configuration, its sizes, and names of image and volumes. Out: manifests as plain dictionaries. Exit codes are the
restart policy: 2 is a person's mistake and fails the whole; whatever else ends a part makes the JobSet start all parts
again, and workers go on from the last commit (`--resume auto`). Servers keep their rows on a volume, each in a folder
of its own. Certificates for the parts' names and a token are in a Secret that is made with the manifests.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

from foresee.errors import INPUT_CODE
from foresee.launch.certificates import Authority
from foresee.launch.deploy.sizes import PartSize, Sizes
from foresee.run.config import RunConfig
from foresee.store.registry import store_kind

Manifest = dict[str, Any]

SERVER_PORT, PLANNER_PORT, MEETING_PORT = 4440, 4450, 29500
CONFIG, SECRETS, DATA, ROWS = "/run/foresee/config", "/run/foresee/secrets", "/data", "/rows"
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
    log: str
    """Folder of the prepared log inside the data volume."""
    data_claim: str
    """A volume that all pods can mount and write (ReadWriteMany): log and run folder."""
    run_file: str
    """The text of the run file."""
    layout: str
    """The text that `foresee layout` writes."""
    overrides: tuple[str, ...] = ()
    """`key=value` that come on top of the run file."""

    @property
    def settings(self) -> list[str]:
        """For every command that reads the run file."""
        where = (f"log={DATA}/{self.log}", f"run={DATA}/{self.name}")
        return [word for setting in (*self.overrides, *where) for word in ("--set", setting)]


def jobset(config: RunConfig, sizes: Sizes, target: Target) -> list[Manifest]:
    """Everything but the volume with the log."""
    workers, servers = config.distributed.workers, max(1, config.num_servers)
    hosts = [f"{target.name}-server-{i}-0.{target.name}" for i in range(servers)]
    planner = f"{target.name}-planner-0-0.{target.name}"
    settings = [*target.settings, "--set", f"tables.folder={ROWS}", "--set", f"distributed.workers={workers}"]
    settings += ["--set", f"distributed.servers={servers}"]
    listen = ["--host", "0.0.0.0", "--tls-certificate", f"{SECRETS}/tls.crt", "--tls-key", f"{SECRETS}/tls.key"]
    serve = ["foresee", "serve", "--layout", f"{CONFIG}/layout.json", "--folder", ROWS, "--shard", "$(JOB_INDEX)"]
    serve += ["--num-shards", str(servers), "--port", str(SERVER_PORT), *listen]
    serve += ["--store", store_kind(config.tables.store).name]
    plan = ["foresee", "plan-server", f"{CONFIG}/run.yaml", *settings, "--port", str(PLANNER_PORT), *listen]
    work = ["foresee", "worker", f"{CONFIG}/run.yaml", *settings, "--resume", "auto"]
    work += ["--planner", f"grpc+tls://{planner}:{PLANNER_PORT}", "--tls-root-certificate", f"{SECRETS}/ca.crt"]
    work += [word for host in hosts for word in ("--server", f"grpc+tls://{host}:{SERVER_PORT}")]
    meeting = {
        "WORLD_SIZE": str(workers), "MASTER_ADDR": f"{target.name}-worker-0-0.{target.name}",
        "MASTER_PORT": str(MEETING_PORT), "OMP_NUM_THREADS": str(sizes.worker.cores),
    }  # fmt: skip
    rows = {"name": "rows", "mountPath": ROWS, "subPathExpr": "shard-$(JOB_INDEX)"}
    jobs = [
        _job("server", servers, _pod(target, serve, sizes.server, SERVER_PORT, {}, [rows])),
        _job("planner", 1, _pod(target, plan, sizes.planner, PLANNER_PORT, {})),
        _job("worker", workers, _pod(target, work, sizes.worker, MEETING_PORT, meeting, index="RANK")),
    ]
    return [
        _secret(target, [*hosts, planner]),
        _config(target),
        _claim(target, servers, sizes),
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
    mounts: list[Manifest] | None = None,
    index: str = "JOB_INDEX",
) -> Manifest:
    memory = {"memory": f"{size.memory_mebibytes}Mi"}
    gpus = {"nvidia.com/gpu": str(size.gpus)} if size.gpus else {}
    container = {
        "name": "",
        "image": target.image,
        "command": command,
        "env": [
            {"name": index, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{JOB_INDEX}']"}}},
            {"name": "FORESEE_TOKEN", "valueFrom": {"secretKeyRef": {"name": target.name, "key": "token"}}},
            *({"name": name, "value": value} for name, value in environment.items()),
        ],
        "ports": [{"containerPort": port}],
        "resources": {"requests": {"cpu": str(size.cores), **memory}, "limits": {**memory, **gpus}},
        "volumeMounts": [*_mounts(), *(mounts or [])],
    }
    volumes = [*_volumes(target), *([_volume("rows", f"{target.name}-rows")] if mounts else [])]
    return {
        "spec": {
            "restartPolicy": "Never", "terminationGracePeriodSeconds": GRACE_SECONDS, "containers": [container],
            "volumes": volumes,
        }
    }  # fmt: skip


def _mounts() -> list[Manifest]:
    return [
        {"name": "config", "mountPath": CONFIG, "readOnly": True},
        {"name": "secrets", "mountPath": SECRETS, "readOnly": True},
        {"name": "data", "mountPath": DATA},
    ]


def _volumes(target: Target) -> list[Manifest]:
    return [
        {"name": "config", "configMap": {"name": target.name}},
        {"name": "secrets", "secret": {"secretName": target.name, "defaultMode": 0o400}},
        _volume("data", target.data_claim),
    ]


def _volume(name: str, claim: str) -> Manifest:
    return {"name": name, "persistentVolumeClaim": {"claimName": claim}}


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
    gibibytes = max(1, -(-servers * sizes.shard_bytes // GIBIBYTE))
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": f"{gibibytes}Gi"}}}
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": f"{target.name}-rows"}, "spec": spec,
    }  # fmt: skip


def kuberay(config: RunConfig, sizes: Sizes, target: Target, *, nodes: int) -> list[Manifest]:
    """One RayJob: `foresee train --on ray` on a cluster of so many nodes, whose certificates the run makes itself."""
    workers, servers = config.distributed.workers, max(1, config.num_servers)
    settings = f"{shlex.join(target.settings)} --workers {workers} --servers {servers}"
    again = f"$(test -f {DATA}/{target.name}/config.yaml && echo --resume)"
    entry = shlex.join(["sh", "-c", f"foresee train {CONFIG}/run.yaml --on ray --address auto {settings} {again}"])
    each = _node_size(sizes, workers, servers, nodes)
    volumes: list[Manifest] = [
        {"name": "config", "configMap": {"name": target.name}},
        _volume("data", target.data_claim),
    ]
    mounts: list[Manifest] = [
        {"name": "config", "mountPath": CONFIG, "readOnly": True},
        {"name": "data", "mountPath": DATA},
    ]
    head = _ray_pod(target, "head", PartSize(cores=1, memory_bytes=4 * GIBIBYTE), mounts, volumes)
    group = {
        "groupName": "parts", "replicas": nodes, "minReplicas": nodes, "maxReplicas": nodes, "rayStartParams": {},
        "template": _ray_pod(target, "node", each, mounts, volumes),
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


def _ray_pod(target: Target, name: str, size: PartSize, mounts: list[Manifest], volumes: list[Manifest]) -> Manifest:
    amounts = {"cpu": str(size.cores), "memory": f"{size.memory_mebibytes}Mi"}
    gpus = {"nvidia.com/gpu": str(size.gpus)} if size.gpus else {}
    container = {
        "name": name, "image": target.image, "volumeMounts": mounts,
        "resources": {"requests": amounts, "limits": {"memory": amounts["memory"], **gpus}},
    }  # fmt: skip
    return {"spec": {"containers": [container], "volumes": volumes}}
