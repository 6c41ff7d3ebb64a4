"""How a run begins at its servers: all of them go to one commit, and give up everything after it.

In: the addresses of all servers, a name for this start of all trainers, and the steps whose dense half is there. Out:
the step at which all servers are now. Trainers may be started before their servers: who is not up yet is waited for, a
while. Servers stay up: one that still holds rows of an interrupted run rolls them back,
and one that has only prepared the commit settles it. Worker 0 does this before any trainer joins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict

from pyarrow import flight

from foresee.errors import StoreError
from foresee.store.commits import OpenAt, loses_everything, step_to_open
from foresee.store.contract import Layout
from foresee.store.remote import protocol
from foresee.store.remote.agreement import check_belonging
from foresee.store.remote.endpoint import PAUSE_SECONDS, TRANSPORT_ERRORS, Endpoint, ask_once, ask_patiently, cause_of

OPEN_SECONDS = 600.0
"""A server may have to fold a commit first."""
START_SECONDS = 120.0
"""How long servers that are started beside their trainers may take until they listen."""


def await_servers(
    endpoints: Sequence[Endpoint], say: Callable[[str], None], *, patience_seconds: float = START_SECONDS
) -> None:
    """Returns when all servers answer. Each that is not up yet is named, and waited for until all patience is gone."""
    deadline = time.monotonic() + patience_seconds
    for endpoint in endpoints:
        told = False
        while (cause := _absence(endpoint, deadline)) is not None:
            if time.monotonic() + PAUSE_SECONDS > deadline:
                raise StoreError(
                    f"server {endpoint.address} did not come up within {patience_seconds:.0f} s ({cause}); start it "
                    "with `foresee serve`, see that address and port are its own, then start the workers again"
                )
            if not told:
                say(f"waiting for server {endpoint.address}, up to {deadline - time.monotonic():.0f} s")
                told = True
            time.sleep(PAUSE_SECONDS)


def _absence(endpoint: Endpoint, deadline: float) -> str | None:
    """Why the server cannot be reached yet; None if it answers."""
    client, begun = endpoint.client(), time.monotonic()
    try:
        endpoint.ask(client, protocol.DESCRIBE, {}, deadline)
    except flight.FlightUnavailableError as error:
        return cause_of(error)
    except TRANSPORT_ERRORS as error:
        raise endpoint.sentence(error, "the first question", time.monotonic() - begun) from error
    finally:
        client.close()
    return None


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
