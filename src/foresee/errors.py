"""Everything Foresee raises on purpose, and the exit code that each kind of error gives a process.

    ForeseeError                        one sentence: what was wrong, where, what to do
    ├── InputError                      the person's input: files, configs, options (exit code 2)
    │   ├── DataError                   a log, or a line of it, is not what was promised
    │   ├── ConfigError                 a run file or an override is not valid
    │   ├── PlanError                   this plan cannot be made, or does not fit what it is run with
    │   └── StoreError                  a table folder cannot be opened, read or written
    ├── UnavailableError                another process is away, stopping, started again or replaced (exit code 3)
    │   ├── StoreUnavailableError       a server, or what it waits for; also a StoreError
    │   ├── PlanUnavailableError        the planner, or the plan it made for us; also a PlanError
    │   └── PeerLostError               another worker, in the middle of an exchange with it
    ├── UsageError                      the calling code broke the contract (a step not updated, a closed store)
    └── ConsistencyError                an invariant of ours is broken; never expected, always a bug or damaged files
        ├── StaleReadError              a row was read with another version than the plan predicts
        │   └── LostWriteError          it is older: its write-back was applied, and the store does not have it
        └── PlanViolation               the checker proved a plan wrong

The class says who is to blame, never the text: it travels between processes as a kind (`store.rpc.failures`), gives
the exit code, and so decides whether a launcher starts processes again (`launch.decisions`). A message names the value,
the place (file:line, step, row) and the remedy. No other exception should reach a user, except errors of the system
about a file or disk, which `io.files` describes.
"""

DONE_CODE, FAILED_CODE, INPUT_CODE, UNAVAILABLE_CODE = 0, 1, 2, 3
"""Exit codes: all went well; an error of ours; a person's mistake; another process was gone, so start again."""
INTERRUPTED_CODE, TERMINATED_CODE = 130, 143
"""After Ctrl-C and SIGTERM, as shells expect: 128 and the number of the signal."""


class ForeseeError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = FAILED_CODE


class InputError(ForeseeError):
    """Something the person gave us cannot be used; commands print the sentence and no traceback."""

    exit_code = INPUT_CODE


class DataError(InputError):
    """A log, or one line of it, is not what was promised."""


class ConfigError(InputError):
    """A run file or an override is not valid."""


class PlanError(InputError):
    """A plan cannot be made, or does not belong to what it is run with."""


class StoreError(InputError):
    """A table folder cannot be opened, read or written."""


class UnavailableError(ForeseeError):
    """Another process is away, is stopping, was started again, or serves those who replaced us: nobody's mistake, and
    whoever starts again from the last commit may well succeed."""

    exit_code = UNAVAILABLE_CODE


class StoreUnavailableError(UnavailableError, StoreError):
    """Rows cannot be had from their server now."""


class PlanUnavailableError(UnavailableError, PlanError):
    """Records cannot be had from the planner now."""


class PeerLostError(UnavailableError):
    """An exchange with the other workers broke."""


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
