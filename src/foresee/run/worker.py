"""What one trainer process of several does: its share of every batch, with rows from servers, as a planner says.

In: a run's configuration, the addresses of servers and planner, and a place among its peers (torchrun's environment, or
a file). Out: with its peers, the same run folder as one process would leave, except that the rows are on the servers.
Dense gradients are averaged by DDP during backward; rows and their gradients travel as the records say (`peers`).

A worker is a process: on an error it ends without waiting for peers and threads that may hang (`tools/cli/train`).
All waits on peers end after `PEER_SECONDS`.
"""

from __future__ import annotations

import logging
import sys
import time
import uuid
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import torch
import torch.distributed as dist

from foresee.data.click_log import ClickLog
from foresee.engine.exchange.dense import Sums, dense_group, shared, worker_device
from foresee.engine.exchange.mesh import TorchMesh, collective
from foresee.engine.exchange.peers import LocalExchange, PeerExchange
from foresee.engine.planner_service.client import PlannerClient
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.errors import ConfigError
from foresee.io import failpoints, logs
from foresee.io.failpoints import failpoint
from foresee.io.machine import scratch_folder
from foresee.io.units import counted
from foresee.plan.record import Header
from foresee.run import checkpoint
from foresee.run.backup import RunStorage, copying, opened_folder
from foresee.run.backup_shards import stored_steps
from foresee.run.build import build_model, open_log, plan_header, row_optimizer, table_layout, train_stream
from foresee.run.callbacks import EvaluateValid, Sink, of_log
from foresee.run.config import RunConfig
from foresee.run.dense_state import Best, DenseHalf
from foresee.run.folder import RunFolder, plan_origin
from foresee.run.group import TorchGroup
from foresee.run.loop import Objective, clip_of, train_run
from foresee.run.memory import rows_in_words
from foresee.run.progress import Display
from foresee.run.session import checked_tasks, early_words, recording, sinks_of
from foresee.run.stop import Stop
from foresee.run.torch_settings import torch_settings
from foresee.store.remote.opening import await_servers, open_run
from foresee.store.remote.store import remote_tables
from foresee.store.rpc.endpoint import Endpoint

_logger = logging.getLogger(__name__)

PEER_SECONDS = 1800.0
"""How long a worker waits for another: as long as worker 0 may take to evaluate or commit for all."""
SWITCH_SECONDS = 0.0005
"""How long another thread may keep the interpreter from the one that trains: ten times less than usual."""

FolderUse = Literal["begin", "resume", "replace", "ready"]
"""What worker 0 does with the run folder; ready: a launcher has made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Where a worker stands."""

    rank: int
    num_workers: int
    rendezvous: str
    """env:// under torchrun, file:///path for workers of one machine, or store://host:port/NAME of a store that an
    engine keeps, with a new NAME for every start of all workers."""
    servers: tuple[str, ...]
    planner: str
    started: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    """When this process was, in milliseconds."""
    token: str | None = None
    tls_root_certificate: bytes | None = None


def run_worker(
    config: RunConfig, place: WorkerContext, display: Display, *, folder_use: FolderUse, stop_after: int | None = None
) -> int:
    """Trains with the peers to the end, until any of them is asked to stop, or until `stop_after` steps are done."""
    check_place(config, place)
    # Everything that can be found wrong here is, before peers begin to wait.
    device = worker_device(config.train.device, place.rank)
    log = open_log(config)
    model, stream = build_model(config, log), train_stream(config, log)
    half = DenseHalf.of(config, model, stream.num_steps)
    tasks, given = checked_tasks(config, log)
    sys.setswitchinterval(SWITCH_SECONDS)
    with collective():
        _meet(place)
    _logger.info("%d workers are here", place.num_workers)
    folder = RunFolder(config.run)
    # A launcher looks for the file itself, and sends a signal.
    with ExitStack() as at_exit, display, Stop(None if folder_use == "ready" else folder.stop_file) as stop:
        at_exit.enter_context(torch_settings(config.train.num_threads))
        sums, sinks = at_exit.enter_context(Sums()), list[Sink]()
        stored: RunStorage | None = None
        if place.rank == 0:
            at_exit.enter_context(_folder(config, log, folder_use))
            stored = at_exit.enter_context(copying(config))
            sinks = at_exit.enter_context(sinks_of(config, folder))
        name = uuid.uuid4().hex
        if place.rank == 0:
            _open(config, log, place, name, folder, display, stored, fresh=folder_use in ("begin", "replace"))
        name = _agree_on(name)
        tables = _tables(config, log, place, name)
        first_step = _restore(config, folder, tables, half)
        failpoint(failpoints.RESTORED)
        logs.at_step(first_step)
        _logger.info("%s", f"goes on from the commit of step {first_step}" if first_step else "begins")
        header = _enter(plan_header(config, log, stream, first_step=first_step), folder)
        endpoint = Endpoint.parse(place.planner, place.token, place.tls_root_certificate)
        planner = PlannerClient(endpoint, run=name, worker=place.rank, header=header)
        planner.open(display.say)
        tracer = recording(config)
        mesh = TorchMesh() if place.num_workers > 1 else None
        exchange = PeerExchange(tables.layout, mesh, tracer, sums) if mesh is not None else None
        dense = shared(model, sums, dense_group(device)) if mesh is not None else model
        run = Run(
            stream, tables, header, log.pooling, records=planner.records(), device=device,
            exchange=exchange or LocalExchange(), num_threads=torch.get_num_threads(), commit_at_end=False,
            tracer=tracer,
        )  # fmt: skip
        display.say(_opening(config, run, place))
        group = TorchGroup(
            model, dense, seed=config.train.seed, precision=config.train.precision,
            overlap=config.train.clip_norm is None,
        )  # fmt: skip
        evaluation = of_log(run, model, log, config.train.ranking, tasks, given)
        valid = EvaluateValid(config, run, half, group, evaluation, folder, sinks, display)
        train_run(
            config, run, half, group, folder, sinks, display, callbacks=[valid], stop_asked=lambda: stop.asked,
            stop_after=stop_after, objective=Objective.of(tasks), clip=clip_of(config.train.clip_norm, model),
            stored=stored,
        )  # fmt: skip
        if exchange is not None:
            exchange.close()
        planner.close()
        tables.close()
        display.say(_closing(config, run, half.best))
        _logger.info("ends after %d steps", run.steps_done)
    dist.destroy_process_group()
    return stop.exit_code


def _meet(place: WorkerContext) -> None:
    timeout, where = timedelta(seconds=PEER_SECONDS), urlsplit(place.rendezvous)
    if where.scheme != "store":
        dist.init_process_group(
            "gloo", init_method=place.rendezvous, rank=place.rank, world_size=place.num_workers, timeout=timeout
        )
        return
    assert where.hostname is not None
    assert where.port is not None
    kept = dist.TCPStore(where.hostname, where.port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
    store = dist.PrefixStore(where.path, kept)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.num_workers, timeout=timeout)


def check_place(config: RunConfig, place: WorkerContext) -> None:
    if place.num_workers != config.distributed.workers:
        raise ConfigError(
            f"{place.num_workers} workers were started, but distributed.workers is {config.distributed.workers}; "
            f"give --set distributed.workers={place.num_workers}, or start as many"
        )


def _folder(config: RunConfig, log: ClickLog, use: FolderUse) -> AbstractContextManager[RunFolder]:
    if use != "ready":
        return opened_folder(config, log_digest=log.digest, resume=use == "resume", replace=use == "replace")
    return nullcontext(RunFolder(config.run))


def _open(
    config: RunConfig,
    log: ClickLog,
    place: WorkerContext,
    name: str,
    folder: RunFolder,
    display: Display,
    stored: RunStorage | None,
    *,
    fresh: bool,
) -> None:
    """Worker 0 brings all servers to the commit where this start of all workers begins, before any of them joins."""
    endpoints = [Endpoint.parse(it, place.token, place.tls_root_certificate) for it in place.servers]
    await_servers(endpoints, display.say)
    if stored is not None:  # this worker may be on another machine than the one before
        stored.forget_other_run()
        stored.fetch_files()
    manifests = {*checkpoint.whole_steps(folder.checkpoints), *(stored.steps if stored is not None else ())}
    layout = table_layout(config, log)
    if stored is not None and len(manifests) == 1 and not manifests <= stored_steps(stored, layout, len(place.servers)):
        manifests.add(0)  # the first commit, of which a machine may have had the only rows
    step = open_run(
        endpoints, layout, run=name, num_workers=place.num_workers,
        manifests=manifests, started=place.started, fresh=fresh,
    )  # fmt: skip
    if stored is not None:
        stored.open_at(step)
    checkpoint.forget_after(folder.checkpoints, step)
    folder.forget_metrics_after(step)
    if step:
        folder.mark(step)  # a stop may have come before the mark, or the run went back to the commit before


def _agree_on(name: str) -> str:
    """The name that worker 0 has given to this start of all workers."""
    letters = torch.frombuffer(bytearray(bytes.fromhex(name)), dtype=torch.uint8)
    dist.broadcast(letters, 0)
    return bytes(letters.tolist()).hex()


def _tables(config: RunConfig, log: ClickLog, place: WorkerContext, name: str) -> Tables:
    store = remote_tables(
        place.servers, table_layout(config, log), worker=place.rank, num_workers=place.num_workers, run=name,
        opened=True, token=place.token, tls_root_certificate=place.tls_root_certificate,
    )  # fmt: skip
    return Tables(store, row_optimizer(config.tables.optimizer))


def _restore(config: RunConfig, folder: RunFolder, tables: Tables, half: DenseHalf) -> int:
    """Brings the dense half to the step the servers are at. Where a run has a storage, workers may be on machines that
    do not see the folder of worker 0: then they have the files of the checkpoint from it."""
    step = tables.store.committed_step
    if step and config.storage is not None:
        with scratch_folder() as scratch:
            checkpoints = folder.checkpoints if dist.get_rank() == 0 else scratch
            _share_checkpoint(checkpoint.folder_of(checkpoints, step))
            half.load(checkpoints, step)
    elif step:
        half.load(folder.checkpoints, step)
    return step


def _share_checkpoint(folder: Path) -> None:
    """All workers but the first make the files of a checkpoint that worker 0 has."""
    has_it = dist.get_rank() == 0
    contents = dict[str, bytes]()
    for name in (*checkpoint.FILES, checkpoint.MANIFEST_FILE):
        content = (folder / name).read_bytes() if has_it else b""
        length = torch.tensor([len(content)])
        dist.broadcast(length, 0)
        letters = torch.empty(int(length.item()), dtype=torch.uint8)
        if has_it:
            letters = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        dist.broadcast(letters, 0)
        contents[name] = letters.numpy().tobytes()
    if not has_it:
        manifest = contents.pop(checkpoint.MANIFEST_FILE)
        checkpoint.write(folder, contents, manifest)


def _enter(header: Header, folder: RunFolder) -> Header:
    """The header of the plan that the run has followed so far; worker 0 knows where that began."""
    unknown = -1
    begun = torch.tensor([unknown])
    if dist.get_rank() == 0:
        origin = plan_origin(folder, header)
        begun[0] = unknown if origin is None else origin
    dist.broadcast(begun, 0)
    if begun.item() == unknown:
        return header
    return replace(header, options=replace(header.options, planned_from=int(begun.item())))


def _opening(config: RunConfig, run: Run, place: WorkerContext) -> str:
    header, layout = run.header, run.tables.layout
    begin = f"from step {header.first_step:,} on" if header.first_step else "from the start"
    return (
        f"{config.model.name} on {config.log}: {counted(run.stream.num_steps, 'step')} of "
        f"{config.train.batch_size:,} samples over {place.num_workers} workers, {begin}\n"
        f"{rows_in_words(layout, header)} on {_servers(place)}; cache of "
        f"{header.capacity_rows:,} rows a worker, planner {header.planner}, placement {config.distributed.placement}"
    )


def _servers(place: WorkerContext) -> str:
    return f"{len(place.servers)} server{'s' if len(place.servers) > 1 else ''}"


def _closing(config: RunConfig, run: Run, best: Best) -> str:
    finished = run.steps_done == run.stream.num_steps
    if best.exhausted and not finished:
        return early_words(config, best, run.steps_done, run.stream.num_steps)
    state = f"{run.steps_done:,} of {counted(run.stream.num_steps, 'step')}, kept"
    if finished:
        return f"done: {counted(run.steps_done, 'step')}, kept; dense half and metrics in {config.run}"
    return f"stopped after {state}; go on with --resume"
