"""`foresee check` as a function: looks at what a folder or file holds and whether it is whole, and never writes."""

from foresee.analysis.fsck.finding import Checkup, Finding
from foresee.analysis.fsck.kinds import check

__all__ = ["Checkup", "Finding", "check"]
