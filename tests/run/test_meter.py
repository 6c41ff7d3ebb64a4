"""Figures of progress are right or absent: after a restart, in a first step, beside the closing line."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch

from foresee.data import ClickLog, tiny
from foresee.engine.header import make_header
from foresee.engine.pipeline import PipelineTimes
from foresee.engine.planned_step import accesses_of
from foresee.engine.trace.series import Series
from foresee.plan import make_planner
from foresee.plan.count import Counting, num_unused
from foresee.plan.record import Counters, Record
from foresee.run.callbacks import StepResult, TakeTime
from foresee.run.group import Alone
from foresee.run.metrics import SampleWindow
from foresee.run.progress import Meter
from foresee.run.tasks import CLICKS
from foresee.store.layout import Layout, Table


@dataclass
class _Stream:
    num_steps: int = 10


@dataclass
class _Run:
    """What a meter looks at."""

    steps_done: int = 0
    rows_refilled: int = 0
    counters: Counters = field(default_factory=Counters)
    times: PipelineTimes = field(default_factory=PipelineTimes)
    stream: _Stream = field(default_factory=_Stream)


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _result() -> StepResult:
    samples = torch.zeros(100)
    return StepResult(
        steps_done=1,
        loss=0.5,
        num_samples=100,
        outputs=samples,
        labels=samples,
        commit=False,
        show=False,
        last=False,
        finished=False,
    )


def _step(run: _Run, clock: _Clock, meter: Meter, *, waited: float, computed: float) -> None:
    clock.now += waited + computed
    run.times.rows_seconds += waited
    run.steps_done += 1
    counters = run.counters
    run.counters = Counters(num_unique=counters.num_unique + 10, num_fetched=counters.num_fetched + 4)
    meter.add(0.5, 100)


def test_the_start_up_is_no_waiting_for_rows() -> None:
    """43.4 % in the only line of a short run, and 0.0 % below it: the line had counted planning and compiling."""
    run, clock = _Run(), _Clock()
    meter = Meter(run, Alone(torch.nn.Identity()), CLICKS, SampleWindow(), samples_before=0, clock=clock)  # type: ignore[arg-type]
    took = TakeTime(run, clock)  # type: ignore[arg-type]
    _step(run, clock, meter, waited=43.0, computed=7.0)
    took.after(_result())
    for _ in range(4):
        _step(run, clock, meter, waited=0.1, computed=0.9)
    reading = meter.read()
    assert reading.wait_share == pytest.approx(0.1)
    assert reading.wait_share == pytest.approx(took.waited_seconds / took.seconds)
    assert reading.samples_per_second == pytest.approx(100)
    assert (reading.samples, reading.loss, reading.hit_rate) == (500, 0.5, 0.6)
    assert reading.seconds == 54.0


def test_what_cannot_be_said_yet_is_left_out() -> None:
    run, clock = _Run(), _Clock()
    meter = Meter(run, Alone(torch.nn.Identity()), CLICKS, SampleWindow(), samples_before=0, clock=clock)  # type: ignore[arg-type]
    _step(run, clock, meter, waited=3.0, computed=1.0)
    reading = meter.read()
    assert (reading.wait_share, reading.samples_per_second, reading.hit_rate) == (None, None, 0.6)
    assert reading.line() == "loss 0.5000  AUC   -    hits 60.0%"
    assert meter.read().hit_rate is None
    _step(run, clock, meter, waited=0.5, computed=0.5)
    assert "waited 50.0%" in meter.read().line()


def test_filling_a_cache_after_a_restart_is_no_miss() -> None:
    run, clock = _Run(), _Clock()
    meter = Meter(run, Alone(torch.nn.Identity()), CLICKS, SampleWindow(), samples_before=0, clock=clock)  # type: ignore[arg-type]
    run.rows_refilled = 25
    run.counters = Counters(num_fetched=25)
    _step(run, clock, meter, waited=0.0, computed=1.0)
    assert meter.read().hit_rate == pytest.approx(0.6)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "log")


def _records(log: ClickLog, *, first_step: int, planned_from: int | None) -> list[Record]:
    stream = log.batches(batch_size=32)
    header = make_header(
        stream, planner="lookahead", cache_rows=150, num_workers=2, first_step=first_step, planned_from=planned_from,
        placement="location_aware",
    )  # fmt: skip
    planner, records = make_planner(header, lambda _: iter(())), []
    for batch in stream.batches(first_step if planned_from is None else planned_from):
        records += planner.push(accesses_of(batch))
    return [it for it in [*records, *planner.finish()] if it.worker == 0]


def test_a_plan_entered_in_the_middle_has_the_hits_of_the_whole_plan(log: ClickLog) -> None:
    whole = {it.step: it for it in _records(log, first_step=0, planned_from=None)}
    entered = _records(log, first_step=10, planned_from=0)
    counting = Counting()
    for record in entered:
        counting.add(record)
    unused = sum(num_unused(record) for record in entered[:2])
    assert unused > 0, "there was something in the cache"
    assert sum(num_unused(record) for record in entered[2:]) == 0
    needed = counting.counters.num_fetched - unused
    assert sum(len(whole[record.step].fetch) for record in entered) <= needed <= counting.counters.num_unique
    assert counting.counters.num_fetched > needed


def test_rows_that_fill_the_cache_again_are_no_misses(log: ClickLog) -> None:
    """In a recording either, where they would make hit rates negative."""
    entered = _records(log, first_step=10, planned_from=0)
    layout = Layout(tables=(Table("all", log.num_rows),), width=2, state_width=1, optimizer="x")
    series = Series(layout, num_steps=25, points=3, num_servers=0, num_workers=2)
    series.begin(10, 0.0, {}, [])
    for record in entered[:2]:
        series.done(SimpleNamespace(record=record, groups=[SimpleNamespace(record=record)]))  # type: ignore[arg-type]
    cache = SimpleNamespace(num_occupied=3)
    line = series.read(SimpleNamespace(record=entered[1]), cache, 1.0, {}, {}, [])[0]  # type: ignore[arg-type]
    assert line["refilled"] == sum(num_unused(record) for record in entered[:2]) > 0
    assert 0 <= line["fetched"] - line["refilled"] <= line["unique"]
