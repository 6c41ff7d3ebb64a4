"""What a check says: one finding for each thing it looked at, and a closing sentence.

A finding is `whole`, `damaged`, or a `note`: something that is as it may be after a crash and will be put right by
whoever opens it. Pure values; nothing here looks at a disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from foresee.errors import ForeseeError

State = Literal["whole", "damaged", "note"]
TEXT_CHARACTERS_MAX = 600


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    state: State
    text: str


@dataclass(slots=True)
class Checkup:
    """Everything that was found in one place."""

    kind: str
    """Such as "a table folder"."""
    where: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        return all(finding.state != "damaged" for finding in self.findings)

    @property
    def sentence(self) -> str:
        """What a person takes away."""
        damaged = [finding for finding in self.findings if finding.state == "damaged"]
        if damaged:
            more = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
            return f"{self.where} is {self.kind} with damage: {damaged[0].what}{more}; restore it from a copy."
        notes = [finding for finding in self.findings if finding.state == "note"]
        return f"{self.where} is {self.kind} and whole{'; ' + notes[0].text if notes else ''}."

    def add(self, what: str, state: State, text: str) -> None:
        self.findings.append(Finding(what, state, text[:TEXT_CHARACTERS_MAX]))

    def attempt(self, what: str, look: Callable[[], str]) -> bool:
        """Adds what looking says, or the error it ends with; True if there was none."""
        try:
            self.add(what, "whole", look())
        except ForeseeError as error:
            self.add(what, "damaged", str(error))
        except (OSError, MemoryError) as error:
            self.add(what, "damaged", f"it cannot be read ({error})")
        else:
            return True
        return False
