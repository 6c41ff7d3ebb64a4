"""`foresee.steps`: a log or batches of one's own, and tables, made into steps whose rows are there.

In: what to train on, the tables, the size of the cache and a planner. Out: a `Run` that goes on after the tables' last
commit. What cannot be is refused before the first step: a cache without a row, a log without a batch size, and other
batches than the tables were trained on, unless `first_step` says they are meant. A log is told by its digest, batch
size and seed, batches of one's own by their name or by the ids and labels of the first few: these are read in any case,
so nothing is read twice.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from foresee.data.batch import Batch, BatchStream
from foresee.data.batches import STEPS_MAX, Batches, OwnBatch
from foresee.data.click_log import ClickLog
from foresee.data.stream import LogStream
from foresee.engine.feed import NO_FEED, Feed, PulledFeed, Reach
from foresee.engine.header import groups_for, make_header
from foresee.engine.history import BATCHES, LOG, NAME, Trained, newest, parse
from foresee.engine.next_uses import USES_AHEAD_STEPS
from foresee.engine.planned_step import Pooling
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.engine.trace.tracer import NULL_TRACER, Tracer
from foresee.errors import DataError, UsageError
from foresee.plan import planned_from
from foresee.plan.record import Header
from foresee.run.shared_memory import private
from foresee.store.contract import takes_next_use
from foresee.store.row_groups import groups_of

_logger = logging.getLogger(__name__)

FIRST_BYTES = 1
"""Where the planner's window begins: it grows by one batch per step, so that the first step does not wait for all."""
MARKS = 8
"""So many of the first batches tell a source without a name."""


@dataclass
class SourceStream:
    """The batches of a source from where training of the tables goes on, numbered by the tables' steps."""

    stream: BatchStream
    since: int
    first_batch: int
    kind: str
    before: Trained | None
    """The source of the tables' last commit, if this has to be the same."""
    marks: list[str] = field(default_factory=list)
    feed: Feed = NO_FEED
    """Who pulls batches of a user's source, in the thread of the training loop; without one they are read here."""
    plans: bool = True
    """The feed pulls what this reader needs to plan a step."""

    @property
    def num_rows(self) -> int:
        return self.stream.num_rows

    @property
    def digest(self) -> str:
        return self.stream.digest

    @property
    def num_steps(self) -> int:
        return min(STEPS_MAX, self.stream.num_steps + self._shift)

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        """All batches from a step of the tables on."""
        first, shift = first_step - self._shift, self._shift
        if not isinstance(self.stream, Batches):
            yield from (replace(batch, step=batch.step + shift) for batch in self.stream.batches(first))
            return
        for batch in self._read(first):
            if len(self.marks) == batch.step < MARKS and self.kind == BATCHES:
                self._mark(batch)
            if batch.step >= first:
                yield replace(batch, step=batch.step + shift)
        if self.before is not None and len(self.marks) < len(self.before.marks):
            raise another(self.before, f"they are {len(self.marks)}")

    def read_again(self, first_step: int) -> Iterator[Batch]:
        """All batches from a step of the tables on, beside the plan, where the source can be read twice."""
        if isinstance(self.stream, Batches) and not self.stream.is_repeatable:
            raise UsageError("these batches are read once")
        return self.stream.batches(first_step - self._shift)

    def pull(self, header: Header, *, reads_on: bool = False, plans: bool = True) -> None:
        """Let the training loop's thread pull the batches of a user's source.

        Args:
            header: What is planned.
            reads_on: Read past the end of an epoch: the order is known to be a function of the epoch.
            plans: Whether this process plans; otherwise records come from elsewhere.
        """
        if not isinstance(self.stream, Batches):
            return
        source, first, shift = self.stream, header.first_step - self._shift, self._shift
        begun = planned_from(header) - shift if plans else first
        window_steps = header.options.window_steps
        begin, epochs = source.epochs_from(begun, always=self._always)

        def make(item: Any, number: int, is_last_known: bool) -> OwnBatch:
            return replace(source.batch_of(item, number), is_last_known=is_last_known)

        self.feed = PulledFeed(
            (map(private, epoch) for epoch in epochs),
            make,
            begin=begin,
            first=first,
            kept=self._always,
            planned_from=None if begun == first else begun,
            shift=shift,
            reads_on=reads_on or source.is_repeatable,
            plans=plans,
            reach=Reach(
                window_steps=source.read_ahead_steps if window_steps is None else window_steps,
                fetch_ahead_steps=header.fetch_ahead_steps,
            ),
        )

    def trained(self, step: int) -> Trained:
        """What to write down with the commit of a step."""
        num_marks = step - self._shift if self.kind == BATCHES else 1
        marks = tuple(self.marks[:num_marks])
        return Trained(since=self.since, first_batch=self.first_batch, kind=self.kind, marks=marks)

    @property
    def _always(self) -> int:
        """Of the first batches these are read in any case, for their marks."""
        return 0 if self.kind == NAME else MARKS

    def _read(self, first: int) -> Iterator[Batch]:
        if isinstance(self.feed, PulledFeed):
            return self.feed.batches(first, plans=self.plans)
        assert isinstance(self.stream, Batches)
        return self.stream.batches(first, always=self._always)

    @property
    def _shift(self) -> int:
        return self.since - self.first_batch

    def _mark(self, batch: Batch) -> None:
        self.marks.append(mark_of(batch))
        if self.before is not None and self.before.shows_another(self.kind, self.marks):
            raise another(self.before, f"batch {batch.step} has other ids or labels")


def mark_of(batch: Batch) -> str:
    """A digest of the ids and labels of a batch."""
    digest = hashlib.sha256(batch.rows.tobytes())
    digest.update(b"" if batch.bag_offsets is None else batch.bag_offsets.tobytes())
    digest.update(batch.labels.tobytes())
    return digest.hexdigest()[:32]


def enter(stream: BatchStream, first_step: int | None, committed_step: int, history: bytes | None) -> SourceStream:
    """The stream from where tables with this commit and this history go on with it."""
    kind, marks = _identity(stream)
    if first_step is not None:
        if first_step < 0:
            raise UsageError(f"first_step={first_step} is before the first batch; give 0 to train all of them")
        return SourceStream(stream, committed_step, first_step, kind, None, marks)
    before = newest(parse(history), committed_step)
    if before is None:  # nothing is trained yet, or by a version that did not write it down
        return SourceStream(stream, 0, 0, kind, None, marks)
    if before.shows_another(kind, marks):
        raise another(before, f"they are {_words(kind, marks)}")
    return SourceStream(stream, before.since, before.first_batch, kind, before, marks)


def _identity(stream: BatchStream) -> tuple[str, list[str]]:
    if isinstance(stream, LogStream):
        return LOG, [stream.order_digest]
    name = stream.name if isinstance(stream, Batches) else None
    return (BATCHES, []) if name is None else (NAME, [name])


def another(before: Trained, why: str) -> DataError:
    return DataError(
        f"these batches are not the ones that the tables were trained on since step {before.since}, which are "
        f"{_words(before.kind, before.marks)}: {why}; give first_step=0 to lookahead to train all of them on these "
        "tables, or the same batches as before to go on with those"
    )


def _words(kind: str, marks: Sequence[str]) -> str:
    if kind == LOG:
        return f"of a log (log, batch size and seed give {marks[0][:12]})"
    return f"named {marks[0]!r}" if kind == NAME else "batches without a name"


def steps(
    log: ClickLog | Batches,
    tables: Tables,
    *,
    batch_size: int | None = None,
    cache_rows: int,
    epochs: int = 1,
    seed: int = 0,
    planner: str = "lookahead",
    window_steps: int | None = None,
    window_bytes: int | None = None,
    device: str | torch.device = "cpu",
    num_threads: int = 1,
    record: str | Path | None = None,
    first_step: int | None = None,
) -> Run:
    """Steps over the log's train split, or over `Batches` of one's own, from the step after the tables' last commit.

    Tables that were trained on other batches refuse these, unless `first_step` says that they are meant.

    Args:
        log: What to train on.
        tables: The rows and how they learn. They are committed when the loop ends, by itself or by `break`.
        batch_size: Samples of a step, of a log; batches of one's own have theirs.
        cache_rows: Slots of the cache; at least the distinct rows of the largest batch.
        epochs: Passes over a log.
        seed: Of the order in which a log's samples come.
        planner: A name that `foresee.plan.trainable()` lists; all give the same bytes, with more or fewer rows moved.
        window_steps: A fixed lookahead as in the Bagpipe paper, instead of all that the cache can use.
        window_bytes: What the batches that the planner looks at may take; left out, 2 GB, and as much as
            `window_steps` need.
        device: Where the model computes and the cache is.
        num_threads: Threads of the kernels that gather and update rows.
        record: A folder into which the run records itself, for `foresee report` and `foresee watch`.
        first_step: The batch to begin with, such as 0 to train all batches of a new day on the tables of the days
            before, whose steps go on counting. Without it, a loop goes on after the last batch that these tables have
            committed.

    Returns:
        A `Run`: iterate over it once, and call `step.update()` in every step.
    """
    stream, pooling = stream_of(log, batch_size=batch_size, epochs=epochs, seed=seed)
    if isinstance(log, Batches):
        log.bags.check_tables(tables)
    committed_step = tables.store.committed_step
    source = enter(stream, first_step, committed_step, tables.history)
    header = make_header(
        source, planner=planner, cache_rows=cache_rows, first_step=committed_step, window_steps=window_steps,
        window_bytes=window_bytes, groups=groups_for(tables.layout, stream, read_once=isinstance(log, Batches)),
    )  # fmt: skip
    if isinstance(log, Batches):
        header = limit_read_ahead(log, header)
        source.pull(header)
    elif any(map(takes_next_use, groups_of(tables.store))):  # a log can be read twice
        header = replace(header, options=replace(header.options, uses_ahead_steps=USES_AHEAD_STEPS))
    if committed_step and first_step is None and not tables.is_trained_here:
        _say_resumed(committed_step, source.num_steps)
    tracer = NULL_TRACER if record is None else Tracer(Path(record))
    return Run(
        source, tables, header, pooling, device=torch.device(device), num_threads=num_threads, tracer=tracer,
        trained=source.trained,
    )  # fmt: skip


def limit_read_ahead(batches: Batches, header: Header) -> Header:
    """Return the header of a plan that reads no further ahead than the items of these batches may wait in memory."""
    options = replace(header.options, read_ahead_steps=batches.read_ahead_steps)
    if header.num_workers == 1 and options.window_steps is None:
        options = replace(options, window_first_bytes=FIRST_BYTES)
    return replace(header, options=options)


def _say_resumed(step: int, num_steps: int) -> None:
    """Tables resume by themselves, a model does not: say so, since a script that is run again looks like a new run."""
    rest = "this loop has no step left" if step >= num_steps else f"this loop begins with step {step}"
    _logger.warning(
        "the tables were opened after step %d, and %s; load the model and its optimizer as of step %d too "
        "(foresee.checkpoint), give first_step=0 to train all batches on these tables, or take a new folder to start "
        "anew", step, rest, step,
    )  # fmt: skip


lookahead = steps
"""The same, by the name of the planner that it has unless told otherwise."""


def stream_of(
    log: ClickLog | Batches, *, batch_size: int | None, epochs: int, seed: int
) -> tuple[BatchStream, Pooling]:
    """What a log or batches of one's own give, and how their lookups become vectors."""
    if isinstance(log, Batches):
        if batch_size is not None or epochs != 1 or seed != 0:
            raise UsageError("batches of one's own have their size, order and epochs; give these to Batches, not here")
        return log, log.bags.pooling
    if batch_size is None:
        raise UsageError("a log is cut into batches of batch_size samples; give it, such as batch_size=2048")
    return log.batches(batch_size=batch_size, seed=seed, epochs=epochs), log.pooling


def header_for_trainers(
    source: SourceStream, log: ClickLog | Batches, *, num_trainers: int, placement: str, first_step: int, **options: Any
) -> Header:
    """A plan that goes on as it began with this source: a loop that was interrupted ends with the same bytes."""
    if source.num_steps >= STEPS_MAX:
        raise UsageError(
            "several trainers have to know where batches end; say how many there are: Batches(..., num_steps=...)"
        )
    several = num_trainers > 1
    header = make_header(
        source, num_workers=num_trainers, first_step=first_step, placement=placement if several else None,
        planned_from=source.since if several and placement != "contiguous" else None, **options,
    )  # fmt: skip
    return limit_read_ahead(log, header) if isinstance(log, Batches) else header
