"""Settings of torch that a run needs for equal bytes: the number of threads, and algorithms that do not race.

They belong to the whole process, so the settings of before come back when the run ends.

With several threads torch adds the gradient of `weights[ids]` with atomic additions, in the order in which threads
happen to get there (`index_put_` and `put_` with `accumulate=True`, float32, from 32,768 values on). Its deterministic
algorithms add in the order of the ids. An operation that has no deterministic algorithm, such as `put_` with an index
that occurs twice, still runs, and torch warns of it by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic

NOT_DETERMINISTIC = (
    "two in-memory runs of this model differ: the model's own arithmetic is not deterministic, so this says nothing "
    'about plan, cache and store; see "Models of your own" in docs/consistency.md'
)


@contextmanager
def torch_settings(num_threads: int | None) -> Iterator[int]:
    """Train in the block with so many threads of torch, and with deterministic algorithms.

    Args:
        num_threads: Threads of one operation. None: as many as torch uses already.

    Yields:
        The number of threads.
    """
    threads_before, mode_before = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    memory: Any = deterministic
    fill_before = memory.fill_uninitialized_memory
    torch.set_num_threads(num_threads or threads_before)
    if not torch.are_deterministic_algorithms_enabled():  # who chose them chose also between warnings and errors
        torch.set_deterministic_debug_mode("warn")
        memory.fill_uninitialized_memory = False  # no result depends on it, and filling takes time
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(threads_before)
        torch.set_deterministic_debug_mode(mode_before)
        memory.fill_uninitialized_memory = fill_before
