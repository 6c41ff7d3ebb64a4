"""Which servers a gang's GPUs are on.

In: the gangs of a round and where they were before. Out: for each gang, GPUs per server.
A gang that goes on keeps its place, so nobody is moved; a new gang takes the fewest servers that hold it, and of
those the fullest that suffice, largest gangs first.
Never: refuse a gang; capacity is the caller's matter, spreading only costs speed.
"""

from __future__ import annotations

from collections.abc import Mapping

from foresee.cluster.job import Cluster

Placement = dict[str, tuple[tuple[int, int], ...]]
"""Job id -> ((server, GPUs), ...). Empty tuple: one flat pool, place does not matter."""


def place(gangs: Mapping[str, int], previous: Placement, cluster: Cluster) -> Placement:
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


def speed_of(seats: tuple[tuple[int, int], ...], cluster: Cluster) -> float:
    """1 for a gang that is as close together as it can be, less by the locality penalty if it is spread further."""
    if cluster.gpus_per_server is None or not seats:
        return 1.0
    gang = sum(gpus for _, gpus in seats)
    fewest = -(-gang // cluster.gpus_per_server)
    return 1.0 if len(seats) <= fewest else 1.0 - cluster.locality_penalty


def _servers(gpus: int, gpus_per_server: int) -> list[int]:
    whole, rest = divmod(gpus, gpus_per_server)
    return [gpus_per_server] * whole + ([rest] if rest else [])


def _seats(free: list[int], gang: int) -> tuple[tuple[int, int], ...]:
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


def _take(free: list[int], seats: tuple[tuple[int, int], ...]) -> None:
    for server, gpus in seats:
        free[server] -= gpus
