"""How many trainers and servers a run has while nodes of its cluster come and go. Pure: rooms in, a `Size` out.

    nodes have gone    parts wait for a place. After a while the run goes on with as many as fit, from its last commit
    nodes have come    more would fit. The run commits, and goes on with them, not more often than every so many seconds

Trainers are given places before servers: they are what a step waits for. No size is below the least that was asked for,
or above what was wanted; a room that is too small for the least is no reason to do anything but wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from foresee.io.units import counted
from foresee.run.config import DistributedConfig, RunConfig

Resources = Mapping[str, float]
SETTLED_SECONDS = 5.0
"""More room counts once it has been there for so long: nodes seldom come alone."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a run."""

    workers: int
    servers: int

    def of(self, config: RunConfig) -> RunConfig:
        """The run with this size."""
        sized = config.distributed.model_copy(update={"workers": self.workers, "servers": self.servers})
        return config.model_copy(update={"distributed": sized})

    def __str__(self) -> str:
        return f"{counted(self.workers, 'worker')} and {counted(self.servers, 'server')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a cluster has for a run, beside what it has given to others."""

    nodes: Sequence[Resources]
    waiting: bool
    """A part of the run has no place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a person asked for."""

    wanted: Size
    least: Size
    after_seconds: float
    every_seconds: float

    @classmethod
    def of(cls, config: RunConfig) -> Bounds | None:
        """None: the size stays as it is."""
        elastic, wanted = config.distributed.elastic, Size(config.distributed.workers, config.num_servers)
        if not (elastic.workers_min or elastic.servers_min):
            return None
        least = Size(
            min(elastic.workers_min or wanted.workers, wanted.workers),
            min(elastic.servers_min or wanted.servers, wanted.servers),
        )
        return cls(wanted=wanted, least=least, after_seconds=elastic.after_seconds, every_seconds=elastic.every_seconds)


def largest(nodes: Sequence[Resources], bounds: Bounds, needs: DistributedConfig) -> Size | None:
    """The size that these nodes have room for; None: not even the least."""
    least, wanted = bounds.least, bounds.wanted
    sizes = [Size(it, least.servers) for it in range(wanted.workers, least.workers - 1, -1)]
    found = next((it for it in sizes if _packs(nodes, it, needs)), None)
    if found is None:
        return None
    more = [Size(found.workers, it) for it in range(wanted.servers, least.servers, -1)]
    return next((it for it in more if _packs(nodes, it, needs)), found)


class Sizing:
    """Told of the room again and again; says when to change, and to what."""

    def __init__(self, bounds: Bounds, needs: DistributedConfig, now: float) -> None:
        self._bounds, self._needs, self.size = bounds, needs, bounds.wanted
        self._changed = now
        self._waiting_since = self._roomy_since = None  # type: float | None

    def decide(self, room: Room, now: float) -> Size | None:
        """The size to take now; None: go on. Whoever asks carries it out."""
        fits = largest(room.nodes, self._bounds, self._needs)
        self._waiting_since = _since(self._waiting_since, room.waiting, now)
        more = fits is not None and not room.waiting and fits != self.size and _covers(fits, self.size)
        self._roomy_since = _since(self._roomy_since, more, now)
        if fits is None or fits == self.size or not (self._lacks(now) or self._may_grow(now)):
            return None
        self.size, self._changed, self._waiting_since, self._roomy_since = fits, now, None, None
        return fits

    def _lacks(self, now: float) -> bool:
        return self._waiting_since is not None and now - self._waiting_since >= self._bounds.after_seconds

    def _may_grow(self, now: float) -> bool:
        settled = self._roomy_since is not None and now - self._roomy_since >= SETTLED_SECONDS
        return settled and now - self._changed >= self._bounds.every_seconds


def _since(since: float | None, holds: bool, now: float) -> float | None:
    """Since when something holds without a break."""
    return None if not holds else now if since is None else since


def _covers(one: Size, other: Size) -> bool:
    return one.workers >= other.workers and one.servers >= other.servers


def _packs(nodes: Sequence[Resources], size: Size, needs: DistributedConfig) -> bool:
    """Whether every part finds a node with what it needs left: the largest first, each where it fits first."""
    left = [dict(node) for node in nodes]
    return all(any(_take(node, part) for node in left) for part in sorted(_parts(size, needs), key=_weight))


def _parts(size: Size, needs: DistributedConfig) -> Iterator[Resources]:
    wanted = needs.resources
    yield wanted.planner
    yield from [wanted.server] * size.servers
    yield from [wanted.worker] * size.workers


def _weight(part: Resources) -> float:
    return -sum(part.values())


def _take(node: dict[str, float], part: Resources) -> bool:
    if any(node.get(name, 0.0) < amount for name, amount in part.items()):
        return False
    for name, amount in part.items():
        node[name] -= amount
    return True
