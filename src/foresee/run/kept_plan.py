"""The saved plan of a run: trusted if it is as its planner left it, otherwise proved while it is trained.

A wrong plan trains to other bytes without any error: two rows of a write-back that are swapped have right checksums and
slots. So a plan without a matching digest (edited, written by another program, or by a release before digests) goes
through the checker, and no step is carried out before it is proved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from foresee.data.batch import BatchStream
from foresee.engine.planned_step import accesses_of
from foresee.errors import PlanError
from foresee.io.machine import available_bytes
from foresee.io.units import in_megabytes
from foresee.plan.check import proved_records
from foresee.plan.format.folder import SavedPlan
from foresee.plan.record import Header, Record

PROOF_BYTES_PER_ROW = 400
"""What the checker keeps for each row that the plan touches; about 320 were measured."""


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """A saved plan that a run trains with.

    Attributes:
        saved: The plan, found to be whole and this run's.
        as_planned: Its digest matches, so its records are those of its planner.
    """

    saved: SavedPlan
    as_planned: bool

    @classmethod
    def from_saved(cls, saved: SavedPlan) -> KeptPlan:
        """Compare the plan with its digest; refuse one to be proved if the machine lacks the memory for that."""
        kept, available = cls(saved, saved.is_as_planned()), available_bytes()
        if not kept.as_planned and available is not None and kept.proof_bytes > available:
            raise PlanError(
                f"{saved.path} is not as its planner left it, and proving it takes up to "
                f"{in_megabytes(kept.proof_bytes)} of memory, {in_megabytes(available)} are available; plan this run "
                "again, or leave cache.plan_file out"
            )
        return kept

    @property
    def header(self) -> Header:
        return self.saved.header

    @property
    def proof_bytes(self) -> int:
        """Memory that the checker may take."""
        num_touched = min(self.header.num_rows, max(0, self.saved.counters.num_unique))
        return PROOF_BYTES_PER_ROW * num_touched

    def records(self, stream: BatchStream) -> Iterator[Record]:
        """The records of all workers, each proved before it comes out unless the plan is as planned."""
        if self.as_planned:
            return self.saved.records()
        trace = map(accesses_of, stream.batches(self.header.first_step))
        return proved_records(
            self.header, trace, self.saved.records(), self.saved.counters, name=str(self.saved.path)
        )  # fmt: skip

    def summary(self) -> str:
        """One line for a person: whether the plan is trusted, and what its proof costs."""
        if self.as_planned:
            return f"{self.saved.path} is as {self.header.planner} planned it (sha256)"
        return (
            f"{self.saved.path} is not as its planner left it, or older than digests of plans: each step is proved "
            f"before it is trained, which takes up to {in_megabytes(self.proof_bytes)} of memory and often longer "
            "than training it; plan again to avoid that"
        )
