"""The limits on what an archive unpacks to: bytes, members, and the free space of the disk.

A few kilobytes of gzip can claim terabytes. Sizes stand in an archive's own headers and neither format gives more than
it declares, so a member that exceeds a limit is refused before a byte of it is written.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from foresee.errors import DataError

GB = 1_000_000_000
UNPACKED_MAX_GB = 100
MEMBERS_MAX = 100_000


@dataclass(slots=True)
class Unpacking:
    """Counts the members of one archive and refuses the first that exceeds a limit.

    Attributes:
        where: The archive, for error messages.
        folder: Where members are written.
        max_gb: How much all members together may take.
    """

    where: str
    folder: Path
    max_gb: int = UNPACKED_MAX_GB
    num_bytes: int = 0
    num_members: int = 0

    def count(self, name: str, num_bytes: int, *, written: bool = True) -> None:
        """Count a member before it is unpacked; `written`: to the disk, not only passed over."""
        self.num_members += 1
        self.num_bytes += num_bytes
        if self.num_members > MEMBERS_MAX:
            raise DataError(
                f"{self.where}: the archive has more than {MEMBERS_MAX:,} members; unpack it and name the files."
            )
        if self.num_bytes > self.max_gb * GB:
            raise DataError(
                f"{self.where}: with {name} the archive unpacks to {self.num_bytes / GB:,.1f} GB, the limit is "
                f"{self.max_gb:,} GB; if it is really that large, raise the limit with --unpacked-max-gb."
            )
        free = shutil.disk_usage(self.folder).free
        if written and num_bytes > free:
            raise DataError(
                f"{self.where}: {name} unpacks to {num_bytes / GB:,.1f} GB, and the disk of {self.folder.parent} has "
                f"{free / GB:,.1f} GB free; make room, or give --out on another disk."
            )
