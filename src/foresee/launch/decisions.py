"""What a launcher does when parts of its run have ended. Pure: parts in, a `RestartDecision` out.

    a planner ends     it is started again; it plans the same again, and trainers go on with the steps they have in hand
    a trainer ends     all trainers are started again and go on from the last commit, to which the servers roll back
    a server ends      it is started again on its folder, and then as for a trainer; a server in memory is gone for good

A part that ended by itself with an error would do so again, so that only a signal, or the loss of another part, is a
reason to start anything again. Where one was ended by a signal, whatever others say then is taken for a consequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from foresee.errors import INTERRUPTED_CODE, TERMINATED_CODE, UNAVAILABLE_CODE
from foresee.io.units import counted
from foresee.run.config import DistributedConfig, RunConfig

STOPPED_CODES = (INTERRUPTED_CODE, TERMINATED_CODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A part that has ended before it should."""

    name: str
    role: str
    """server, planner or worker."""
    code: int
    """Its exit code, or minus a signal."""

    @property
    def by_itself(self) -> bool:
        """With an error of its own."""
        return self.code > 0 and self.code != UNAVAILABLE_CODE and self.code not in STOPPED_CODES

    @property
    def by_others(self) -> bool:
        """By a signal; a server or planner that ends in peace was told to by somebody."""
        return self.code <= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDecision:
    """What has to be started again; nothing: the run cannot be helped."""

    planner: bool = False
    servers: tuple[str, ...] = ()
    trainers: bool = False

    @property
    def possible(self) -> bool:
        return self.planner or self.trainers


def decide_restart(ended: Sequence[Ended], *, servers_on_disk: bool, lost_in_a_row: int = 0) -> RestartDecision:
    """`lost_in_a_row`: how often trainers have lost another that had not ended, one time after the other."""
    if any(it.by_itself for it in ended) and not any(it.by_others for it in ended):
        return RestartDecision()
    servers = tuple(it.name for it in ended if it.role == "server")
    if servers and not servers_on_disk:
        return RestartDecision()
    return RestartDecision(
        planner=any(it.role == "planner" for it in ended) or lost_in_a_row > 1,
        servers=servers,
        trainers=bool(servers) or any(it.role == "worker" for it in ended),
    )


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
