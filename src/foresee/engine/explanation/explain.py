"""The two questions a person asks of a plan, answered from the run's configuration alone.

In: a `RunPlan`, made from a configuration, and a row's name or a step. Out: a `RowLife` or a `StepAccount`. The plan is
the run's own: the kept file if the configuration names one, else planned again from the log, which gives the same
records every time. A run that was resumed began with an empty cache where it went on; the answer here is that of a run
that never stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from foresee.config import RunConfig
from foresee.data.stream import LogStream
from foresee.engine.explanation.following import Decided, Played, decided_records, played_steps
from foresee.engine.explanation.names import RowNames
from foresee.engine.explanation.row_life import RowFollower, RowLife
from foresee.engine.explanation.step_account import StepAccount, StepFollower
from foresee.engine.parts import kept_plan, open_log, plan_header, train_stream
from foresee.engine.plan_file import PlanFile
from foresee.engine.planning import Advance
from foresee.errors import PlanError
from foresee.plan import WINDOW_STEPS
from foresee.plan.record import Header

FORESIGHTED = ("lookahead", "belady")
"""Planners that give up the row whose next use is farthest."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run's plan, ready to be played through."""

    header: Header
    stream: LogStream
    names: RowNames
    kept: PlanFile | None

    @classmethod
    def of(cls, config: RunConfig) -> RunPlan:
        log = open_log(config)
        stream = train_stream(config, log)
        file = kept_plan(config, stream)
        if file is None:
            header = plan_header(config, log, stream)
            # Versions change no decision, and without them nothing says when a fetched row was last used.
            header = replace(header, parameters={**header.parameters, "remember_versions": 1})
            return cls(header, stream, RowNames(log), None)
        return cls(file.header, stream, RowNames(log), file)

    def steps(self, advance: Advance | None) -> Iterator[Played]:
        """Every step of the plan, in order."""
        if self.kept is None:
            return played_steps(self.header, decided_records(self.stream, self.header, advance))
        last, reach = self.header.first_step + self.header.num_steps - 1, _window_of(self.header)
        decided = (
            Decided(record, last if reach is None else min(last, record.step + 1 + reach))
            for record in self.kept.records()
        )
        return played_steps(self.header, decided)


def explain_row(plan: RunPlan, name: str, *, advance: Advance | None = None) -> RowLife:
    """What happens to a row over all steps of a run, and why."""
    return explain_rows(plan, [plan.names.find(name)], advance=advance)[0]


def explain_rows(plan: RunPlan, rows: Sequence[int], *, advance: Advance | None = None) -> list[RowLife]:
    """The lives of several rows, from one pass over the plan."""
    followers = [_follower_of(plan, row) for row in rows]
    for played in plan.steps(advance):
        for follower in followers:
            follower.add(played)
    return [follower.life for follower in followers]


def _follower_of(plan: RunPlan, row: int) -> RowFollower:
    header = plan.header
    life = RowLife(
        row=row,
        name=plan.names.name(row),
        value=plan.names.value(row),
        num_rows=header.num_rows,
        planner=header.planner,
        window_steps=_fixed_window(header),
        num_workers=header.num_workers,
        first_step=header.first_step,
        num_steps=header.num_steps,
    )
    foresighted = header.planner in FORESIGHTED
    return RowFollower(life, keeps_expired=life.window_steps is None, knows_the_future=foresighted)


def explain_step(plan: RunPlan, step: int, *, advance: Advance | None = None) -> StepAccount:
    """What a step of a run does and waits for, and why."""
    header = plan.header
    last = header.first_step + header.num_steps - 1
    if not header.first_step <= step <= last:
        raise PlanError(f"--step {step}: the run has steps {header.first_step} to {last}; give one of these")
    account = StepAccount(
        step=step,
        last_step=last,
        planner=header.planner,
        window_steps=_fixed_window(header),
        capacity_rows=header.capacity_rows,
        fetch_ahead_steps=header.fetch_ahead_steps,
        known_until=last,
        workers=[],
    )
    follower = StepFollower(account)
    for played in plan.steps(advance):
        follower.add(played)
        if follower.done and played.step > step:
            break
    return account


def _fixed_window(header: Header) -> int | None:
    """Steps after which a row without a known use leaves at once; None: rows stay until their slots are needed."""
    if header.planner == "none":
        return 0
    if header.planner != "lookahead" or header.num_workers > 1:
        return None
    window = header.parameters.get("window_steps")
    return None if window is None else int(window)


def _window_of(header: Header) -> int | None:
    """How far a kept plan's planner read ahead; None: to the end."""
    fixed = _fixed_window(header)
    if fixed is not None:
        return fixed - 1
    return {"lookahead": WINDOW_STEPS, "belady": None}.get(header.planner, 0)
