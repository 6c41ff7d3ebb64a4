"""Mutants of the commit protocol: who may seal, decide, settle, open, and what comes of messages that come twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import judges
from mutants import Mutant

from foresee.store import commits
from foresee.store.commits import (
    Commit,
    Decision,
    ForgetWrites,
    Message,
    OpenAt,
    Part,
    Prepare,
    Promote,
    Seal,
)
from foresee.store.memory import MemoryStore, PreImages
from foresee.store.server.rows import RowService
from foresee.testing.simulation import trainer

_open_at, _prepare, _settle, _decide = commits._open_at, commits._prepare, commits._settle, commits.decide
_carry_out = MemoryStore._carry_out


def _without(kind: type) -> Any:
    """Decisions without one kind of instruction."""

    def mutated(decide: Any) -> Any:
        def decided(part: Part, message: Any) -> Decision:
            decision: Decision = decide(part, message)
            kept = tuple(it for it in decision.instructions if not isinstance(it, kind))
            return replace(decision, instructions=kept)

        return decided

    return mutated


def _open_any_time(part: Part, message: OpenAt) -> Decision:
    return _open_at(replace(part, started=0), replace(message, incarnation=part.incarnation, epoch=part.epoch))


def _open_again(part: Part, message: OpenAt) -> Decision:
    return _open_at(replace(part, run=None), replace(message, incarnation=part.incarnation, epoch=part.epoch))


def _begin_again(self: RowService, instructions: Any, message: OpenAt, num_workers: int) -> None:
    self._carry_out(instructions)
    self.applied.begin(message.run, num_workers, message.step, opened=True, started=message.started)


def _prepare_again(part: Part, message: Prepare) -> Decision:
    """A preparation that comes twice seals what is there now."""
    if message.step == part.prepared:
        return Decision(part=part, instructions=(Seal(message.step),))
    return _prepare(part, message)


def _decide_for_anybody(part: Part, message: Message) -> Decision:
    return _decide(part, message if isinstance(message, OpenAt) else replace(message, run=None))


def _newest_manifest(manifests: Any, openable: Any) -> int | None:
    return max(manifests, default=0)


def _newest_sealed(manifests: Any, openable: Any) -> int | None:
    return max(frozenset.intersection(*openable), default=None)


def _oldest_common(manifests: Any, openable: Any) -> int | None:
    return min(set(manifests).intersection(*openable), default=None)


def _keep_always(self: PreImages, rows: Any, base: Any, written: Any) -> None:
    """Keeps what a row was before its last change, not before its first."""
    self._kept[:] = 0
    _keep(self, rows, base, written)


_keep = PreImages.keep


def _forget_nothing(self: MemoryStore, instruction: Any, part: Part) -> None:
    if not isinstance(instruction, ForgetWrites):
        _carry_out(self, instruction, part)


def _settle_at_once(self: Commit) -> dict[int, Any]:
    """Everybody is told to settle as soon as one part has prepared."""
    if self.prepared and not self.decided:
        return {part: commits.Settle(run=self.run, step=self.step) for part in range(self.num_parts)}
    return _outstanding(self)


_outstanding = Commit.outstanding
_may_decide = property(lambda commit: bool(commit.prepared) and not commit.decided)
_decide_first = property(lambda commit: not commit.decided)


def _manifest_anyway(commit: Commit) -> Commit:
    return replace(commit, decided=True)


COMMIT_MUTANTS = [
    Mutant(
        name="nothing is sealed", rule="A part that consents to prepare has sealed the step.",
        judge=judges.schedules,
        patch=lambda: [mock.patch.object(commits, "_prepare", _without(Seal)(_prepare))],
    ),
    Mutant(
        name="decided when one part has prepared", rule="The manifest is written when every part has prepared.",
        judge=judges.schedules,
        patch=lambda: [
            mock.patch.object(Commit, "may_decide", _may_decide),
            mock.patch.object(Commit, "after_manifest", _manifest_anyway),
        ],
    ),
    Mutant(
        name="decided before anybody has prepared", rule="The manifest comes after all preparations, not before them.",
        judge=judges.schedules,
        patch=lambda: [
            mock.patch.object(Commit, "may_decide", _decide_first),
            mock.patch.object(Commit, "after_manifest", _manifest_anyway),
        ],
    ),
    Mutant(
        name="settled before the decision", rule="Nobody is told to settle before the manifest is durable.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(Commit, "outstanding", _settle_at_once)],
    ),
    Mutant(
        name="settling changes nothing", rule="After a settlement the prepared commit is the last one.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(commits, "_settle", _without(Promote)(_settle))],
    ),
    Mutant(
        name="uncommitted rows stay", rule="A run begins without anything that was written after its commit.",
        judge=judges.schedules,
        patch=lambda: [mock.patch.object(commits, "_open_at", _without(ForgetWrites)(_open_at))],
    ),
    Mutant(
        name="memory forgets nothing", rule="A store in memory brings rows back to what they were at the commit.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(MemoryStore, "_carry_out", _forget_nothing)],
    ),
    Mutant(
        name="pre-images of the last change", rule="What is kept of a row is what it was before its first change.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(PreImages, "keep", _keep_always)],
    ),
    Mutant(
        name="older runs take over", rule="Who was started before the run that is served opens nothing.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(commits, "_open_at", _open_any_time)],
    ),
    Mutant(
        name="openings that come twice", rule="An opening that comes again leaves what was written since.",
        judge=judges.schedules,
        patch=lambda: [
            mock.patch.object(commits, "_open_at", _open_again),
            mock.patch.object(RowService, "_open", _begin_again),
        ],
    ),
    Mutant(
        name="preparations that come twice", rule="What is sealed under a step is what was there the first time.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(commits, "_prepare", _prepare_again)],
    ),
    Mutant(
        name="replaced trainers commit", rule="Commits of a run that was replaced are refused.",
        judge=judges.schedules, patch=lambda: [mock.patch("foresee.store.server.rows.decide", _decide_for_anybody)],
    ),
    Mutant(
        name="the newest manifest counts alone", rule="A run goes on from a step that every part has.",
        judge=judges.openings, patch=lambda: [mock.patch.object(commits, "step_to_open", _newest_manifest)],
    ),
    Mutant(
        name="the newest seal counts alone", rule="A prepared commit without a manifest never stands.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(trainer, "step_to_open", _newest_sealed)],
    ),
    Mutant(
        name="an older commit is opened", rule="A run goes on from the newest commit, never from an older one.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(trainer, "step_to_open", _oldest_common)],
    ),
]  # fmt: skip
