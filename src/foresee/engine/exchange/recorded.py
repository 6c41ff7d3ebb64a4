"""An exchange that a timeline sees: the moments of a step, told by the thread that trains or the one that updates.

In: the exchange of a run and its timeline. Out: an exchange that does the same. A run that is not recorded gets its own
exchange back, and nothing is called for it.
"""

from __future__ import annotations

from torch import Tensor

from foresee.engine.cache import Cache
from foresee.engine.exchange.peers import Exchange
from foresee.engine.planned_step import PlannedStep
from foresee.engine.recording.timeline import NOT_RECORDED, TRAIN, Timeline, updates_during_backward, updating_track
from foresee.plan.record import Record


def recorded(exchange: Exchange, timeline: Timeline) -> Exchange:
    return exchange if timeline is NOT_RECORDED else RecordedExchange(exchange, timeline)


class RecordedExchange:
    """Each moment ends a span: what came before it, or the moment itself."""

    def __init__(self, exchange: Exchange, timeline: Timeline) -> None:
        self._exchange, self._timeline = exchange, timeline
        self.link, self.rank, self.expect, self.settle = exchange.link, exchange.rank, exchange.expect, exchange.settle

    def receive_rows(self, step: int, cache: Cache) -> None:
        self._exchange.receive_rows(step, cache)
        self._timeline.track(TRAIN).span("fill", step)

    def update(self, work: PlannedStep, gradient: Tensor, cache: Cache) -> None:
        track, step = updating_track(self._timeline), work.record.step
        track.span("other" if updates_during_backward() else "compute", step)
        self._exchange.update(work, gradient, cache)
        track.span("update", step)
        self._updated = work

    def send_rows(self, record: Record, cache: Cache) -> None:
        track = updating_track(self._timeline)
        track.span("evict", record.step)
        self._exchange.send_rows(record, cache)
        track.span("exchange", record.step)
        self._timeline.done(self._updated, cache)
