"""Every mutant of the protocol is noticed by its judge, and the judges are content with the code as it is."""

from __future__ import annotations

import judges
import pytest
from mutants import Mutant
from mutants_of_commits import COMMIT_MUTANTS
from mutants_of_disks import DISK_MUTANTS
from mutants_of_plans import PLAN_MUTANTS
from mutants_of_rows import ROW_MUTANTS
from mutants_of_storages import STORAGE_MUTANTS

MUTANTS = [*ROW_MUTANTS, *COMMIT_MUTANTS, *DISK_MUTANTS, *STORAGE_MUTANTS, *PLAN_MUTANTS]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name.replace(" ", "_") for mutant in MUTANTS])
def test_mutant_is_noticed(mutant: Mutant) -> None:
    assert mutant.noticed() is not None, f"nobody noticed that this was broken: {mutant.rule}"


@pytest.mark.parametrize(
    "judge",
    [
        judges.plans, judges.additive_plans, judges.het_plans, judges.sums, judges.synced, judges.versions,
        judges.openings, judges.planner_session, *{mutant.judge: None for mutant in STORAGE_MUTANTS},
    ],
    ids=lambda judge: judge.__name__,
)  # fmt: skip
def test_judge_is_content_with_the_code_as_it_is(judge: judges.Judge) -> None:
    assert judge() is None


def test_mutants_have_names_and_rules() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 50
    assert all(mutant.rule.endswith(".") for mutant in MUTANTS)
