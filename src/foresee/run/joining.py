"""How trainers of a person's own loop meet: a process group, a word from trainer 0 to all, servers at one commit.

In: torchrun's environment, addresses. Out: a gloo group, the same text everywhere, servers that are open for a run. No
objects travel, only bytes: what others send is never run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from foresee.engine.exchange.mesh import collective
from foresee.errors import UsageError
from foresee.store.layout import Layout
from foresee.store.remote import protocol
from foresee.store.remote.opening import about, await_servers, open_run
from foresee.store.rpc.endpoint import Endpoint, ask_once

PEER_SECONDS = 1800.0
"""How long a trainer waits for another: as long as one may take to evaluate for all."""
OPEN_SECONDS = 60.0
END_SECONDS = 1.0


def join(*, own_machine: bool) -> bool:
    """Meets the other trainers, if the program has not done so by itself; alone without torchrun."""
    num_trainers = int(os.environ.get("WORLD_SIZE", "1"))
    if own_machine and int(os.environ.get("LOCAL_WORLD_SIZE", num_trainers)) < num_trainers:
        raise UsageError(
            "trainers on several machines need servers and a planner that all of them can reach; start `foresee serve` "
            "and `Trainers.plan`, and give their addresses as servers= and planner="
        )
    if dist.is_initialized():
        if dist.get_backend() != "gloo":
            raise UsageError("rows travel over gloo; say init_process_group('gloo'), or leave it to Trainers")
        return False
    patience = timedelta(seconds=PEER_SECONDS)
    with collective():
        if "RANK" in os.environ:
            dist.init_process_group("gloo", timeout=patience)
        else:
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1, timeout=patience)
    return True


def told_to_all(text: str) -> str:
    """What trainer 0 says."""
    content = text.encode()
    length = torch.tensor([len(content)])
    dist.broadcast(length, 0)
    letters = torch.zeros(int(length.item()), dtype=torch.uint8)
    if dist.get_rank() == 0 and content:
        letters = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    dist.broadcast(letters, 0)
    return bytes(letters.tolist()).decode()


def open_servers(endpoints: Sequence[Endpoint], layout: Layout, name: str, num_trainers: int) -> None:
    """Brings all servers to their last commit, which all have the rows of; the dense half was saved before it."""
    await_servers(endpoints, print)
    deadline = time.monotonic() + OPEN_SECONDS
    widths = [group.width if layout.widths else None for group in layout.groups]
    asked = [about(endpoint, width) for endpoint in endpoints for width in widths]
    parts = [protocol.part_from_dict(ask_once(it, protocol.DESCRIBE, {}, deadline)) for it in asked]
    open_run(
        endpoints, layout, run=name, num_workers=num_trainers, manifests={part.committed for part in parts},
        started=time.time_ns() // 1_000_000,
    )  # fmt: skip


def shut_down(server: Any) -> None:
    """Connections are over by now; one that hangs must not hold up the end."""
    thread = threading.Thread(target=server.shutdown, daemon=True)
    thread.start()
    thread.join(END_SECONDS)
