"""Why a plan does what it does: one row's life, or one step, as figures first and then as sentences.

    explain    the two questions; names of rows; a run's plan, replayed into rows
    figures    everything that happened to one row, or in one step
    measured   how long a recorded step took and what it waited for
    paper_log  where the rows of a fetch lay in the store's log
    sentences  the figures as sentences; `strip` draws a row's life in one line

In: a run's plan, made from its configuration. Out: a `RowLife` or a `StepAccount`. The plan is made again from the log,
or read from the saved file: nothing is trained, opened for writing, or guessed.
"""

from foresee.tools.explain.explain import RowNames, RunPlan, explain_row, explain_step
from foresee.tools.explain.figures import RowLife, StepAccount

__all__ = ["RowLife", "RowNames", "RunPlan", "StepAccount", "explain_row", "explain_step"]
