"""What a run records of itself for `foresee report` and `foresee watch`: which thread did what when, and how it went.

Every thread of a worker has a track, and says after each activity what it was: `track.span("fetch", step, bytes)`.
A span begins where the track's last one ended, so the spans of a track cover its whole time. Sums over an interval of
steps are always recorded (`series`); during a few windows of steps, spread over the run, every span is as well.

In: spans, and the work and cache of every step. Out: lines of RUN/timeline/worker-N.jsonl, at most
`SPANS_PER_STEP_MAX` spans for each recorded step and `series_points` points, whatever the length of the run. It changes
nothing that a run computes.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from foresee.engine.cache import Caches
from foresee.engine.planned_step import PlannedStep
from foresee.engine.trace.series import Series, TimelineFile
from foresee.io.disk_stats import DiskFigures
from foresee.plan.record import Header
from foresee.store.layout import Layout

WINDOW_STEPS = 12
"""Steps that are recorded in one piece: a little more than a fetch is ahead of its step."""
SPANS_PER_STEP_MAX = 40
TRAIN = "train"
"""The track of the thread that trains."""
UPDATE = "update"
"""The track of the thread of updates that begin during backward."""
UPDATE_THREAD = "foresee-update"
EXCHANGE = "exchange"
"""The track of the thread that swaps rows with peers in the background."""


Disks = Callable[[], list[DiskFigures]]


def no_disks() -> list[DiskFigures]:
    """Of a store that has none."""
    return []


class Stepped(Protocol):
    """What belongs to a step."""

    @property
    def step(self) -> int: ...


OfStep = TypeVar("OfStep", bound=Stepped)


class Track(Protocol):
    """One thread of a worker."""

    def span(self, what: str, step: int, num_bytes: int = 0) -> None:
        """Says what the thread did since its last span, and for which step."""
        ...


class Timeline(Protocol):
    """What the engine tells a recording."""

    step: int
    """The step that is carried out."""

    def begin(self, header: Header, layout: Layout, *, num_steps: int, worker: int, disks: Disks = no_disks) -> None:
        """Before the first step; `num_steps` are those of the whole run, `disks` says what those of the store did."""
        ...

    def track(self, name: str) -> Track:
        """The track of the calling thread, which begins now."""
        ...

    def each(
        self, name: str, items: Iterable[OfStep], what: str, then: str | None = None,
        num_bytes: Callable[[OfStep], int] | None = None,
    ) -> Iterable[OfStep]:  # fmt: skip
        """The items, with a span of a track when each comes, and one (`then`) when the next is asked for."""
        ...

    def after(
        self, name: str, do: Callable[[OfStep], None], what: str, num_bytes: Callable[[OfStep], int] | None = None
    ) -> Callable[[OfStep], None]:
        """The function, with a span of a track when it returns."""
        ...

    def arrived(self, work: PlannedStep, caches: Caches) -> None:
        """The rows of a step are in their slots."""
        ...

    def swapped(self, sent: dict[int, int], received: dict[int, int], *, critical: bool) -> None:
        """Bytes that went to and came from each peer."""
        ...

    def learned(self, loss: float) -> None:
        """The loss of the step that is carried out."""
        ...

    def done(self, work: PlannedStep, caches: Caches) -> None:
        """A step was carried out."""
        ...

    def end(self) -> None:
        """No step follows."""
        ...


def updates_during_backward() -> bool:
    """Whether the calling thread is that of updates which begin during backward."""
    return threading.current_thread().name.startswith(UPDATE_THREAD)


def updating_track(timeline: Timeline) -> Track:
    """The track of the calling thread: the one that trains, or that of updates during backward."""
    return timeline.track(UPDATE if updates_during_backward() else TRAIN)


class NoTrack:
    """A thread of a run that is not recorded."""

    def span(self, what: str, step: int, num_bytes: int = 0) -> None:
        pass


class NoTimeline:
    """A run that is not recorded."""

    step = 0

    def begin(self, header: Header, layout: Layout, *, num_steps: int, worker: int, disks: Disks = no_disks) -> None:
        pass

    def track(self, name: str) -> Track:
        return _NO_TRACK

    def each(
        self, name: str, items: Iterable[OfStep], what: str, then: str | None = None,
        num_bytes: Callable[[OfStep], int] | None = None,
    ) -> Iterable[OfStep]:  # fmt: skip
        return items

    def after(
        self, name: str, do: Callable[[OfStep], None], what: str, num_bytes: Callable[[OfStep], int] | None = None
    ) -> Callable[[OfStep], None]:
        return do

    def arrived(self, work: PlannedStep, caches: Caches) -> None:
        pass

    def swapped(self, sent: dict[int, int], received: dict[int, int], *, critical: bool) -> None:
        pass

    def learned(self, loss: float) -> None:
        pass

    def done(self, work: PlannedStep, caches: Caches) -> None:
        pass

    def end(self) -> None:
        pass


_NO_TRACK = NoTrack()
NOT_RECORDED = NoTimeline()


class Span(NamedTuple):
    """One span of a window, in seconds since the recording began."""

    track: str
    what: str
    step: int
    begin: float
    end: float
    num_bytes: int


class RecordedTrack:
    """Sums of what one thread did, and its spans while a window is open."""

    def __init__(self, name: str, recording: Recording) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.last_step: dict[str, int] = {}
        """The latest step of each kind of span."""
        self._name, self._recording, self._clock = name, recording, recording.clock
        self._last = self._clock()

    def span(self, what: str, step: int, num_bytes: int = 0) -> None:
        now, last, recording = self._clock(), self._last, self._recording
        self.seconds[what] += now - last
        self.last_step[what] = step
        if last < recording.spans_until:
            begun = recording.begun
            recording.spans.append(Span(self._name, what, step, last - begun, now - begun, num_bytes))
        self._last = now


class Recording:
    """A run that is recorded into a folder, in a file for each worker. One thread trains; others may only add spans."""

    def __init__(
        self, folder: Path, *, timeline_steps: int = 96, series_points: int = 1000, num_servers: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self.clock, self.begun = clock, clock()
        self.step = 0
        self.spans: list[Span] = []
        self.spans_until = float("-inf")
        """Spans that began before are kept."""
        self._folder, self._timeline_steps, self._series_points = folder, timeline_steps, series_points
        self._num_servers = num_servers
        self._tracks: dict[str, RecordedTrack] = {}
        self._spans_left = timeline_steps * SPANS_PER_STEP_MAX
        self._last_done: tuple[PlannedStep, Caches] | None = None

    def begin(self, header: Header, layout: Layout, *, num_steps: int, worker: int, disks: Disks = no_disks) -> None:
        self._windows = window_steps(num_steps, self._timeline_steps)
        self._file = TimelineFile(self._folder, worker)
        self._file.forget_from(header.first_step)
        self._series = Series(
            layout, num_steps=num_steps, points=self._series_points, num_servers=self._num_servers,
            num_workers=header.num_workers,
        )  # fmt: skip
        self._file.append([self._start_line(header, layout, num_steps, worker)])
        self._disks = disks if worker == 0 else no_disks  # servers are the same for all workers
        self._series.begin(header.first_step, self.clock(), self._track_seconds(), self._disks())
        self._open_or_close(header.first_step)

    def track(self, name: str) -> RecordedTrack:
        track = self._tracks[name] = self._tracks.get(name) or RecordedTrack(name, self)
        return track

    def each(
        self, name: str, items: Iterable[OfStep], what: str, then: str | None = None,
        num_bytes: Callable[[OfStep], int] | None = None,
    ) -> Iterator[OfStep]:  # fmt: skip
        track = self.track(name)
        for item in items:
            track.span(what, item.step, 0 if num_bytes is None else num_bytes(item))
            yield item
            if then is not None:
                track.span(then, item.step)

    def after(
        self, name: str, do: Callable[[OfStep], None], what: str, num_bytes: Callable[[OfStep], int] | None = None
    ) -> Callable[[OfStep], None]:
        def done(item: OfStep) -> None:
            do(item)
            self.track(name).span(what, item.step, 0 if num_bytes is None else num_bytes(item))

        return done

    def arrived(self, work: PlannedStep, caches: Caches) -> None:
        self.step = work.record.step
        self._series.arrived(work, caches)

    def swapped(self, sent: dict[int, int], received: dict[int, int], *, critical: bool) -> None:
        self._series.swapped(sent, received, critical=critical)

    def learned(self, loss: float) -> None:
        self._series.learned(loss)

    def done(self, work: PlannedStep, caches: Caches) -> None:
        self._series.done(work)
        self._last_done = work, caches
        if self._series.due(work.record.step):
            self._write_point(work, caches)
        self._open_or_close(work.record.step + 1)

    def end(self) -> None:
        self.spans_until = float("-inf")
        self._write_spans()
        if self._last_done is not None:
            work, caches = self._last_done
            if self._series.has_begun(work.record.step):
                self._write_point(work, caches)
            self._file.append(self._series.rest(work.record.step + 1))
            self._last_done = None

    def _open_or_close(self, next_step: int) -> None:
        if next_step in self._windows:
            self.spans_until = float("inf") if self._spans_left > 0 else float("-inf")
        elif self.spans_until == float("inf"):
            self.spans_until = self.clock()  # what is under way belongs to the window
        elif self.spans and next_step - 1 not in self._windows:
            self._write_spans()

    def _write_point(self, work: PlannedStep, caches: Caches) -> None:
        tracks, disks = self._track_seconds(), self._disks()
        self._file.append(self._series.read(work, caches, self.clock(), tracks, self._ahead(work), disks))

    def _write_spans(self) -> None:
        spans, self.spans = self.spans[: max(0, self._spans_left)], []
        self._spans_left -= len(spans)
        self._file.append([span_line(span) for span in spans])

    def _track_seconds(self) -> dict[str, dict[str, float]]:
        return {name: dict(track.seconds) for name, track in list(self._tracks.items())}

    def _ahead(self, work: PlannedStep) -> dict[str, int]:
        """Steps beyond the one just done that others have reached."""
        reached = {"looked_at": work.record.step + work.looked_ahead_steps if work.looked_ahead_steps else None}
        for track, what, name in (("planner", "plan", "planned"), ("reader", "fetch", "fetched")):
            reached[name] = self._tracks[track].last_step.get(what) if track in self._tracks else None
        return {name: max(0, step - work.record.step) for name, step in reached.items() if step is not None}

    def _start_line(self, header: Header, layout: Layout, num_steps: int, worker: int) -> dict[str, Any]:
        return {
            "kind": "start", "format_version": 1, "step": header.first_step, "worker": worker,
            "num_workers": header.num_workers, "num_steps": num_steps, "num_servers": self._num_servers,
            "wall_seconds": time.time() - (self.clock() - self.begun), "planner": header.planner,
            "capacity_rows": header.capacity_rows, "row_bytes": layout.row_bytes,
            "tables": [table.name for table in layout.tables],
            "table_rows": [table.num_rows for table in layout.tables],
            "series_every_steps": self._series.every_steps,
        }  # fmt: skip


def window_steps(num_steps: int, timeline_steps: int) -> frozenset[int]:
    """The steps whose spans are kept: windows spread evenly over the run, each in the middle of its part."""
    if timeline_steps >= num_steps:
        return frozenset(range(num_steps))
    num_windows = max(1, timeline_steps // WINDOW_STEPS) if timeline_steps else 0
    length = min(WINDOW_STEPS, timeline_steps)
    begins = [int((window + 0.5) * num_steps / num_windows - length / 2) for window in range(num_windows)]
    return frozenset(step for begin in begins for step in range(begin, begin + length))


def span_line(span: Span) -> dict[str, Any]:
    line = {"kind": "span", "lane": span.track, "what": span.what, "step": span.step}
    return {**line, "begin": round(span.begin, 6), "end": round(span.end, 6), "bytes": span.num_bytes}
