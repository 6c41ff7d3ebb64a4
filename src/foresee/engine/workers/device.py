"""Where a worker's model computes: on the CPU, or each on a GPU of its own.

In: `train.device`, and which worker of its machine this is. Out: a device with its number, or a sentence. Rows, pulses
and barriers go over gloo in either case; only dense gradients are on the device, and are summed over NCCL there.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from foresee.errors import ConfigError

CPU, CUDA = "cpu", "cuda"


def check_device(name: str, num_workers_here: int, count: Callable[[], int] = torch.cuda.device_count) -> None:
    """Refuses what several workers cannot train on, before any of them is there. Touches no GPU."""
    if name == CPU:
        return
    if name != CUDA:
        raise ConfigError(
            f"train.device: several workers train on cpu, or on cuda with a GPU for each, not on {name!r}; set it to "
            "one of these, or train in one process"
        )
    if (found := count()) < num_workers_here:
        raise ConfigError(
            f"train.device: {num_workers_here} workers on this machine need as many GPUs, torch finds {found}; "
            "set it to cpu, or start fewer workers"
        )


def local_rank(rank: int) -> int:
    """Which worker of its machine this is: torchrun says so, and the launcher has only one machine."""
    return int(os.environ.get("LOCAL_RANK", rank))


def worker_device(
    name: str, rank: int, count: Callable[[], int] = torch.cuda.device_count,
    choose: Callable[[int], None] = torch.cuda.set_device,
) -> torch.device:  # fmt: skip
    """The device of this worker; from now on it is the one that "cuda" means in this thread."""
    here = local_rank(rank)
    check_device(name, here + 1, count)
    if name == CPU:
        return torch.device(CPU)
    choose(here)
    return torch.device(CUDA, here)
