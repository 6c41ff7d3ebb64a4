"""The decisions of commits, by themselves: every message in every state, and whole commits under loss and death."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.errors import StoreError, StoreUnavailableError
from foresee.store.commits import (
    Commit,
    Discard,
    ForgetWrites,
    GoBack,
    OpenAt,
    Part,
    Prepare,
    Promote,
    Seal,
    Settle,
    decide,
    step_to_open,
)

AT_TEN = Part(committed=10, previous=5, run="now", epoch=3, opened_at=5)


def test_a_commit_seals_then_settles() -> None:
    prepared = decide(AT_TEN, Prepare(run="now", step=15, on=10))
    assert prepared.instructions == (Seal(15),)
    assert prepared.part.openable == {5, 10, 15}
    settled = decide(prepared.part, Settle(run="now", step=15))
    assert settled.instructions == (Promote(15),)
    assert (settled.part.committed, settled.part.previous, settled.part.prepared) == (15, 10, None)


@pytest.mark.parametrize("message", [Prepare(run="now", step=15, on=10), Settle(run="now", step=15)])
def test_a_message_that_comes_twice_changes_nothing(message: Prepare | Settle) -> None:
    once = decide(replace(AT_TEN, prepared=15) if isinstance(message, Settle) else AT_TEN, message)
    twice = decide(once.part, message)
    assert twice.refusal is None
    assert (twice.part, twice.instructions) == (once.part, ())


def test_a_prepare_that_comes_after_the_settling_seals_nothing() -> None:
    late = decide(replace(AT_TEN, committed=15, previous=10), Prepare(run="now", step=15, on=10))
    assert late.refusal is None
    assert late.instructions == ()


def test_the_next_prepare_brings_a_decision_whose_message_was_lost() -> None:
    decision = decide(replace(AT_TEN, prepared=15), Prepare(run="now", step=20, on=15))
    assert decision.instructions == (Promote(15), Seal(20))
    assert (decision.part.previous, decision.part.committed, decision.part.prepared) == (10, 15, 20)


def test_an_undecided_commit_is_not_overwritten() -> None:
    assert decide(replace(AT_TEN, prepared=15), Prepare(run="now", step=20, on=10)).refusal


@pytest.mark.parametrize("message", [Prepare(run="old", step=15, on=10), Settle(run="old", step=15)])
def test_trainers_that_were_given_up_are_refused(message: Prepare | Settle) -> None:
    decision = decide(replace(AT_TEN, prepared=15), message)
    assert decision.refusal is not None
    with pytest.raises(StoreUnavailableError):
        decision.check()
    assert decision.part == replace(AT_TEN, prepared=15)
    assert not AT_TEN.accepts("old")
    assert not AT_TEN.accepts(None)
    assert AT_TEN.accepts("now")


def test_a_run_opens_at_each_commit_that_is_kept() -> None:
    part = replace(AT_TEN, prepared=15)
    at = {step: decide(part, OpenAt(run="new", incarnation="", epoch=3, step=step)) for step in (5, 10, 15)}
    assert at[15].instructions == (ForgetWrites(), Promote(15))
    assert at[10].instructions == (ForgetWrites(), Discard(15))
    assert at[5].instructions == (ForgetWrites(), Discard(15), GoBack(5))
    assert [(it.part.previous, it.part.committed, it.part.prepared) for it in at.values()] == [
        (None, 5, None), (5, 10, None), (10, 15, None),
    ]  # fmt: skip
    assert all(it.part.run == "new" and it.part.epoch == 4 for it in at.values())


def test_opening_twice_keeps_what_the_run_has_written_since() -> None:
    opened = decide(AT_TEN, OpenAt(run="new", incarnation="", epoch=3, step=10)).part
    further = replace(opened, previous=10, committed=20)
    again = decide(further, OpenAt(run="new", incarnation="", epoch=3, step=10))
    assert again.refusal is None
    assert (again.part, again.instructions) == (further, ())


def test_whoever_asked_before_another_run_began_is_too_late() -> None:
    opened = decide(AT_TEN, OpenAt(run="new", incarnation="", epoch=3, step=10)).part
    late = OpenAt(run="late", incarnation="", epoch=3, step=10)
    older = OpenAt(run="older", incarnation="", epoch=opened.epoch, step=10, started=4)
    for decision in (decide(opened, late), decide(replace(opened, started=5), older)):
        with pytest.raises(StoreUnavailableError):
            decision.check()


def test_a_commit_that_is_not_there_is_not_opened() -> None:
    decision = decide(AT_TEN, OpenAt(run="new", incarnation="", epoch=3, step=7))
    with pytest.raises(StoreError, match="there is no commit of step 7 here") as caught:
        decision.check()
    assert not isinstance(caught.value, StoreUnavailableError), "that is for a person to look at"


def test_commits_in_a_wrong_order_are_no_part() -> None:
    with pytest.raises(ValueError, match="follow each other"):
        Part(committed=10, prepared=10)


def test_a_decision_needs_every_part() -> None:
    commit = Commit(run="now", step=15, on=10, num_parts=2)
    prepare = Prepare(run="now", step=15, on=10)
    half = commit.consented(0, prepare).consented(0, prepare)
    assert not half.may_decide
    assert set(half.outstanding()) == {1}
    with pytest.raises(ValueError, match="decided before"):
        half.after_manifest()
    whole = half.consented(1, prepare)
    assert whole.outstanding() == {}
    decided = whole.after_manifest()
    assert decided.outstanding() == {part: Settle(run="now", step=15) for part in (0, 1)}
    assert not decided.consented(0, Settle(run="now", step=10)).settled
    assert decided.consented(0, Settle(run="now", step=15)).consented(1, Settle(run="now", step=15)).done


def test_a_consent_to_settle_before_the_decision_does_not_count() -> None:
    commit = Commit(run="now", step=15, on=10, num_parts=1)
    assert not commit.consented(0, Settle(run="now", step=15)).settled


def test_where_a_run_goes_on() -> None:
    assert step_to_open([], [frozenset({0})]) == 0
    assert step_to_open([10, 15], [frozenset({10, 15}), frozenset({5, 10, 15})]) == 15
    assert step_to_open([10, 15], [frozenset({10}), frozenset({10, 15})]) == 10
    assert step_to_open([15], [frozenset({0}), frozenset({10, 15})]) is None


Told = OpenAt | Prepare | Settle


class Cluster:
    """Parts that get what is delivered, and everything that was ever sent to them."""

    def __init__(self, num_parts: int) -> None:
        self.parts = [Part(incarnation="0") for _ in range(num_parts)]
        self.sent: list[tuple[int, Told]] = []

    def receive_rows(self, number: int, message: Told) -> bool:
        self.sent.append((number, message))
        decision = decide(self.parts[number], message)
        self.parts[number] = decision.part
        return decision.refusal is None

    def open_all(self, run: str, step: int) -> bool:
        opening = [OpenAt(run=run, incarnation=part.incarnation, epoch=part.epoch, step=step) for part in self.parts]
        return all(self.receive_rows(number, message) for number, message in enumerate(opening))


@given(st.data())
def test_whatever_is_lost_doubled_or_dies_a_run_goes_on_from_one_commit(data: st.DataObject) -> None:
    """Three parts, one coordinator at a time; messages of all of them arrive in any order, any number of times."""
    cluster, manifests = Cluster(3), set[int]()
    for attempt in range(data.draw(st.integers(1, 6))):
        step = step_to_open(manifests, [part.openable for part in cluster.parts])
        assert step == max(manifests, default=0)
        assert cluster.open_all(f"run {attempt}", step)
        for _ in range(data.draw(st.integers(0, 3))):
            commit = Commit(run=f"run {attempt}", step=step + 1, on=step, num_parts=3)
            for number, message in commit.outstanding().items():
                if data.draw(st.booleans(), label="prepare arrives") and cluster.receive_rows(number, message):
                    commit = commit.consented(number, message)
            for number, old in data.draw(st.lists(st.sampled_from(cluster.sent), max_size=3), label="late messages"):
                cluster.receive_rows(number, old)
            if not commit.may_decide:
                break
            manifests, step = {*sorted(manifests)[-1:], commit.step}, commit.step
            for number, message in commit.after_manifest().outstanding().items():
                if data.draw(st.booleans(), label="settle arrives"):
                    cluster.receive_rows(number, message)
        for number in data.draw(st.sets(st.integers(0, 2)), label="restarted"):
            cluster.parts[number] = cluster.parts[number].after_restart(f"{attempt + 1}")
