#!/bin/bash
#SBATCH --job-name=%%{name}
#SBATCH --nodes=%%{nodes}
#SBATCH --ntasks-per-node=%%{workers_per_node}
#SBATCH --cpus-per-task=%%{cores_per_task}
#SBATCH --mem=%%{memory}M%%{gpus}
#SBATCH --signal=B:TERM@%%{last_seconds}
#SBATCH --requeue
#SBATCH --open-mode=append
set -u -o pipefail
run_file=%%{run_file}
num_workers=%%{workers}
num_servers=%%{servers}
restarts_max=%%{restarts}
foresee=%%{foresee}
%%{scratch}
settings=(%%{settings}--set distributed.workers=$num_workers --set distributed.servers=$num_servers)

job=$SLURM_JOB_ID stop= told= workers= attempt=0
tell_stop() { # once: a second signal would end workers before their commit
    [ -z "$stop" ] || [ -z "$workers" ] || [ -n "$told" ] || { told=1; tell_workers "$stop" & }
}
trap 'stop=TERM; tell_stop' TERM # first of all: it may come at any time
trap 'stop=INT; tell_stop' INT

umask 077
private=%%{folder}/.foresee-$job
rm -rf "$private"; mkdir -p "$private" # a job that was queued again has the same number
trap 'rm -rf "$private"' EXIT
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST")); first=${nodes[0]}

# Certificates and a token of this job alone.
openssl rand -hex 32 > "$private/token"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 60 -subj /CN=foresee-job \
    -addext "subjectAltName=$(printf 'DNS:%s,' "${nodes[@]}" | sed 's/,$//')" \
    -keyout "$private/key.pem" -out "$private/certificate.pem" 2> /dev/null || exit %%{failed_code}
listen=(--host 0.0.0.0 --tls-certificate "$private/certificate.pem" --tls-key "$private/key.pem" \
    --token-file "$private/token")
connect=(--planner "grpc+tls://$first:%%{planner_port}" --tls-root-certificate "$private/certificate.pem" \
    --token-file "$private/token")
for ((i = 0; i < num_servers; i++)); do
    connect+=(--server "grpc+tls://${nodes[i % ${#nodes[@]}]}:$((%%{server_port} + i))")
done
$foresee layout "$run_file" "${settings[@]}" --out "$private/layout.json" || exit $?

by_itself() { # an error of its own, with which it would end again
    (($1 > 0 && $1 < 128 && $1 != %%{unavailable_code}))
}
touch "$private/restarts"
again() { # who, how that ended: one more restart, of any part; false: it is one too many
    echo "$1" >> "$private/restarts"
    local number; number=$(wc -l < "$private/restarts")
    ((number <= restarts_max)) || { echo "$1 $2; that is one restart too many (at most $restarts_max)"; return 1; }
    echo "$1 $2 (restart $number of at most $restarts_max)"
}
lost_servers() { grep -c ^server "$private/restarts"; }
fail() { # from any part: the job ends with this code
    echo "$1" > "$private/failed"
    tell_workers KILL
}
tell_workers() { # a signal, once their step is there
    until [ -s "$private/step" ]; do [ -e "$private/stop" ] && return; sleep 0.2; done
    scancel --signal="$1" "$job.$(cat "$private/step")"
}

keep() { # name, node, cores, command...: a part that others need until the end
    local name=$1 node=$2 cores=$3 code; shift 3
    until [ -e "$private/stop" ]; do
        srun --overlap --nodes=1 --ntasks=1 --cpus-per-task="$cores" --nodelist="$node" "$@"; code=$?
        [ -e "$private/stop" ] && return
        by_itself $code && { echo "$name ended with exit code $code"; fail $code; return; }
        again "$name" "was lost (exit code $code) and is started again" || { fail %%{failed_code}; return; }
    done
}
kept=()
start_parts() {
    kept=()
    for ((i = 0; i < num_servers; i++)); do
        keep "server $i" "${nodes[i % ${#nodes[@]}]}" %%{server_cores} $foresee serve "${listen[@]}" \
            --port $((%%{server_port} + i)) --layout "$private/layout.json" --folder %%{tables}/shard-$i --shard $i \
            --num-shards $num_servers --store %%{store}%%{storage} & kept+=($!)
    done
    keep planner "$first" %%{planner_cores} $foresee plan-server "$run_file" "${settings[@]}" "${listen[@]}" \
        --port %%{planner_port} & kept+=($!)
}
stop_parts() {
    touch "$private/stop"
    for ((turn = 0; turn < 600; turn++)); do
        kill -0 "${kept[@]}" 2> /dev/null || break
        ((turn % 50)) || scancel --signal=$( ((turn < 500)) && echo TERM || echo KILL) "$job" # steps, not this script
        sleep 0.1
    done
}

start_workers() {
    export MASTER_ADDR=$first MASTER_PORT=$((%%{meeting_port} + attempt % 100)) WORLD_SIZE=$num_workers
    export OMP_NUM_THREADS=%%{worker_cores} ended=$private/ended-$attempt step=$private/step
    srun --overlap --ntasks=$num_workers --cpus-per-task=%%{worker_cores} --kill-on-bad-exit=0 --wait=0 bash -c '
        trap : TERM INT # is told together with the worker, and stays to write down how that ended
        echo $SLURM_STEP_ID > "$step"
        RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID "$@"; code=$?
        echo $code > "$ended-$SLURM_PROCID"
        case $code in 0 | %%{interrupted_code} | %%{terminated_code}) exit $code ;; esac
        for ((turn = 0; turn < 100; turn++)); do # who waits for one that never came does not notice
            (($(ls "$ended"-* | wc -l) == WORLD_SIZE)) && exit $code
            sleep 0.2
        done
        scancel --signal=KILL "$SLURM_JOB_ID.$SLURM_STEP_ID"
    ' worker $foresee worker "$run_file" "${settings[@]}" "${connect[@]}" --resume auto &
    workers=$!
}
how_workers_ended() { # 0, the code of a stop, an error of their own, or the code for a lost part
    local rank code stopped=0 error=0 lost=0 killed=0
    for ((rank = 0; rank < num_workers; rank++)); do
        code=$(cat "$private/ended-$attempt-$rank" 2> /dev/null || echo 137)
        case $code in
            0) ;;
            %%{interrupted_code} | %%{terminated_code}) stopped=$code ;;
            %%{unavailable_code}) lost=1 ;;
            *) if by_itself "$code"; then error=$code; else killed=1; fi ;;
        esac
    done
    if ((killed)); then return %%{unavailable_code}; fi
    if ((error)); then return $error; fi
    if ((lost)); then return %%{unavailable_code}; fi
    return $stopped
}

start_parts
code=%%{terminated_code}
while [ -z "$stop" ] && [ ! -s "$private/failed" ]; do
    before=$(lost_servers)
    start_workers; tell_stop
    while kill -0 "$workers" 2> /dev/null; do wait "$workers"; done
    rm -f "$private/step"
    how_workers_ended; code=$?
    workers=; attempt=$((attempt + 1))
    ((code == %%{unavailable_code})) && [ -z "$stop" ] || break
    sleep %%{cause_seconds} # until it shows whether a server was lost first
    if (($(lost_servers) > before)); then
        echo "all workers go on from the last commit"
    else
        again workers "were lost; all go on from the last commit" || { code=%%{failed_code}; break; }
    fi
done
[ -s "$private/failed" ] && code=$(cat "$private/failed")
stop_parts
running() { # not cancelled by a person, which comes with a SIGTERM, too
    [ "$(squeue --noheader --jobs="$job" --format=%T)" = RUNNING ]
}
if [ "$stop" = TERM ] && ((code)) && ! by_itself $code && running; then
    echo "the job is queued again, and goes on from the last commit"
    scontrol requeue "$job" && exit $code
    echo "it could not be queued again: sbatch the same script, and it goes on"
fi%%{leave}
exit $code
