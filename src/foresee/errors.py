"""Everything Foresee raises on purpose.

    ForeseeError                 one sentence: what was wrong, where, what to do
    ├── InputError               the person's input: files, configs, options (commands exit with 2)
    │   ├── DataError            a log, or a line of it, is not what was promised
    │   ├── ConfigError          a run file or an override is not valid
    │   ├── PlanError            this plan cannot be made, or does not fit what it is run with
    │   └── StoreError           a table folder cannot be opened, read or written
    ├── UsageError               the calling code broke the contract (a step not updated, a closed store)
    └── ConsistencyError         an invariant of ours is broken; never expected, always a bug or damaged files
        ├── StaleReadError       a row was read with another version than the plan predicts
        │   └── LostWriteError   it is older: its write-back was applied, and the store does not have it
        └── PlanViolation        the checker proved a plan wrong

A message names the value, the place (file:line, step, row) and the remedy. No other exception should reach a person,
except what the system says of a file or disk, which `store.file_errors` puts into words.
"""


class ForeseeError(Exception):
    """Base of all errors raised on purpose."""


class InputError(ForeseeError):
    """Something the person gave us cannot be used; commands print the sentence and exit with 2."""


class DataError(InputError):
    """A log, or one line of it, is not what was promised."""


class ConfigError(InputError):
    """A run file or an override is not valid."""


class PlanError(InputError):
    """A plan cannot be made, or does not belong to what it is run with."""


class StoreError(InputError):
    """A table folder cannot be opened, read or written."""


class UsageError(ForeseeError):
    """The calling code broke the contract."""


class ConsistencyError(ForeseeError):
    """An invariant of ours is broken."""


class StaleReadError(ConsistencyError):
    """A row was read with another version than the plan predicts."""


class LostWriteError(StaleReadError):
    """A row is older than the plan predicts, though all write-backs that the read waited for were applied."""


class PlanViolation(ConsistencyError):  # noqa: N818 - what the checker calls it
    """The checker proved a plan wrong."""
