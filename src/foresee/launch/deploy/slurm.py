"""A Slurm job that runs a whole run: servers on its nodes, the planner on the first, workers on all of them.

In: a configuration, its sizes, and how many nodes. Out: the text of a script for `sbatch`. What it does after a part
has ended follows our exit codes, as `launch.decisions` does: servers and planner are started again alone, workers all
together from the last commit; an error of a part's own ends the job with its code. SIGTERM before the end of the job's
time makes workers commit and stop, and the job is queued again; SIGINT does so without another turn in the queue.
Signals go to steps by `scancel`: `srun` answers a SIGTERM by killing its tasks. Certificates and token are made by the
job, on the file system that all nodes share, and removed at its end.

A run that has a storage keeps nothing else there: run folder and tables are on disks of the nodes' own, in a folder of
this job alone, so that nobody takes what a node has of another run for this one's. A server or worker 0 that starts on
another node loads the last commit from the storage.
"""

from __future__ import annotations

import re
import shlex
import string
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from foresee.errors import FAILED_CODE, INTERRUPTED_CODE, TERMINATED_CODE, UNAVAILABLE_CODE, ConfigError
from foresee.io.urls import absolute
from foresee.launch.deploy.sizes import Sizes
from foresee.run.config import RunConfig
from foresee.run.config_file import run_name
from foresee.run.folder import BEHIND_FILE
from foresee.store.registry import store_kind

SERVER_PORT, PLANNER_PORT, MEETING_PORT = 4440, 4400, 29500
CAUSE_SECONDS = 2
LAST_SECONDS = 180
"""Before a job's time is over its workers are asked to commit."""
SCRATCH = "${TMPDIR:-/tmp}"
"""Where nodes have room of their own, in the words of a shell."""

LEAVE = f"""
if srun --overlap --nodes=1 --ntasks=1 --nodelist="$first" test -e "$scratch/run/{BEHIND_FILE}"; then # worker 0's node
    echo "the storage does not have all of the run: what is left of it stays in $scratch of each node"
else
    srun --overlap --nodes=${{#nodes[@]}} --ntasks=${{#nodes[@]}} --ntasks-per-node=1 rm -rf "$scratch"
fi"""


class Script(string.Template):
    """The text of `slurm.sh`; `%%{name}` stands for a value, because a shell has its own meaning for `$`."""

    delimiter = "%%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a job has its folders, as words of a shell."""

    settings: tuple[str, ...]
    """For every command that reads the run file."""
    tables: str
    """Folder of the servers' folders."""
    scratch: str = "# run folder and tables are on paths that all nodes see"
    storage: str = ""
    """More options of servers."""
    leave: str = ""
    """What is done on all nodes when the job is over."""


def places_of(config: RunConfig, scratch: str | None = None) -> Places:
    """`scratch`: a folder on disks of the nodes' own; variables in it are the job's."""
    # Wherever the job runs, paths are those of where the script was written.
    log = shlex.quote(f"log={absolute(config.log)}")
    if config.storage is not None:
        # Its name was never given to another job, even where numbers of jobs are given again.
        own = f"foresee-{run_name(config)}-{uuid.uuid4().hex[:12]}"
        return Places(
            # Where rows are is the servers' business: who looks at the run later has them in its folder.
            settings=(log, '"run=$scratch/run"', shlex.quote(f"storage={config.storage}"), "tables.folder=null"),
            scratch=f"scratch={_with_variables(scratch or SCRATCH)}/{shlex.quote(own)}-$SLURM_JOB_ID",
            tables='"$scratch"/tables',
            storage=f" --storage {shlex.quote(config.storage)}",
            leave=LEAVE,
        )
    if scratch is not None:
        raise ConfigError(
            f"--scratch {scratch} is for runs whose commits are copied to a storage, and this one has none; give "
            "--set storage=URL, or leave it out"
        )
    # Beside the run folder: servers are there before the run.
    tables = (config.tables.folder or config.run.with_name(f"{config.run.name}-tables")).absolute()
    paths = (f"run={config.run.absolute()}", f"tables.folder={tables}")
    return Places(settings=(log, *map(shlex.quote, paths)), tables=shlex.quote(str(tables)))


def _with_variables(path: str) -> str:
    """A path of which a shell makes nothing but the values of its variables."""
    return '"' + re.sub(r'([\\"`])', r"\\\1", path.rstrip("/")) + '"'


def script(
    config: RunConfig,
    run_file: Path,
    sizes: Sizes,
    *,
    nodes: int,
    command: str = "foresee",
    overrides: Sequence[str] = (),
    scratch: str | None = None,
) -> str:
    """`run_file`, and the folders in it unless the run has a storage, have to be paths that all nodes see; `overrides`:
    as `config` was made with."""
    workers, servers = config.distributed.workers, max(1, config.num_servers)
    places = places_of(config, scratch)
    workers_per_node, servers_per_node = -(-workers // nodes), -(-servers // nodes)
    memory = workers_per_node * sizes.worker.memory_mebibytes + servers_per_node * sizes.server.memory_mebibytes
    cores = workers_per_node * sizes.worker.cores + servers_per_node * sizes.server.cores + sizes.planner.cores
    gpus = workers_per_node * sizes.worker.gpus
    text = (files("foresee.launch.deploy") / "slurm.sh").read_text("utf-8")
    return Script(text).substitute(
        name=re.sub(r"[^\w.-]", "-", run_name(config)),
        nodes=nodes,
        workers_per_node=workers_per_node,
        cores_per_task=-(-cores // workers_per_node),
        memory=memory + sizes.planner.memory_mebibytes,
        gpus=f"\n#SBATCH --gpus-per-node={gpus}" if gpus else "",
        last_seconds=LAST_SECONDS,
        settings="".join(f"--set {it} " for it in (*map(shlex.quote, overrides), *places.settings)),
        run_file=shlex.quote(str(run_file)),
        workers=workers,
        servers=servers,
        restarts=config.distributed.restarts_max,
        foresee=shlex.quote(command),
        scratch=places.scratch,
        tables=places.tables,
        storage=places.storage,
        leave=places.leave,
        store=store_kind(config.tables.store).name,
        folder=shlex.quote(str(run_file.parent)),
        server_port=SERVER_PORT,
        planner_port=PLANNER_PORT,
        meeting_port=MEETING_PORT,
        server_cores=sizes.server.cores,
        planner_cores=sizes.planner.cores,
        worker_cores=sizes.worker.cores,
        failed_code=FAILED_CODE,
        unavailable_code=UNAVAILABLE_CODE,
        interrupted_code=INTERRUPTED_CODE,
        terminated_code=TERMINATED_CODE,
        cause_seconds=CAUSE_SECONDS,
    )
