"""What workers share besides rows: gradients of the dense part, and what they agree on after every step.

In: `train.device`, which worker of its machine this is, and a module that is the same on every worker. Out: a device
with its number, or a sentence; a module whose backward leaves the mean gradient of all workers. Rows and control
messages go over gloo; only dense gradients are on the device, and are summed over NCCL there. The GPU part of this has
not been run on a GPU. `StepSync` gives all workers the same answer (`Agreed`): was one asked to stop, is it time to
commit, the loss. The answer is that of the step before: it travels while the next step computes.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock
from types import TracebackType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from foresee.engine.exchange.mesh import PATIENCE_SECONDS, collective, peer_lost
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


_KNOWN = inspect.signature(DistributedDataParallel.__init__).parameters
SENDS_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers"
"""What torch calls it, by its version."""


class Sums:
    """The sums of dense gradients that are on the link just now. Any thread may wait until there is none.

    Use it as a context manager around all that workers do together: a RuntimeError out of `backward` is the loss of a
    peer if one of these sums broke, and so is one that was raised inside torch.distributed.
    """

    def __init__(self) -> None:
        self._lock, self._num_under_way = Lock(), 0
        self._none = Event()
        self._none.set()
        self.broken: BaseException | None = None
        """What the first sum that broke was told."""

    def __enter__(self) -> Sums:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, RuntimeError) and (self.broken is not None or _raised_in_collective(error)):
            raise peer_lost(self.broken or error) from error

    @property
    def under_way(self) -> bool:
        return not self._none.is_set()

    def wait(self) -> None:
        """Only an order, nothing depends on it: after `PATIENCE_SECONDS` a waiting thread goes on."""
        self._none.wait(PATIENCE_SECONDS)

    def begin(self) -> None:
        with self._lock:
            self._num_under_way += 1
            self._none.clear()

    def end(self, broken: BaseException | None = None) -> None:
        with self._lock:
            self.broken = self.broken or broken
            self._num_under_way -= 1
            if not self._num_under_way:
                self._none.set()


def _raised_in_collective(error: BaseException) -> bool:
    """Whether the innermost call of Python was one of torch.distributed, or DDP's of it to send buffers round."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    module = str(trace.tb_frame.f_globals.get("__name__"))
    sends_buffers = trace.tb_frame.f_code.co_name == DistributedDataParallel._distributed_broadcast_coalesced.__name__
    return module.startswith("torch.distributed") or (module == DistributedDataParallel.__module__ and sends_buffers)


def dense_group(device: torch.device) -> dist.ProcessGroup | None:
    """Over whom dense gradients are summed: NCCL where they are on GPUs, else the default group, which is gloo.

    Call it on every worker at the same point. Rows never go over NCCL: their owner sums them in its own memory, and two
    exchanges of rows beside a sum would be three communicators at once, which NCCL lets nobody use in any order.
    """
    return dist.new_group(backend="nccl") if device.type == "cuda" else None


def shared(model: nn.Module, sums: Sums | None = None, group: dist.ProcessGroup | None = None) -> nn.Module:
    """Call it on every worker at the same point; the process group must be there.

    Buffers that hold no floating-point numbers (indices, masks) do not change in training. To send them round before
    every forward, as torch does unless told otherwise, would let each step begin with a wait for the link.
    """
    learned = any(buffer.is_floating_point() for buffer in model.buffers())
    options: dict[str, Any] = {} if learned else {SENDS_BUFFERS: False}
    together = DistributedDataParallel(model, process_group=group, **options)
    # A lambda, as torch compares annotations with its own classes, and ours are words.
    together.register_comm_hook(sums or Sums(), lambda sums, bucket: _average(sums, bucket, group))
    _fix_buckets(together)
    return together


class _TouchAll(nn.Module):
    """In the place of a model: uses every parameter once, in their order."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model  # whose buffers DDP sends round before any forward

    def forward(self) -> Tensor:
        return torch.stack([it.sum() for it in self.model.parameters() if it.requires_grad]).sum()


def _fix_buckets(together: DistributedDataParallel) -> None:
    """Let DDP lay out its buckets before the first step, in an order that follows from the model alone.

    DDP lays them out anew after its first backward, and an all-reduce of three or more workers adds the elements of a
    bucket in an order that depends on where they are in it. Otherwise the first step after a restart would differ in
    its last bits from the same step of a run that was never interrupted.
    """
    model = together.module
    together.module = _TouchAll(model)
    together().backward()
    together.module = model
    model.zero_grad()


def _average(sums: Sums, bucket: GradBucket, group: dist.ProcessGroup | None) -> Future[Tensor]:
    """What torch does with a bucket of gradients, seen by `sums`."""
    sums.begin()
    gradients = bucket.buffer().div_(dist.get_world_size())
    try:
        summing = dist.all_reduce(gradients, group=group, async_op=True)
    except RuntimeError as error:
        sums.end(error)
        raise
    assert summing is not None

    def averaged(summed: Future[list[Tensor]]) -> Tensor:
        try:
            total = summed.value()[0]
        except RuntimeError as error:  # torch makes another one of it, out of which nothing can be told
            sums.end(error)
            raise
        sums.end()
        return total

    result: Future[Tensor] = summing.get_future().then(averaged)
    return result


def of_all_workers(array: NDArray[Any]) -> list[NDArray[Any]]:
    """The arrays of all workers, which may differ in their first dimension; all call it at the same point."""
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    own = torch.from_numpy(np.ascontiguousarray(array))
    with collective():
        dist.all_gather(sizes, torch.tensor([len(own)]))
        padded = torch.zeros(int(max(sizes)), *own.shape[1:], dtype=own.dtype)
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
    return [part.numpy()[: int(size)] for part, size in zip(parts, sizes, strict=True)]


def sum_of_all_workers(numbers: list[float]) -> list[float]:
    """Number by number; all call it at the same point."""
    total = torch.tensor(numbers, dtype=torch.float64)
    with collective():
        dist.all_reduce(total)
    summed: list[float] = total.tolist()
    return summed


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What all workers know of the step before."""

    stop: bool = False
    commit: bool = False
    show: bool = False
    """Worker 0 wants to show progress, for which all give their figures."""
    loss: float | None = None
    """Mean over the samples of all workers; None before there was a step."""


class StepSync:
    """Every worker makes it at the same point of its program and calls `agree` after every step."""

    def __init__(self) -> None:
        with collective():
            self._group = dist.new_group()
        self._numbers = torch.zeros(4, dtype=torch.float64)
        self._travelling: Any = None

    def agree(self, *, stop: bool, commit: bool, loss: float, show: bool = False) -> Agreed:
        """Takes part in the exchange of this step; returns what came of the one before."""
        agreed = self._receive()
        self._numbers = torch.tensor([float(stop), float(commit), float(show), loss], dtype=torch.float64)
        with collective():
            self._travelling = dist.all_reduce(self._numbers, group=self._group, async_op=True)
        return agreed

    def close(self) -> None:
        """Waits for the last exchange."""
        self._receive()

    def _receive(self) -> Agreed:
        if self._travelling is None:
            return Agreed()
        with collective():
            self._travelling.wait()
        self._travelling = None
        stop, commit, show, loss = self._numbers.tolist()
        return Agreed(stop=stop > 0, commit=commit > 0, show=show > 0, loss=loss / dist.get_world_size())
