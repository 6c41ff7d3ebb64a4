"""Commits come as often as their cost allows, by a clock of the test's own."""

from __future__ import annotations

from foresee.run.callbacks import COST_SHARE, SECONDS_MIN, CheckpointInterval


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_commit_costs_its_share_and_no_more() -> None:
    clock = Clock()
    pace = CheckpointInterval(None, clock)
    clock.now += SECONDS_MIN - 1
    assert not pace.due()
    clock.now += 1
    assert pace.due()
    begun = clock.now
    clock.now += 3.0
    assert pace.committed(begun) == 3.0
    assert pace.interval_seconds == 3.0 / COST_SHARE
    clock.now += 3.0 / COST_SHARE - 1
    assert not pace.due()
    clock.now += 1
    assert pace.due()


def test_a_cheap_commit_is_not_made_all_the_time() -> None:
    clock = Clock()
    pace = CheckpointInterval(None, clock)
    pace.committed(clock.now)
    assert pace.interval_seconds == SECONDS_MIN


def test_a_number_of_seconds_counts_as_it_is() -> None:
    clock = Clock()
    pace = CheckpointInterval(2.0, clock)
    clock.now += 50.0
    pace.committed(clock.now - 50.0)
    assert pace.interval_seconds == 2.0
    assert not pace.due()
    clock.now += 2.0
    assert pace.due()
