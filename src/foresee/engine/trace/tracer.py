"""What a run records of itself for `foresee report` and `foresee watch`: which thread did what when, and how it went.

Every thread of a worker has a track. `with tracer.span("fetch", step, num_bytes):` surrounds an activity; while a span
is open inside another one, time counts for the inner one only, so no time of a track counts twice. Time outside spans
is not recorded unless `mark` names it afterwards, as the training thread does with the time of the user's loop. Sums
over an interval of steps are always recorded (`series`); during a few windows of steps, spread over the run, every span
is as well.

In: spans, and the work and cache of every step. Out: lines of RUN/timeline/worker-N.jsonl, at most
`SPANS_PER_STEP_MAX` spans for each recorded step and `series_points` points, whatever the length of the run. It changes
nothing that a run computes.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

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
"""The track of the thread that trains: every thread that the engine did not start."""
THREADS = ("planner", "reader", "writer", "update", "exchange")
"""The other tracks, one for each thread that the engine starts."""


def thread_name(track: str) -> str:
    """Return the name of the thread whose spans go to a track."""
    return f"foresee-{track}"


Disks = Callable[[], list[DiskFigures]]


def no_disks() -> list[DiskFigures]:
    """Of a store that has none."""
    return []


class Span(NamedTuple):
    """One span of a window, in seconds since the recording began."""

    track: str
    what: str
    step: int
    begin: float
    end: float
    num_bytes: int


class Track:
    """Sums of what one thread did, and its spans while a window is open."""

    def __init__(self, name: str, tracer: Tracer) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.last_step: dict[str, int] = {}  # the latest step of each kind of span
        self.open: list[_OpenSpan] = []  # from the outermost to the innermost
        self.clock = tracer.clock
        self.last = self.clock()  # when the last span ended, or the innermost open one was entered
        self._name, self._tracer = name, tracer

    def add(self, what: str, step: int, num_bytes: int = 0) -> None:
        """Record the time since `last` as one span."""
        tracer, last = self._tracer, self.last
        self.last = now = self.clock()
        self.seconds[what] += now - last
        self.last_step[what] = step
        if last < tracer.spans_until:
            begun = tracer.begun
            tracer.spans.append(Span(self._name, what, step, last - begun, now - begun, num_bytes))


class _OpenSpan:
    """The context of one span, for the thread that made it."""

    __slots__ = ("num_bytes", "step", "track", "what")

    def __init__(self, track: Track, what: str, step: int, num_bytes: int) -> None:
        self.track, self.what, self.step, self.num_bytes = track, what, step, num_bytes

    def __enter__(self) -> None:
        track = self.track
        if track.open:
            outer = track.open[-1]
            track.add(outer.what, outer.step)
        else:
            track.last = track.clock()
        track.open.append(self)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        track = self.track
        track.open.pop()
        if kind is None:  # else the activity was not completed, such as a wait that ends because no step follows
            track.add(self.what, self.step, self.num_bytes)


class Tracer:
    """Records a run into a folder, in a file for each worker. One thread trains; others may only add spans."""

    def __init__(
        self, folder: Path, *, timeline_steps: int = 96, series_points: int = 1000, num_servers: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self.clock, self.begun = clock, clock()
        self.spans: list[Span] = []
        self.spans_until = float("-inf")
        """Spans that began before are kept."""
        self._folder, self._timeline_steps, self._series_points = folder, timeline_steps, series_points
        self._num_servers = num_servers
        self._tracks: dict[str, Track] = {}
        self._of_thread = threading.local()
        self._spans_left = timeline_steps * SPANS_PER_STEP_MAX
        self._last_done: tuple[PlannedStep, Caches] | None = None

    def begin(self, header: Header, layout: Layout, *, num_steps: int, worker: int, disks: Disks = no_disks) -> None:
        """Begin before the first step.

        Args:
            header: What is planned.
            layout: Of the rows.
            num_steps: Steps of the whole run.
            worker: Which worker this is.
            disks: Returns what the disks of the store have done.
        """
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

    def span(self, what: str, step: int, num_bytes: int = 0) -> AbstractContextManager[None]:
        """Return a context whose time is recorded as an activity of the calling thread, unless an exception ends it."""
        return _OpenSpan(self.track(), what, step, num_bytes)

    def mark(self, what: str, step: int) -> None:
        """Record what the calling thread did since its last span ended."""
        self.track().add(what, step)

    def track(self) -> Track:
        """Return the track of the calling thread, which begins at the first call."""
        found: Track | None = getattr(self._of_thread, "track", None)
        if found is None:
            # A pool appends a number to the name of its threads.
            name = threading.current_thread().name.partition("_")[0]
            name = next((it for it in THREADS if thread_name(it) == name), TRAIN)
            found = self._tracks.setdefault(name, Track(name, self))
            self._of_thread.track = found
        return found

    def arrived(self, work: PlannedStep, caches: Caches) -> None:
        """Count the rows of a step, which are in their slots now."""
        self._series.arrived(work, caches)

    def swapped(self, sent: dict[int, int], received: dict[int, int], *, critical: bool) -> None:
        """Count the bytes that went to and came from each peer."""
        self._series.swapped(sent, received, critical=critical)

    def learned(self, loss: float) -> None:
        """Record the loss of the step that is carried out."""
        self._series.learned(loss)

    def done(self, work: PlannedStep, caches: Caches) -> None:
        """Count a step that was carried out."""
        self._series.done(work)
        self._last_done = work, caches
        if self._series.due(work.record.step):
            self._write_point(work, caches)
        self._open_or_close(work.record.step + 1)

    def end(self) -> None:
        """Write what is left: no step follows."""
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


class NullTracer(Tracer):
    """Records nothing."""

    def __init__(self) -> None:
        pass

    def begin(self, header: Header, layout: Layout, *, num_steps: int, worker: int, disks: Disks = no_disks) -> None:
        pass

    def span(self, what: str, step: int, num_bytes: int = 0) -> AbstractContextManager[None]:
        return _NO_SPAN

    def mark(self, what: str, step: int) -> None:
        pass

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


_NO_SPAN = nullcontext()
NULL_TRACER = NullTracer()


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
