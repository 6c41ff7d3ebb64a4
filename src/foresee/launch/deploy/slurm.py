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
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
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

SCRIPT = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={workers_per_node}
#SBATCH --cpus-per-task={cores_per_task}
#SBATCH --mem={memory}M{gpus}
#SBATCH --signal=B:TERM@{last_seconds}
#SBATCH --requeue
#SBATCH --open-mode=append
set -u -o pipefail
run_file={run_file}
num_workers={workers}
num_servers={servers}
restarts_max={restarts}
foresee={foresee}
{scratch}
settings=({settings}--set distributed.workers=$num_workers --set distributed.servers=$num_servers)

job=$SLURM_JOB_ID stop= told= workers= attempt=0
tell_stop() {{ # once: a second signal would end workers before their commit
    [ -z "$stop" ] || [ -z "$workers" ] || [ -n "$told" ] || {{ told=1; tell_workers "$stop" & }}
}}
trap 'stop=TERM; tell_stop' TERM # first of all: it may come at any time
trap 'stop=INT; tell_stop' INT

umask 077
private={folder}/.foresee-$job
rm -rf "$private"; mkdir -p "$private" # a job that was queued again has the same number
trap 'rm -rf "$private"' EXIT
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST")); first=${{nodes[0]}}

# Certificates and a token of this job alone.
openssl rand -hex 32 > "$private/token"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 60 -subj /CN=foresee-job \\
    -addext "subjectAltName=$(printf 'DNS:%s,' "${{nodes[@]}}" | sed 's/,$//')" \\
    -keyout "$private/key.pem" -out "$private/certificate.pem" 2> /dev/null || exit {failed_code}
listen=(--host 0.0.0.0 --tls-certificate "$private/certificate.pem" --tls-key "$private/key.pem" \\
    --token-file "$private/token")
connect=(--planner "grpc+tls://$first:{planner_port}" --tls-root-certificate "$private/certificate.pem" \\
    --token-file "$private/token")
for ((i = 0; i < num_servers; i++)); do
    connect+=(--server "grpc+tls://${{nodes[i % ${{#nodes[@]}}]}}:$(({server_port} + i))")
done
$foresee layout "$run_file" "${{settings[@]}}" --out "$private/layout.json" || exit $?

by_itself() {{ # an error of its own, with which it would end again
    (($1 > 0 && $1 < 128 && $1 != {unavailable_code}))
}}
touch "$private/restarts"
again() {{ # who, how that ended: one more restart, of any part; false: it is one too many
    echo "$1" >> "$private/restarts"
    local number; number=$(wc -l < "$private/restarts")
    ((number <= restarts_max)) || {{ echo "$1 $2; that is one restart too many (at most $restarts_max)"; return 1; }}
    echo "$1 $2 (restart $number of at most $restarts_max)"
}}
lost_servers() {{ grep -c ^server "$private/restarts"; }}
fail() {{ # from any part: the job ends with this code
    echo "$1" > "$private/failed"
    tell_workers KILL
}}
tell_workers() {{ # a signal, once their step is there
    until [ -s "$private/step" ]; do [ -e "$private/stop" ] && return; sleep 0.2; done
    scancel --signal="$1" "$job.$(cat "$private/step")"
}}

keep() {{ # name, node, cores, command...: a part that others need until the end
    local name=$1 node=$2 cores=$3 code; shift 3
    until [ -e "$private/stop" ]; do
        srun --overlap --nodes=1 --ntasks=1 --cpus-per-task="$cores" --nodelist="$node" "$@"; code=$?
        [ -e "$private/stop" ] && return
        by_itself $code && {{ echo "$name ended with exit code $code"; fail $code; return; }}
        again "$name" "was lost (exit code $code) and is started again" || {{ fail {failed_code}; return; }}
    done
}}
kept=()
start_parts() {{
    kept=()
    for ((i = 0; i < num_servers; i++)); do
        keep "server $i" "${{nodes[i % ${{#nodes[@]}}]}}" {server_cores} $foresee serve "${{listen[@]}}" \\
            --port $(({server_port} + i)) --layout "$private/layout.json" --folder {tables}/shard-$i --shard $i \\
            --num-shards $num_servers --store {store}{storage} & kept+=($!)
    done
    keep planner "$first" {planner_cores} $foresee plan-server "$run_file" "${{settings[@]}}" "${{listen[@]}}" \\
        --port {planner_port} & kept+=($!)
}}
stop_parts() {{
    touch "$private/stop"
    for ((turn = 0; turn < 600; turn++)); do
        kill -0 "${{kept[@]}}" 2> /dev/null || break
        ((turn % 50)) || scancel --signal=$( ((turn < 500)) && echo TERM || echo KILL) "$job" # steps, not this script
        sleep 0.1
    done
}}

start_workers() {{
    export MASTER_ADDR=$first MASTER_PORT=$(({meeting_port} + attempt % 100)) WORLD_SIZE=$num_workers
    export OMP_NUM_THREADS={worker_cores} ended=$private/ended-$attempt step=$private/step
    srun --overlap --ntasks=$num_workers --cpus-per-task={worker_cores} --kill-on-bad-exit=0 --wait=0 bash -c '
        trap : TERM INT # is told together with the worker, and stays to write down how that ended
        echo $SLURM_STEP_ID > "$step"
        RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID "$@"; code=$?
        echo $code > "$ended-$SLURM_PROCID"
        case $code in 0 | {interrupted_code} | {terminated_code}) exit $code ;; esac
        for ((turn = 0; turn < 100; turn++)); do # who waits for one that never came does not notice
            (($(ls "$ended"-* | wc -l) == WORLD_SIZE)) && exit $code
            sleep 0.2
        done
        scancel --signal=KILL "$SLURM_JOB_ID.$SLURM_STEP_ID"
    ' worker $foresee worker "$run_file" "${{settings[@]}}" "${{connect[@]}}" --resume auto &
    workers=$!
}}
how_workers_ended() {{ # 0, the code of a stop, an error of their own, or the code for a lost part
    local rank code stopped=0 error=0 lost=0 killed=0
    for ((rank = 0; rank < num_workers; rank++)); do
        code=$(cat "$private/ended-$attempt-$rank" 2> /dev/null || echo 137)
        case $code in
            0) ;;
            {interrupted_code} | {terminated_code}) stopped=$code ;;
            {unavailable_code}) lost=1 ;;
            *) if by_itself "$code"; then error=$code; else killed=1; fi ;;
        esac
    done
    if ((killed)); then return {unavailable_code}; fi
    if ((error)); then return $error; fi
    if ((lost)); then return {unavailable_code}; fi
    return $stopped
}}

start_parts
code={terminated_code}
while [ -z "$stop" ] && [ ! -s "$private/failed" ]; do
    before=$(lost_servers)
    start_workers; tell_stop
    while kill -0 "$workers" 2> /dev/null; do wait "$workers"; done
    rm -f "$private/step"
    how_workers_ended; code=$?
    workers=; attempt=$((attempt + 1))
    ((code == {unavailable_code})) && [ -z "$stop" ] || break
    sleep {cause_seconds} # until it shows whether a server was lost first
    if (($(lost_servers) > before)); then
        echo "all workers go on from the last commit"
    else
        again workers "were lost; all go on from the last commit" || {{ code={failed_code}; break; }}
    fi
done
[ -s "$private/failed" ] && code=$(cat "$private/failed")
stop_parts
running() {{ # not cancelled by a person, which comes with a SIGTERM, too
    [ "$(squeue --noheader --jobs="$job" --format=%T)" = RUNNING ]
}}
if [ "$stop" = TERM ] && ((code)) && ! by_itself $code && running; then
    echo "the job is queued again, and goes on from the last commit"
    scontrol requeue "$job" && exit $code
    echo "it could not be queued again: sbatch the same script, and it goes on"
fi{leave}
exit $code
"""

LEAVE = f"""
if srun --overlap --nodes=1 --ntasks=1 --nodelist="$first" test -e "$scratch/run/{BEHIND_FILE}"; then # worker 0's node
    echo "the storage does not have all of the run: what is left of it stays in $scratch of each node"
else
    srun --overlap --nodes=${{#nodes[@]}} --ntasks=${{#nodes[@]}} --ntasks-per-node=1 rm -rf "$scratch"
fi"""


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
            tables='"$scratch"/tables', storage=f" --storage {shlex.quote(config.storage)}", leave=LEAVE,
        )  # fmt: skip
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
    return SCRIPT.format(
        name=re.sub(r"[^\w.-]", "-", run_name(config)), nodes=nodes, workers_per_node=workers_per_node,
        cores_per_task=-(-cores // workers_per_node), memory=memory + sizes.planner.memory_mebibytes,
        gpus=f"\n#SBATCH --gpus-per-node={gpus}" if gpus else "", last_seconds=LAST_SECONDS,
        settings="".join(f"--set {it} " for it in (*map(shlex.quote, overrides), *places.settings)),
        run_file=shlex.quote(str(run_file)), workers=workers, servers=servers,
        restarts=config.distributed.restarts_max, foresee=shlex.quote(command),
        scratch=places.scratch, tables=places.tables, storage=places.storage, leave=places.leave,
        store=store_kind(config.tables.store).name, folder=shlex.quote(str(run_file.parent)),
        server_port=SERVER_PORT, planner_port=PLANNER_PORT, meeting_port=MEETING_PORT,
        server_cores=sizes.server.cores, planner_cores=sizes.planner.cores, worker_cores=sizes.worker.cores,
        failed_code=FAILED_CODE, unavailable_code=UNAVAILABLE_CODE, interrupted_code=INTERRUPTED_CODE,
        terminated_code=TERMINATED_CODE, cause_seconds=CAUSE_SECONDS,
    )  # fmt: skip
