"""What both checkers share: a plan is played step after step, and a verdict says what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from foresee.errors import PlanViolation
from foresee.plan.check_step import require_form
from foresee.plan.record import Accesses, Counters, Header, Record

VIOLATIONS_MAX = 20
NEVER = -1


@dataclass(slots=True)
class Verdict:
    """What the checker found."""

    counters: Counters = field(default_factory=Counters)
    stale_reads: int = 0
    """Rows read without all earlier updates."""
    missing_updates: int = 0
    """Of stale reads, where plans allow them: (worker, step) updates that a read did not see, summed."""
    missing_updates_max: int = 0
    violations: list[str] = field(default_factory=list)
    """The first few, in words."""
    num_violations: int = 0

    @property
    def right(self) -> bool:
        return self.num_violations == 0

    def require(self) -> None:
        """Raises PlanViolation unless the plan is right."""
        if not self.right:
            shown = "; ".join(self.violations[:3])
            raise PlanViolation(f"the plan breaks {self.num_violations} rules, first: {shown}")


class Game(Protocol):
    """A plan being played by some protocol's rules."""

    def wrong(self, what: str) -> None: ...

    def play(self, step: int, accesses: Accesses, records: list[Record]) -> None: ...

    def finish(self, promised: Counters | None) -> Verdict: ...


def walk(
    game: Game, header: Header, trace: Iterable[Accesses], records: Iterable[Record], counters: Counters | None
) -> Verdict:
    """Play all steps."""
    for _ in played(game, header, trace, records):
        pass
    return game.finish(counters)


def played(game: Game, header: Header, trace: Iterable[Accesses], records: Iterable[Record]) -> Iterator[list[Record]]:
    """Play step after step, and yield the records of each; every step needs one of each worker."""
    remaining: Iterator[Record] = iter(records)
    num_steps = 0
    for step, accesses in enumerate(trace, start=header.first_step):
        mine = list(islice(remaining, header.num_workers))
        if len(mine) < header.num_workers:
            game.wrong(f"step {step} has no record")
            return
        require_form(step, accesses, mine, header.num_workers)
        game.play(step, accesses, mine)
        num_steps += 1
        yield mine
    if next(remaining, None) is not None:
        game.wrong(f"the plan has more records than the {num_steps} steps of the trace")
