"""The slots of one worker on any torch device, by plain torch operations.

In and out as `cache.SlotCache`. Staged rows are pinned where the device is a GPU, so that their copies run beside
computation. On the CPU it gives the bytes of the fused kernels, which is how it is tested; no GPU has run it yet.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee.arrays import Float32, Int32, Int64
from foresee.engine import torch_kernels
from foresee.engine.cache import SlotTable, shape_of
from foresee.engine.optimizers import Optimizer, at_step
from foresee.engine.planned_step import PlannedStep
from foresee.engine.torch_kernels import TensorHalves, TensorOrder, TensorRows
from foresee.plan.record import Evict, Fetch
from foresee.store.contract import Rows
from foresee.store.layout import Layout


class TorchCache:
    """A cache on a torch device."""

    def __init__(self, layout: Layout, optimizer: Optimizer, *, capacity_rows: int, device: torch.device) -> None:
        self._layout = layout
        self._optimizer = optimizer
        self._device = device
        self._rows = TensorRows(
            torch.zeros(capacity_rows, layout.value_words, device=device),
            torch.zeros(capacity_rows, layout.state_width, device=device),
            torch.zeros(capacity_rows, dtype=torch.int32, device=device),
        )
        self.table = SlotTable(capacity_rows)
        self._halves = TensorHalves.of(layout)

    def fill(self, fetch: Fetch, staging: Rows) -> None:
        self.put(fetch.slot, staging)
        self.table.hold(fetch, staging.versions)

    def embeddings(self, work: PlannedStep, read: Float32 | None = None) -> Tensor:
        record, vectors = work.record, work.vectors
        unique, inverse = self._on_device(record.unique), self._on_device(record.inverse)
        values = self._rows.values
        if read is not None:
            values, unique = torch.from_numpy(read).to(self._device), torch.arange(len(unique), device=self._device)
        if vectors.offsets is None:
            pooled = torch_kernels.gather(values, unique, inverse, self._halves)
        else:
            offsets, mean = self._on_device(vectors.offsets), self._on_device(vectors.mean)
            pooled = torch_kernels.gather_bags(values, unique, inverse, offsets, mean, self._halves)
        return pooled.view(*shape_of(work.batch, vectors), self._layout.width).requires_grad_(record.learns)

    def update(self, work: PlannedStep, gradient: Tensor, positions: Int32 | None = None, *, divisor: int = 1) -> None:
        record = work.record
        torch_kernels.update_rows(
            at_step(self._optimizer, record.step),
            self._rows,
            self._on_device(record.unique),
            gradient.reshape(-1, self._layout.width),
            TensorOrder.of(work.order, self._device),
            version=record.step + 1,
            positions=None if positions is None else self._on_device(positions),
            divisor=divisor,
            halves=self._halves,
            rows=self._row_of_slot(),
        )

    def sums(self, work: PlannedStep, gradient: Tensor, positions: Int32) -> Tensor:
        order, chosen = TensorOrder.of(work.order, self._device), self._on_device(positions)
        return torch_kernels.sum_gradients(gradient.reshape(-1, self._layout.width), order, positions=chosen).cpu()

    def apply(self, slots: Int32, sums: Tensor, *, version: int) -> None:
        torch_kernels.apply_rows(
            at_step(self._optimizer, version - 1),
            self._rows,
            self._on_device(slots),
            sums.to(self._device),
            version=version,
            halves=self._halves,
            rows=self._row_of_slot(),
        )

    def _row_of_slot(self) -> Tensor | None:
        """Only where roundings depend on rows."""
        return None if self._halves is None else self._on_device(self.table.row)

    def put(self, slots: Int32, arrived: Rows) -> None:
        rows = TensorRows(*map(self._on_device, (arrived.values, arrived.state, arrived.versions)))
        torch_kernels.put_rows(self._rows, self._on_device(slots), rows)

    def take(self, evict: Evict) -> Rows:
        taken = self.copy(evict.slot)
        self.table.free(evict.slot)
        return taken

    def changed(self) -> Iterator[tuple[Int64, Rows]]:
        for slots in self.table.changed(self._rows.versions.cpu().numpy(), self._layout.row_bytes):
            yield self.table.row[slots], self.copy(slots)

    def copy(self, slots: Int32) -> Rows:
        taken = torch_kernels.take_rows(self._rows, self._on_device(slots))
        return Rows(taken.values.cpu().numpy(), taken.state.cpu().numpy(), taken.versions.cpu().numpy())

    def _on_device(self, array: NDArray[np.generic]) -> Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)
