"""What a run folder tells: its configuration, its metrics, and what each worker recorded of itself.

In: the folder of a run, under way or over, or of your own loop. Out: a `RunRecords`. Lines that are not whole are
passed over, as is everything a later start of the run did again. Reads plain files and nothing else: no log, no table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from foresee.errors import InputError
from foresee.io.disk_stats import DiskFigures

Line = dict[str, Any]
TASK_FIGURES = ("auc", "rmse", "accuracy")
SPAN_MARK = '{"kind": "span"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that one thread of a worker did, in seconds since the first worker of the run began."""

    track: str
    what: str
    step: int
    begin: float
    end: float
    num_bytes: int

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An interval of steps of one worker."""

    step: int
    """Steps of the run that were done when it ended."""
    steps: int
    seconds: float
    tracks: dict[str, dict[str, float]]
    """Seconds of the interval by track and activity."""
    lookups: int
    unique: int
    fetched: int
    evicted: int
    received: int
    occupied: int
    """Rows in the cache at its end."""
    ahead: dict[str, int]
    """Steps that others were ahead of training at its end: looked_at, planned, fetched."""
    store_bytes: list[list[int]]
    """For each server: read, written."""
    peer_bytes: list[list[int]]
    """For each worker: sent and received on the critical path, sent and received in the background."""
    loss: float | None = None
    """Mean over the interval, if the loop said it."""
    refilled: int = 0
    """Of the fetched rows, those that only filled the cache where the run went on."""
    disks: list[DiskFigures] = field(default_factory=list)
    """For each disk, or each server's: what it read and wrote; only at worker 0."""
    first: bool = False
    """The first of a start of the run: it contains compiling, reading ahead and planning the first window."""

    @property
    def hit_rate(self) -> float:
        return hit_rate([self])

    def train_seconds(self, *activities: str) -> float:
        """Of the training thread, by these activities."""
        done = self.tracks.get("train", {})
        return sum(done.get(what, 0.0) for what in activities)


def hit_rate(points: Sequence[Point]) -> float:
    """The share of the steps' rows that were not fetched for them. Older recordings count refills as fetches."""
    unique = sum(point.unique for point in points)
    return max(0.0, 1.0 - sum(point.fetched - point.refilled for point in points) / unique) if unique else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecords:
    """What one worker recorded."""

    worker: int
    start: Line
    """As of the last start: sizes, names of tables."""
    points: tuple[Point, ...]
    spans: tuple[Span, ...]
    unique_by_table: tuple[int, ...]
    """Distinct rows of the steps at which points ended, by table."""
    fetched_by_table: tuple[int, ...]

    @property
    def steady(self) -> tuple[Point, ...]:
        """The points without those in which a start of the run warmed up; all, if there are no others."""
        return tuple(point for point in self.points if not point.first) or self.points


@dataclass(frozen=True, kw_only=True)
class RunRecords:
    """Everything that a run folder tells."""

    folder: Path
    config: Line
    """Empty for a custom loop."""
    metrics: tuple[Line, ...] = field(repr=False)
    workers: tuple[WorkerRecords, ...] = field(repr=False)
    """Empty if the run was not recorded."""

    @property
    def task_figures(self) -> list[str]:
        """The figures that say how good the run's tasks are: auc, or task.auc, task.rmse, task.accuracy of several."""
        lines = [line for line in self.metrics if line.get("kind") in ("train", "valid")]
        names = dict.fromkeys(name for line in lines for name in line if name.rpartition(".")[2] in TASK_FIGURES)
        return [name for name in names if any(line.get(name) is not None for line in lines)]

    def of_kind(self, kind: str) -> list[Line]:
        """The metrics of one kind: train, valid or commit."""
        return [line for line in self.metrics if line.get("kind") == kind]

    @cached_property
    def num_steps(self) -> int:
        """Of the whole run; 0 if it is not known."""
        said = [worker.start["num_steps"] for worker in self.workers]
        said += [line["num_steps"] for line in self.of_kind("train") if "num_steps" in line]
        return max(said, default=0)

    @property
    def finished(self) -> bool:
        """All steps are done, and what follows the last of them is written."""
        commits = [line["step"] for line in self.of_kind("commit")]
        return 0 < self.num_steps <= (max(commits, default=0) if self.config else self.steps_done)

    @cached_property
    def steps_done(self) -> int:
        points = [worker.points[-1].step for worker in self.workers if worker.points]
        return max([*points, *(line["step"] for line in self.metrics)], default=0)


def figure_words(name: str) -> str:
    """A figure for a person: `auc` is AUC, `click.auc` is click: AUC."""
    task, _, figure = name.rpartition(".")
    words = figure.upper() if figure in ("auc", "rmse") else figure
    return f"{task}: {words}" if task else words


def read_run(folder: Path, *, spans: bool = True) -> RunRecords:
    """Refuses a folder in which no run has written anything. Without spans it is quick enough to do every second."""
    config_file, files = folder / "config.yaml", sorted(folder.glob("timeline/worker-*.jsonl"))
    metrics = tuple(line for line in _lines(folder / "metrics.jsonl") if "kind" in line and "step" in line)
    if not config_file.is_file() and not files and not metrics:
        raise InputError(f"{folder} holds no run; give the folder that `run` in a run file names")
    try:
        config = yaml.safe_load(config_file.read_text("utf-8")) if config_file.is_file() else {}
    except (OSError, yaml.YAMLError) as error:
        raise InputError(f"{config_file} cannot be read ({error}); restore the file of that run") from None
    recorded = [_current(list(_lines(file, spans=spans))) for file in files]
    recorded = sorted((lines for lines in recorded if lines), key=lambda lines: int(lines[0]["worker"]))
    begun = min((lines[0]["wall_seconds"] for lines in recorded), default=0.0)
    return RunRecords(
        folder=folder,
        config=config if isinstance(config, dict) else {},
        metrics=metrics,
        workers=tuple(_worker(lines, begun) for lines in recorded),
    )


def _lines(file: Path, *, spans: bool = True) -> Iterator[Line]:
    """Whole lines: a process that was killed, or that is writing now, may have left half of one."""
    if not file.is_file():
        return
    for text in file.read_text("utf-8", errors="replace").splitlines():
        if not spans and text.startswith(SPAN_MARK):
            continue
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict):
            yield line


def _current(lines: list[Line]) -> list[Line]:
    """Without what comes before the first start and what a later start did again."""
    kept: list[Line] = []
    for line in lines:
        if line.get("kind") == "start":
            kept = [old for old in kept if _before(old, line["step"])]
        if kept or line.get("kind") == "start":
            kept.append(line)
    return kept


def _before(line: Line, step: int) -> bool:
    return bool(line["step"] < step or (line["step"] == step and line["kind"] in ("series", "tables")))


def _worker(lines: list[Line], begun: float) -> WorkerRecords:
    start = [line for line in lines if line["kind"] == "start"][-1]
    points: list[Point] = []
    spans: list[Span] = []
    unique, fetched = [0] * len(start["tables"]), [0] * len(start["tables"])
    offset, first = 0.0, True
    for line in lines:
        if line["kind"] == "start":
            offset, first = line["wall_seconds"] - begun, True
        elif line["kind"] == "series":
            known = {name: line[name] for name in Point.__dataclass_fields__ if name in line}
            points.append(Point(**known, tracks=line["lanes"], first=first))
            first = False
        elif line["kind"] == "span":
            spans.append(_span(line, offset))
        elif line["kind"] == "tables":
            unique = [old + new for old, new in zip(unique, line["unique"], strict=True)]
            fetched = [old + new for old, new in zip(fetched, line["fetched"], strict=True)]
    return WorkerRecords(
        worker=start["worker"],
        start=start,
        points=tuple(points),
        spans=tuple(spans),
        unique_by_table=tuple(unique),
        fetched_by_table=tuple(fetched),
    )


def _span(line: Line, offset: float) -> Span:
    return Span(
        track=line["lane"],
        what=line["what"],
        step=line["step"],
        begin=line["begin"] + offset,
        end=line["end"] + offset,
        num_bytes=line["bytes"],
    )
