"""Engines by name: where `foresee train --on NAME` starts the parts of a run.

In: a configuration, a name, and the address of a cluster for engines that have one. Out: an open `Engine`. One of
another package is added by `ENGINES.add`, or by an entry point in the group `foresee.engines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from foresee.errors import ConfigError
from foresee.io.machine import scratch_folder
from foresee.launch import processes
from foresee.launch.engine import Engine
from foresee.registry import Registry
from foresee.run.config import RunConfig

Opening = Callable[[RunConfig, str | None], AbstractContextManager[Engine]]
"""From a configuration and the address of a cluster; None: none was given."""


@contextmanager
def _local(config: RunConfig, address: str | None) -> Iterator[Engine]:
    if address is not None:
        raise ConfigError(f"--address {address} is for an engine that has one; give --on ray, or leave it out")
    num_workers = config.distributed.workers
    with (
        processes.starting(num_workers, [config.tables.optimizer.name]) as start,
        scratch_folder() as scratch,
    ):
        yield processes.LocalEngine(start, scratch, num_workers)


@contextmanager
def _ray(config: RunConfig, address: str | None) -> Iterator[Engine]:
    from foresee.launch.ray_engine import RayEngine

    with RayEngine(config, address) as engine:
        yield engine


def _check(name: str, thing: object) -> None:
    if not callable(thing):
        raise ConfigError(f"the engine {name!r} is no function; register one that opens an Engine from a configuration")


ENGINES: Registry[Opening] = Registry("engine", "foresee.engines", _check)
ENGINES.add("local", _local)
ENGINES.add("ray", _ray)


def opened(config: RunConfig, on: str, address: str | None) -> AbstractContextManager[Engine]:
    return ENGINES.find(on, "--on")(config, address)
