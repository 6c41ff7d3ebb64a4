"""A Slurm job that runs a whole run: servers on its nodes, the planner on the first, workers on all of them.

In: a configuration, its sizes, and how many nodes. Out: the text of a script for `sbatch`. What it does after a part
has ended follows our exit codes: 2 is a person's mistake and ends the job; a lost part (3, or a signal) ends
everything, which is then started again and goes on from the last commit; SIGTERM before the end of the job's time
makes workers commit and stop, and the job is queued again. Certificates and token are made by the job, on the file
system that all nodes share, and removed at its end.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from foresee.errors import INPUT_CODE, TERMINATED_CODE
from foresee.launch.deploy.sizes import Sizes
from foresee.run.config import RunConfig

SERVER_PORT, PLANNER_PORT, MEETING_PORT = 4440, 4400, 29500
LAST_SECONDS = 180
"""Before a job's time is over its workers are asked to commit."""

SCRIPT = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={workers_per_node}
#SBATCH --cpus-per-task={cores}
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
settings=(--set distributed.workers=$num_workers --set distributed.servers=$num_servers --set tables.folder={tables})

umask 077
private={folder}/.foresee-$SLURM_JOB_ID
mkdir -p "$private"
trap 'rm -rf "$private"' EXIT
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST")); first=${{nodes[0]}}

# Certificates and a token of this job alone.
openssl rand -hex 32 > "$private/token"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 60 -subj /CN=foresee-job \\
    -addext "subjectAltName=$(printf 'DNS:%s,' "${{nodes[@]}}" | sed 's/,$//')" \\
    -keyout "$private/key.pem" -out "$private/certificate.pem" 2> /dev/null || exit 1
listen=(--host 0.0.0.0 --tls-certificate "$private/certificate.pem" --tls-key "$private/key.pem" \\
    --token-file "$private/token")
connect=(--planner "grpc+tls://$first:{planner_port}" --tls-root-certificate "$private/certificate.pem" \\
    --token-file "$private/token")
for ((i = 0; i < num_servers; i++)); do
    connect+=(--server "grpc+tls://${{nodes[i % ${{#nodes[@]}}]}}:$(({server_port} + i))")
done
$foresee layout "$run_file" "${{settings[@]}}" --out "$private/layout.json" || exit $?

endless=()
one() {{ # node, command...
    local node=$1; shift
    srun --overlap --nodes=1 --ntasks=1 --nodelist="$node" "$@" & endless+=($!)
}}
start_parts() {{
    endless=()
    for ((i = 0; i < num_servers; i++)); do
        one "${{nodes[i % ${{#nodes[@]}}]}}" $foresee serve "${{listen[@]}}" --port $(({server_port} + i)) \\
            --layout "$private/layout.json" --folder {tables}/shard-$i --shard $i --num-shards $num_servers
    done
    one "$first" $foresee plan-server "$run_file" "${{settings[@]}}" "${{listen[@]}}" --port {planner_port}
}}
stop_parts() {{
    kill -TERM "${{endless[@]}}" 2> /dev/null
    wait "${{endless[@]}}" 2> /dev/null
}}

stop=0; workers=
trap 'stop=1; [ -z "$workers" ] || kill -TERM $workers' TERM INT
for ((attempt = 0; attempt <= restarts_max; attempt++)); do
    start_parts
    export MASTER_ADDR=$first MASTER_PORT=$(({meeting_port} + attempt)) WORLD_SIZE=$num_workers
    work=($foresee worker "$run_file" "${{settings[@]}}" "${{connect[@]}}" --resume auto)
    srun --overlap --ntasks=$num_workers --kill-on-bad-exit=0 \\
        bash -c 'RANK=$SLURM_PROCID exec "$@"' worker "${{work[@]}}" &
    workers=$!
    wait $workers; code=$?
    while kill -0 $workers 2> /dev/null; do wait $workers; code=$?; done
    stop_parts
    case $code in
        0) exit 0 ;;
        {input_code}) exit {input_code} ;;
    esac
    if [ $stop = 1 ]; then
        [ $code = {terminated_code} ] && scontrol requeue "$SLURM_JOB_ID"
        exit $code
    fi
    echo "parts were lost (exit code $code); everything is started again, restart $((attempt + 1)) of $restarts_max"
done
exit $code
"""


def script(config: RunConfig, run_file: Path, sizes: Sizes, *, nodes: int, command: str = "foresee") -> str:
    """`run_file` and the folders in it have to be paths that all nodes see."""
    workers, servers = config.distributed.workers, max(1, config.num_servers)
    tables = config.tables.folder or config.run.with_name(
        f"{config.run.name}-tables"
    )  # servers are there before the run
    workers_per_node = -(-workers // nodes)
    servers_per_node = -(-servers // nodes)
    memory = workers_per_node * sizes.worker.memory_mebibytes + servers_per_node * sizes.server.memory_mebibytes
    gpus = workers_per_node * sizes.worker.gpus
    return SCRIPT.format(
        name=config.run.name, nodes=nodes, workers_per_node=workers_per_node, cores=sizes.worker.cores,
        memory=memory + sizes.planner.memory_mebibytes, gpus=f"\n#SBATCH --gpus-per-node={gpus}" if gpus else "",
        last_seconds=LAST_SECONDS, run_file=shlex.quote(str(run_file)), workers=workers, servers=servers,
        restarts=config.distributed.restarts_max, foresee=shlex.quote(command),
        tables=shlex.quote(str(tables)), folder=shlex.quote(str(run_file.parent)),
        server_port=SERVER_PORT, planner_port=PLANNER_PORT, meeting_port=MEETING_PORT, input_code=INPUT_CODE,
        terminated_code=TERMINATED_CODE,
    )  # fmt: skip
