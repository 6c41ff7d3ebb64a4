"""Each rule of the protocol, broken on purpose: a mutant that nobody notices is a rule that nobody tests.

A mutant is the real code with one rule taken out, under the name of the rule, and the judges that have to notice it:
the simulation, the crash disk, the checker of plans, and a few small ones (`judges`). `run(seed=, progress=)` tries all
of them and returns how many there are and how many nobody noticed.

    python tests/chaos/mutants.py [NAME ...]     tries some, and prints what was noticed
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

for _neighbour in ("chaos", "."):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / _neighbour))

import judges  # noqa: E402

Progress = Callable[[str], None]
Patch = Callable[[], "list[mock._patch[Any]]"]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One rule, broken."""

    name: str
    rule: str
    """What holds, in one sentence."""
    judge: judges.Judge
    """Who has to notice."""
    patch: Patch
    """What replaces the real code meanwhile."""

    def noticed(self) -> str | None:
        """What was noticed; None if the mutant is alive."""
        patches = self.patch()
        try:
            for patch in patches:
                patch.start()
            return self.judge()
        finally:
            for patch in patches:
                patch.stop()


def run(*, progress: Progress, names: tuple[str, ...] = ()) -> dict[str, int]:
    """Tries all mutants, or some; the judges have to be content with the code as it is."""
    from mutants_of_commits import COMMIT_MUTANTS
    from mutants_of_disks import DISK_MUTANTS
    from mutants_of_plans import PLAN_MUTANTS
    from mutants_of_rows import ROW_MUTANTS
    from mutants_of_storages import STORAGE_MUTANTS

    mutants = [*ROW_MUTANTS, *COMMIT_MUTANTS, *DISK_MUTANTS, *STORAGE_MUTANTS, *PLAN_MUTANTS]
    chosen = [mutant for mutant in mutants if not names or mutant.name in names]
    alive = 0
    for number, mutant in enumerate(chosen, start=1):
        found = mutant.noticed()
        alive += found is None
        word = "ALIVE" if found is None else "noticed"
        progress(f"{number} of {len(chosen)} mutants, {alive} alive; {word}: {mutant.name} ({found or mutant.rule})")
    return {"mutants": len(chosen), "mutants_alive": alive}


if __name__ == "__main__":
    result = run(progress=print, names=tuple(sys.argv[1:]))
    print(result)
    sys.exit(1 if result["mutants_alive"] else 0)
