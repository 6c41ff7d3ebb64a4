"""The dense half of a model that several workers train: its gradients are averaged while backward goes on.

In: a module that is the same on every worker. Out: one whose backward leaves the mean gradient of all of them.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

_KNOWN = inspect.signature(DistributedDataParallel.__init__).parameters
SENDS_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers"
"""What torch calls it, by its version."""


def shared(model: nn.Module) -> nn.Module:
    """Call it on every worker at the same point; the process group must be there.

    Buffers that hold no floating-point numbers (indices, masks) do not change in training. To send them round before
    every forward, as torch does unless told otherwise, would let each step begin with a wait for the link.
    """
    learned = any(buffer.is_floating_point() for buffer in model.buffers())
    options: dict[str, Any] = {} if learned else {SENDS_BUFFERS: False}
    return DistributedDataParallel(model, **options)
