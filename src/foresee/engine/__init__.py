"""Executes a plan, and decides nothing.

`Run` owns the state of a step, `Step` is the handle a user gets, `Pipeline` overlaps reading, training and write-back.
`cache` holds rows in the slots that the plan assigns, `kernels` gather and update them, `optimizers` say how a row
learns, `exchange` carries rows and gradients between workers, `planner_service` plans for all workers in one process,
and `trace` records spans.

Knows neither log formats nor config files; of `data` it uses the batch types only. Every read checks versions.
"""
