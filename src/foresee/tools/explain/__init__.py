"""Why a plan does what it does: one row's life, or one step, as figures first and then as sentences.

    explain     the two questions; TABLE:ID to a row, and back to the value that the log knew it by
    following   records in, the rows they speak of out: who used, fetched, sent, received and gave up which row
    row_life    everything that happened to one row
    step_account  everything that one step did and waited for
    row_words, step_words  both, as sentences; `strip` draws a row's life in one line

In: a run's plan, made from its configuration. Out: a `RowLife` or a `StepAccount`. The plan is made again from the log,
or read from the saved file: nothing is trained, opened for writing, or guessed.
"""

from foresee.tools.explain.explain import RowNames, RunPlan, explain_row, explain_step
from foresee.tools.explain.row_life import RowLife
from foresee.tools.explain.step_account import StepAccount

__all__ = ["RowLife", "RowNames", "RunPlan", "StepAccount", "explain_row", "explain_step"]
