"""`foresee train --workers 2 --servers 2`: everything a distributed run needs, started and watched on an engine.

In: a configuration, and an engine to start parts on. Out: the run folder, as `worker` leaves it, and an exit code.
`supervisor` starts the parts and starts those again that were killed; worker 0's progress is shown here. If a part
cannot be helped, all are taken down and it is said which one it was, with its last lines. The first Ctrl-C or SIGTERM
asks the workers to commit and stop, the second ends everything at once. However this ends, no process stays behind.
"""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from foresee.engine.exchange.dense import check_device
from foresee.errors import ConfigError, InputError
from foresee.io.units import counted
from foresee.launch.decisions import Bounds, Size, Sizing
from foresee.launch.engine import ElasticEngine, Engine
from foresee.launch.processes import Part, Processes
from foresee.launch.supervisor import Failed, Resized, Stopped, Supervisor
from foresee.run import checkpoint
from foresee.run.backup import copying, opened_folder
from foresee.run.backup_shards import bring_shards
from foresee.run.build import build_model, open_log, plan_header, table_layout, train_stream
from foresee.run.config import RunConfig
from foresee.run.folder import RunFolder
from foresee.run.memory import check_memory, in_words, launched_memory, window_in_words
from foresee.run.progress import Display, make_display
from foresee.run.stop import Stop
from foresee.store.layout import Layout
from foresee.store.registry import store_kind
from foresee.store.shard_folders import reshard, shard_folders

_logger = logging.getLogger(__name__)


def launch(
    config: RunConfig,
    engine: Engine,
    *,
    resume: bool = False,
    replace: bool = False,
    stop_after: int | None = None,
    console: Console | None = None,
    display: Display | None = None,
) -> int:
    """Runs to the end; returns the exit code. What is wrong with the input is an InputError, before or during."""
    console = console or Console()
    check_can_launch(config, resume=resume)
    new_size = _sizing(config, engine)
    kind = store_kind(config.tables.store)
    log = open_log(config)
    build_model(config, log)
    stream = train_stream(config, log)
    header, layout = plan_header(config, log, stream), table_layout(config, log)
    memory = launched_memory(
        layout, header, stream.batch(0), config.train.shuffle_samples, num_servers=config.num_servers,
        kind=kind,
    )  # fmt: skip
    if engine.one_machine:
        check_memory(memory)
    with (
        opened_folder(config, log_digest=log.digest, resume=resume, replace=replace),
        _logs(RunFolder(config.run)) as logs,
        Stop(RunFolder(config.run).stop_file) as stop,
        Processes(logs, engine) as processes,
        display or make_display(console) as display,
    ):
        if resume:
            _bring_shards(config, layout, display.say)
        display.say(in_words(memory))
        display.say(window_in_words(header, stream.batch(0)))
        if not kind.durable:
            display.say(
                "rows are in the memory of the servers: a server that ends takes the run with it (tables.store: disk)"
            )
        supervisor = Supervisor(config, layout, processes, display, stop, stop_after, new_size)
        while True:
            _logger.info("run %s: %d servers, %d workers", config.run, config.num_servers, config.distributed.workers)
            try:
                supervisor.run()
                return 0
            except Resized as resized:
                supervisor.leave(resized.size)
                config = resized.size.of(config)
            except Stopped:
                return supervisor.stop_workers()
            except Failed as failed:
                return _tell(failed.part)
            _bring_shards(config, layout, display.say, resized=True)
            supervisor.take(config)
            if isinstance(engine, ElasticEngine):
                engine.reserve(config)


def _sizing(config: RunConfig, engine: Engine) -> Callable[[], Size | None]:
    """Asked again and again: the size with which the run has to go on, if that is another one."""
    bounds = Bounds.of(config)
    if bounds is None:
        return lambda: None
    if not isinstance(engine, ElasticEngine):
        raise ConfigError("distributed.elastic: the nodes of this engine do not come and go; leave it out, or --on ray")
    if not store_kind(config.tables.store).durable:
        raise ConfigError("distributed.elastic: rows in the memory of servers cannot be moved; use tables.store: disk")
    sizing = Sizing(bounds, config.distributed, time.monotonic())
    return lambda: sizing.decide(engine.room(), time.monotonic())


def check_can_launch(config: RunConfig, *, resume: bool = False) -> None:
    """What would only be found out by a process later."""
    check_device(config.train.device, config.distributed.workers)
    found = shard_folders(config.tables_folder)
    if store_kind(config.tables.store).in_folder and found and len(found) != config.num_servers and not resume:
        raise ConfigError(
            f"{config.tables_folder} holds {counted(len(found), 'shard')}, but this run has "
            f"{counted(config.num_servers, 'server')}; "
            f"give --servers {len(found)}, or another run folder"
        )


def _bring_shards(config: RunConfig, layout: Layout, say: Callable[[str], None], *, resized: bool = False) -> None:
    """Tables in as many shards as there are servers now.

    resized: the run was under way a moment ago. If it has a storage, that has the newest commit, wherever parts were.
    """
    kind, checkpoints = store_kind(config.tables.store), RunFolder(config.run).checkpoints
    if resized and not checkpoint.whole_steps(checkpoints):  # nothing was kept, and some servers may have had no place
        for folder in shard_folders(config.tables_folder):
            shutil.rmtree(folder)
    with copying(config) as stored:
        if stored is not None:
            bring_shards(config, layout, stored, say, trust_here=not resized)
        else:
            reshard(
                config.tables_folder,
                layout,
                config.num_servers,
                partial(checkpoint.open_newest, folder=checkpoints),
                say,
                kind=kind,
            )


@contextmanager
def _logs(folder: RunFolder) -> Iterator[Path]:
    """What the parts print. If a person's mistake ends the run before its first commit, it does not stay."""
    path = folder.path / "logs"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    except InputError:
        if not any(folder.checkpoints.glob("*/*")):
            shutil.rmtree(path, ignore_errors=True)
        raise


def _tell(part: Part) -> int:
    """Says which part failed and how; what a person did wrong is an InputError."""
    if (sentence := part.sentence()) is not None:
        raise InputError(f"{sentence} ({part.name})")
    lines = "\n".join(f"  {line}" for line in part.last_lines())
    print(
        f"foresee: {part.name} {part.how_it_ended()} and everything else was taken down; go on from the last commit "
        f"with --resume; its last lines in {part.output}:\n{lines}",
        file=sys.stderr,
    )
    return 1
