"""What to make of a raw log, whatever its format: how to split it, how to number values, what to do with bad lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foresee.data.source import SplitMode
from foresee.data.split import Shares
from foresee.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """What to make of a raw log, whatever its format."""

    split: SplitMode | None = None
    """`order`: the last samples are held out. `time`: the latest. `random`: each on its own. `files`: those named
    below. None: what suits the format."""
    valid_share: float = 0.1
    test_share: float = 0.0
    valid_files: tuple[Path, ...] = ()
    """With split `files`: samples of these are valid, of `test_files` test, of all others train."""
    test_files: tuple[Path, ...] = ()
    seed: int = 0
    """Of the random split."""
    min_count: int = 1
    """Values that occur less often in the train split share the unknown row of their table."""
    hash_buckets: int | None = None
    """Hash all columns into this many rows each instead of keeping vocabularies."""
    bad_lines: Literal["stop", "keep"] = "stop"
    """`stop` at the first bad line, or `keep` them in bad-lines.txt and go on."""
    bad_share_max: float = 0.01
    """Give up if more than this share of the lines is bad."""
    replace: bool = False
    """Replace a prepared log that is already there."""

    def __post_init__(self) -> None:
        if not (self.valid_share >= 0 and self.test_share >= 0 and self.valid_share + self.test_share < 1):
            raise DataError(
                f"valid_share={self.valid_share} and test_share={self.test_share} leave nothing to train "
                "on; give shares from 0 up that sum to less than 1."
            )
        for name, least in (("min_count", 1), ("hash_buckets", 1), ("seed", 0), ("bad_share_max", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise DataError(f"{name}={value} is too small; give {least} or more.")

    @property
    def shares(self) -> Shares:
        return Shares(valid=self.valid_share, test=self.test_share)
