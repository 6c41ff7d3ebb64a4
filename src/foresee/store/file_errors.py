"""What the system says of a file or disk that it does not let us use, as a sentence.

In: an OSError that nobody expected. Out: the file, the system's word for it, and what to do; or nothing, if it is about
anything else (a socket, a process): then it is no mistake of a person.
"""

from __future__ import annotations

import errno

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_OF_FILES = (
    *_FULL, *_NOT_WRITABLE, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.EFBIG, errno.ENAMETOOLONG
)  # fmt: skip


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
