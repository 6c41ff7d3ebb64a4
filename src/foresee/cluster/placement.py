"""Which gangs run in a round, and on which servers.

In: an order of gangs, and where they were before. Out: for each gang that runs, GPUs per server.
A gang goes on where it is; a new one takes the fewest servers that hold it, and of those the fullest that suffice.
Where a spread gang loses speed, one that could only be spread lets those behind it pass that fit as they should, for
as long as its wait is shorter than the time spreading would cost; what is free in the end goes to whoever fits. And a
gang that is spread moves together when there is room and the time it wins is ten restarts.
Never: leave GPUs idle that a waiting gang could use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from foresee.cluster.job import Cluster

Seats = tuple[tuple[int, int], ...]
"""((server, GPUs), ...). Empty: one flat pool, place does not matter."""
Placement = dict[str, Seats]

RESTARTS_TO_MOVE = 10.0


def fill(order: Iterable[str], gpus_of: Mapping[str, int], gpus: int) -> tuple[str, ...]:
    """Take jobs in order while they fit whole; a gang that does not fit is skipped, the next may still fit."""
    chosen: list[str] = []
    for id in order:
        if gpus_of[id] <= gpus:
            chosen.append(id)
            gpus -= gpus_of[id]
            if gpus == 0:
                break
    return tuple(chosen)


def choose(
    order: Iterable[str],
    gpus_of: Mapping[str, int],
    previous: Placement,
    cluster: Cluster,
    *,
    spread_cost_seconds: Callable[[str], float],
    waited_seconds: Callable[[str], float],
) -> Placement:
    """Who runs and where. `spread_cost_seconds` is the time a gang would lose in all by being spread."""
    order = list(dict.fromkeys(order))
    if cluster.gpus_per_server is None or not cluster.locality_penalty:
        return place({id: gpus_of[id] for id in fill(order, gpus_of, cluster.gpus)}, previous, cluster)
    free = _servers(cluster.gpus, cluster.gpus_per_server)
    placed: Placement = {}
    for id in fill(order, gpus_of, cluster.gpus):
        if previous.get(id):
            placed[id] = previous[id]
            _take(free, placed[id])
    for id in [id for id, seats in placed.items() if _is_spread(seats, cluster)]:
        _give_back(free, placed[id])
        seats = _seats(free, gpus_of[id])
        worth = spread_cost_seconds(id) > RESTARTS_TO_MOVE * cluster.restart_seconds
        placed[id] = seats if worth and not _is_spread(seats, cluster) else placed[id]
        _take(free, placed[id])
    for patient in (True, False):
        for id in order:
            if id in placed or gpus_of[id] > sum(free):
                continue
            seats = _seats(free, gpus_of[id])
            if patient and _is_spread(seats, cluster) and waited_seconds(id) < spread_cost_seconds(id):
                continue
            placed[id] = seats
            _take(free, seats)
    return placed


def place(gangs: Mapping[str, int], previous: Placement, cluster: Cluster) -> Placement:
    """Seats for gangs that are known to fit, largest first."""
    if cluster.gpus_per_server is None:
        return dict.fromkeys(gangs, ())
    free = _servers(cluster.gpus, cluster.gpus_per_server)
    placed: Placement = {id: previous[id] for id in gangs if previous.get(id)}
    for seats in placed.values():
        _take(free, seats)
    for id in sorted((id for id in gangs if id not in placed), key=lambda id: -gangs[id]):
        placed[id] = _seats(free, gangs[id])
        _take(free, placed[id])
    return placed


def speed_of(seats: Seats, cluster: Cluster) -> float:
    """1 for a gang that is as close together as it can be, less by the locality penalty if it is spread further."""
    return 1.0 - cluster.locality_penalty if _is_spread(seats, cluster) else 1.0


def _is_spread(seats: Seats, cluster: Cluster) -> bool:
    if cluster.gpus_per_server is None or not seats:
        return False
    gang = sum(gpus for _, gpus in seats)
    return len(seats) > -(-gang // cluster.gpus_per_server)


def _servers(gpus: int, gpus_per_server: int) -> list[int]:
    whole, rest = divmod(gpus, gpus_per_server)
    return [gpus_per_server] * whole + ([rest] if rest else [])


def _seats(free: list[int], gang: int) -> Seats:
    """Best fit: the tightest server that holds what is left, else the emptiest, until the gang is seated."""
    seats: list[tuple[int, int]] = []
    free = list(free)
    while gang:
        enough = [server for server, gpus in enumerate(free) if gpus >= gang]
        server = min(enough, key=lambda s: free[s]) if enough else max(range(len(free)), key=lambda s: free[s])
        seats.append((server, min(gang, free[server])))
        gang -= seats[-1][1]
        free[server] -= seats[-1][1]
    return tuple(seats)


def _take(free: list[int], seats: Seats) -> None:
    for server, gpus in seats:
        free[server] -= gpus


def _give_back(free: list[int], seats: Seats) -> None:
    for server, gpus in seats:
        free[server] += gpus
