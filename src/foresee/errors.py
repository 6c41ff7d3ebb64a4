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
        └── PlanViolation        the checker proved a plan wrong

A message names the value, the place (file:line, step, row) and the remedy. No other exception should reach a person,
except what the system says of a file or disk, which `file_sentence` puts into words.
"""

import errno

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_OF_FILES = (
    *_FULL, *_NOT_WRITABLE, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.EFBIG, errno.ENAMETOOLONG
)  # fmt: skip


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


class PlanViolation(ConsistencyError):  # noqa: N818 - what the checker calls it
    """The checker proved a plan wrong."""


def file_sentence(error: OSError) -> str | None:
    """The sentence for a file or disk that the system does not let us use; None for anything else."""
    if error.errno not in _OF_FILES:
        return None
    where = "a file" if error.filename is None else str(error.filename)
    remedy = "check its name and the disk"
    if error.errno in _FULL:
        remedy = "free some space, then try again"
    elif error.errno in _NOT_WRITABLE:
        remedy = "give a place that can be written, or change its permissions"
    return f"{where} cannot be used ({error.strerror}); {remedy}"
