"""A run in figures, one point for an interval of steps, and the file they are written to: RUN/timeline/worker-N.jsonl.

In: every step's work, and at the end of an interval the cache and the sums of all tracks. Out: one JSON object a line:
seconds by activity, bytes by link, what the cache held. Sums are exact over all steps; counts by table look at every
row of a step and are taken at the last step of an interval only. Bytes are those of the rows, without the wire's own.

A later start of the run continues the file: steps that will be trained again are removed first. A recording is no
result: if it cannot be written, training goes on after one warning.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Int64
from foresee.engine.cache import Caches
from foresee.engine.planned_step import PlannedStep
from foresee.io.disk_stats import DiskFigures, since
from foresee.io.files import Files
from foresee.plan.count import num_unused
from foresee.store.layout import Layout

EVERY_STEPS_MIN = 10
"""Of a short run: a point more often would cost more than it shows."""
TABLES_EVERY_POINTS = 10
TrackSeconds = dict[str, dict[str, float]]


class Series:
    """Sums since the last point."""

    def __init__(self, layout: Layout, *, num_steps: int, points: int, num_servers: int, num_workers: int) -> None:
        self.every_steps = every_steps(num_steps, points)
        self._row_bytes = [group.row_bytes for group in layout.groups]
        self._first_row_after = np.cumsum([table.num_rows for table in layout.tables])
        self._num_links, self._num_steps = max(1, num_servers), num_steps
        self._unique_by_table = np.zeros(len(layout.tables), np.int64)
        self._fetched_by_table = np.zeros(len(layout.tables), np.int64)
        self._counted_steps = 0
        # Never set back: a background exchange may add to it at any moment. Each number is one thread's.
        self._peers = np.zeros((num_workers, 4), np.int64)

    def begin(self, step: int, now: float, tracks: TrackSeconds, disks: list[DiskFigures]) -> None:
        """A run begins, or goes on, with this step."""
        self._first_step = step
        self._disks = disks
        self.start(step, now, tracks)

    def start(self, step: int, now: float, tracks: TrackSeconds) -> None:
        """An interval begins."""
        self._step, self._now, self._tracks = step, now, tracks
        self._loss, self._losses, self._refilled = 0.0, 0, 0
        self._lookups, self._unique, self._fetched, self._evicted, self._received = 0, 0, 0, 0, 0
        self._store = np.zeros((self._num_links, 2), np.int64)
        self._peers_before = self._peers.copy()

    def due(self, step: int) -> bool:
        """Does an interval end with this step?"""
        steps_done = step + 1
        return self.every_steps > 0 and (steps_done % self.every_steps == 0 or steps_done == self._num_steps)

    def has_begun(self, step: int) -> bool:
        """Would a point after this step count anything?"""
        return self.every_steps > 0 and step + 1 > self._step

    def arrived(self, work: PlannedStep, caches: Caches) -> None:
        if not self.due(work.record.step):
            return
        self._unique_by_table += self._by_table(rows_of(work, caches))
        fetch = work.record.fetch
        self._fetched_by_table += self._by_table(fetch.row[np.isin(fetch.slot, work.record.unique)])
        self._counted_steps += 1

    def swapped(self, sent: dict[int, int], received: dict[int, int], *, critical: bool) -> None:
        for column, numbers in ((0, sent), (1, received)):
            for peer, num_bytes in numbers.items():
                self._peers[peer, column + 2 * (not critical)] += num_bytes

    def learned(self, loss: float) -> None:
        self._loss += loss
        self._losses += 1

    def done(self, work: PlannedStep) -> None:
        record = work.record
        self._lookups += len(record.inverse)
        self._unique += len(record.unique)
        self._fetched += len(record.fetch)
        if record.step <= self._first_step + 1:
            self._refilled += num_unused(record)
        self._evicted += len(record.evict)
        self._received += len(record.recv)
        for part, row_bytes in zip(work.groups, self._row_bytes, strict=True):
            self._store += row_bytes * self._by_link(part.record.fetch.row, part.record.evict.row)

    def _by_link(self, fetched: Int64, evicted: Int64) -> NDArray[np.int64]:
        """[links, 2]: rows read from and written to each server."""
        if self._num_links == 1:
            return np.array([[len(fetched), len(evicted)]], np.int64)
        links = [np.bincount(rows % self._num_links, minlength=self._num_links) for rows in (fetched, evicted)]
        return np.stack(links, axis=1)

    def read(
        self, work: PlannedStep, caches: Caches, now: float, tracks: TrackSeconds, ahead: dict[str, int],
        disks: list[DiskFigures],
    ) -> list[dict[str, Any]]:  # fmt: skip
        """The lines of the interval that ends with this step; a new one begins."""
        steps_done, peers_now = work.record.step + 1, self._peers.copy()
        peers = peers_now - self._peers_before
        line = {
            "kind": "series", "step": steps_done, "steps": steps_done - self._step,
            "seconds": round(now - self._now, 6), "lanes": _differences(tracks, self._tracks),
            "lookups": self._lookups, "unique": self._unique, "fetched": self._fetched,
            "refilled": self._refilled, "evicted": self._evicted, "received": self._received,
            "occupied": caches.num_occupied, "ahead": ahead,
            "store_bytes": self._store.tolist(), "peer_bytes": peers.tolist(),
            "loss": self._loss / self._losses if self._losses else None, "disks": since(disks, self._disks),
        }  # fmt: skip
        self._disks = disks
        self.start(steps_done, now, tracks)
        self._peers_before = peers_now
        last = steps_done == self._num_steps
        return [line, *([self._tables_line(steps_done)] if last or self._tables_due(steps_done) else [])]

    def rest(self, steps_done: int) -> list[dict[str, Any]]:
        """What was counted by table since the last line of it."""
        return [self._tables_line(steps_done)] if self._counted_steps else []

    def _tables_due(self, steps_done: int) -> bool:
        return steps_done // self.every_steps % TABLES_EVERY_POINTS == 0

    def _tables_line(self, steps_done: int) -> dict[str, Any]:
        line = {
            "kind": "tables", "step": steps_done, "steps": self._counted_steps,
            "unique": self._unique_by_table.tolist(), "fetched": self._fetched_by_table.tolist(),
        }  # fmt: skip
        self._unique_by_table[:], self._fetched_by_table[:], self._counted_steps = 0, 0, 0
        return line

    def _by_table(self, rows: Int64) -> NDArray[np.int64]:
        tables = np.searchsorted(self._first_row_after, rows, side="right")
        return np.bincount(tables, minlength=len(self._first_row_after)).astype(np.int64)


def every_steps(num_steps: int, points: int) -> int:
    """Steps of an interval so that a run has at most so many points; 0: no points."""
    return max(min(EVERY_STEPS_MIN, -(-num_steps // 10)), -(-num_steps // points)) if points else 0


def rows_of(work: PlannedStep, caches: Caches) -> Int64:
    """The distinct rows of a step, by its lookups if they are there; else by the slots, which do not know copies."""
    record = work.record
    if not len(work.batch.rows):
        return caches.rows_in(work)
    rows = np.empty(len(record.unique), np.int64)
    rows[record.inverse] = work.batch.rows
    return rows


def _differences(now: TrackSeconds, before: TrackSeconds) -> TrackSeconds:
    return {
        track: {what: round(total - before.get(track, {}).get(what, 0.0), 6) for what, total in sums.items()}
        for track, sums in now.items()
    }


TIMELINE_FOLDER = "timeline"


class TimelineFile:
    """Appends to a worker's file."""

    def __init__(self, run_folder: Path, worker: int) -> None:
        self.path = run_folder / TIMELINE_FOLDER / f"worker-{worker}.jsonl"
        self._given_up = False

    def forget_from(self, step: int) -> None:
        """Keeps what was recorded of the steps before this one."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            kept = [json.dumps(line) + "\n" for line in self._lines() if step and before(line, step)]
            Files().publish(self.path, "".join(kept).encode())
        except OSError as error:
            self._give_up(error)

    def append(self, lines: Sequence[dict[str, Any]]) -> None:
        """In one write, so that a reader sees whole lines."""
        if self._given_up or not lines:
            return
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))
        except OSError as error:
            self._give_up(error)

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for text in self.path.read_text("utf-8").splitlines():
            try:
                yield json.loads(text)
            except json.JSONDecodeError:
                continue  # half a line of a process that was killed

    def _give_up(self, error: OSError) -> None:
        self._given_up = True
        warnings.warn(
            f"{self.path} cannot be written ({error.strerror}); training goes on, and `foresee report` will show less",
            RuntimeWarning,
            stacklevel=2,
        )


def before(line: dict[str, Any], step: int) -> bool:
    """Is this a line of steps before `step`? Points of the series count the steps done, spans name their step."""
    return bool(line["step"] < step or (line["step"] == step and line["kind"] in ("series", "tables")))
