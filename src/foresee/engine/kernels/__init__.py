"""The fused CPU kernels: gather, gradient sum and update, copies, on the slots a plan assigned.

In: numpy arrays (views of CPU tensors) and a record's `unique` and `inverse`. Out: the same arrays, changed in place.
All kernels release the GIL, allocate next to nothing, and give the same bits whatever the slot numbers and the number
of threads are. `torch_kernels` offers the same operations for tensors on any device.

    gather, gather_bags    rows of the cache → one row for each lookup or bag          rows.py
    order_lookups          inverse → which gradients belong to which row               order.py
    update_rows            gradients → summed by row → optimiser step                  update.py, steps.py
    sum_gradients          only the sums            apply_rows   only the step         update.py
    take_rows, put_rows    cache ↔ staging buffers                                     rows.py
    zeroed_rows            memory for a cache                                          arrays.py
    Threads                share a kernel's work among a few threads                   check.py
"""

from foresee.arrays import zeroed_rows
from foresee.engine.kernels.check import ONE_THREAD, Threads
from foresee.engine.kernels.order import LookupOrder, order_lookups
from foresee.engine.kernels.rows import gather, gather_bags, put_rows, take_rows
from foresee.engine.kernels.update import apply_rows, sum_gradients, update_rows

__all__ = [
    "ONE_THREAD",
    "LookupOrder",
    "Threads",
    "apply_rows",
    "gather",
    "gather_bags",
    "order_lookups",
    "put_rows",
    "sum_gradients",
    "take_rows",
    "update_rows",
    "zeroed_rows",
]
