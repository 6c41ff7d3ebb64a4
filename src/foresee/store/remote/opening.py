"""How a run begins at its servers: all of them go to one commit, and give up everything after it.

In: the addresses of all servers, a name for this start of all trainers, and the steps whose dense half is there. Out:
the step at which all servers are now. Servers stay up: one that still holds rows of an interrupted run rolls them back,
and one that has only prepared the commit settles it. Worker 0 does this before any trainer joins.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict

from foresee.errors import StoreError
from foresee.store.commits import OpenAt, loses_everything, step_to_open
from foresee.store.contract import Layout
from foresee.store.remote import protocol
from foresee.store.remote.agreement import check_belonging
from foresee.store.remote.endpoint import Endpoint, ask_once, ask_patiently

OPEN_SECONDS = 600.0
"""A server may have to fold a commit first."""


def open_run(
    endpoints: Sequence[Endpoint], layout: Layout, *, run: str, num_workers: int, manifests: Collection[int],
    started: int = 0, fresh: bool = False, deadline_seconds: float = 60.0,
) -> int:  # fmt: skip
    """Opens all servers at the newest commit whose dense half is there and that all of them have.

    started: when this process was, in milliseconds: one that was given up is older than the one that replaced it.
    fresh: a new run, which refuses servers that hold the commits of another.
    """
    deadline = time.monotonic() + deadline_seconds
    described = {it.address: ask_once(it, protocol.DESCRIBE, {}, deadline) for it in endpoints}
    check_belonging(described, layout)
    parts = {address: protocol.part_from_dict(description) for address, description in described.items()}
    held = max(part.newest for part in parts.values())
    if fresh and held:
        raise StoreError(
            f"the servers hold the state after step {held}, but this run begins anew; "
            "go on with --resume, or start servers with new folders"
        )
    step = step_to_open(manifests, [part.openable for part in parts.values()])
    if step is None or loses_everything(step, parts.values()):
        kept = "; ".join(f"{address}: {_listed(part.openable)}" for address, part in parts.items())
        raise StoreError(
            f"no commit is complete: the dense half is kept of step {_listed(manifests) or '0'}, the servers have "
            f"{kept}; start the servers with the folders of this run, or start anew"
        )
    for endpoint in endpoints:
        part = parts[endpoint.address]
        message = OpenAt(run=run, incarnation=part.incarnation, epoch=part.epoch, step=step, started=started)
        content = {**asdict(message), "num_workers": num_workers}
        ask_patiently(endpoint, protocol.OPEN_AT, content, OPEN_SECONDS, f"the opening at step {step}")
    return step


def _listed(steps: Collection[int]) -> str:
    return ", ".join(map(str, sorted(steps)))
