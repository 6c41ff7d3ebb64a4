"""Where rows lie: the store's own log, replayed from a plan without a byte of a row, and the reads that follow.

In: the steps of a plan, played; how rows look, how often a run commits. Out: for a fetch, where a row was then (nowhere
yet, in memory among those written last, in a chunk of the log) and which rows of that fetch came with the same read.
Every decision is that of `store.disk.log`, which here has a file that remembers ids and versions alone. With servers it
is the log of the one that has the row. A read is taken at the first moment at which it may be issued; the reader may be
later, and commits by the clock are not in a plan, so a real folder may have a row in memory that lies in a chunk here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from foresee.arrays import Float32, Int32, Int64
from foresee.io.direct import BUFFER_BYTES, PIECE_BYTES_MAX, Transfers, Way, join_pieces
from foresee.io.files import Files
from foresee.plan.record import Record
from foresee.store.contract import Rows
from foresee.store.disk.chunks import ChunkFile, Shape, chunk_bytes_for
from foresee.store.disk.index import IN_RECENT
from foresee.store.disk.log import RowLog
from foresee.store.disk.manifest import Chunks
from foresee.store.layout import Layout, Table
from foresee.tools.explain.figures import Lay, PlannedStep

SECTOR_BYTES = 512
COMPANIONS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What a plan does not say of its store."""

    layout: Layout
    num_shards: int
    commit_every_steps: int | None
    evaluate_every_steps: int | None


class PaperFile(ChunkFile):
    """A log that has ids and versions, and no rows."""

    def __init__(self, layout: Layout) -> None:
        self.path, self._layout = Path("log.bin"), layout
        self.shape = Shape.of(layout, chunk_bytes_for(layout))
        self._num_bytes = 0
        self._held: dict[int, tuple[Int64, Int32]] = {}

    def extend(self, num_chunks: int) -> None:
        self._num_bytes += num_chunks * self.shape.chunk_bytes

    def write(self, order: Int64, recent: tuple[Int64, Float32], chunks: Int64, sequence: int) -> None:
        ids, versions = recent[0], recent[1].view(np.int32)[:, -1]
        for place, chunk in enumerate(chunks.tolist()):
            slots = order[place * self.shape.chunk_rows : (place + 1) * self.shape.chunk_rows]
            self._held[chunk] = ids[slots], versions[slots]

    def sync(self) -> None:
        pass

    def read(self, positions: Int64, picks: Int64, rows: Int64, out: Rows, reads: Transfers) -> None:
        for place, position in zip(picks.tolist(), positions.tolist(), strict=True):
            chunk, inside = divmod(position, self.shape.chunk_rows)
            out.versions[place] = self._held[chunk][1][inside]

    def headers(self, entries: Int64) -> Iterator[tuple[int, Int64, Int32]]:
        for chunk in entries[:, 0].tolist():
            yield chunk, *self._held[chunk]


class _NoFiles(Files):
    def publish(self, path: Path, content: bytes) -> None:
        pass


class PaperLog:
    """Follows the fetches of one row."""

    def __init__(
        self, settings: StoreSettings, row: int, *, fetch_ahead_steps: int, name: Callable[[int], str] = str
    ) -> None:
        num_shards = settings.num_shards
        self._row, self._num_shards, self._shard = row, num_shards, row % num_shards
        num_rows = (settings.layout.num_rows - self._shard + num_shards - 1) // num_shards
        self._layout = replace(settings.layout, tables=(Table("shard", num_rows),))
        self._settings, self._delay, self._name = settings, fetch_ahead_steps + 1, name
        self._file = PaperFile(self._layout)
        self._log = RowLog(
            Path("paper"),
            self._layout,
            self._file.shape.chunk_bytes,
            _NoFiles(),
            Transfers(Way("mapped"), 0),
            threading.Lock(),
            file=self._file,
        )
        self._steps: deque[PlannedStep] = deque()
        self._versions = 0
        self._commits: list[Chunks | None] = []
        self.lays: dict[int, Lay] = {}
        """Where it lay, by the step it was fetched for."""

    def add(self, played: PlannedStep) -> None:
        """Steps come in order; each is carried out once all fetches that may follow it at once are known."""
        self._steps.append(played)
        if len(self._steps) > self._delay:
            self._carry_out(self._steps[0])
            self._steps.popleft()

    def finish(self) -> dict[int, Lay]:
        while self._steps:
            self._carry_out(self._steps[0])
            self._steps.popleft()
        return self.lays

    def _carry_out(self, played: PlannedStep) -> None:
        for record in played.records:
            self._write(record.evict.row, record.evict.known_next_use)
        done = played.step + 1
        commits, evaluates = self._settings.commit_every_steps, self._settings.evaluate_every_steps
        if any(every is not None and done % every == 0 for every in (commits, evaluates)):
            for rows in played.kept:
                self._write(rows, None)
        if commits is not None and done % commits == 0:
            self._commits = [*self._commits[-1:], self._log.seal()]
            self._log.keep(self._commits)
        self._look_up_fetches(played.step)

    def _write(self, rows: Int64, next_use: Int32 | None) -> None:
        """Every write has a higher version than all before, as those of a run have."""
        here = np.flatnonzero(rows % self._num_shards == self._shard)
        if not len(here):
            return
        self._versions += 1
        source = Rows.empty(len(here), self._layout)
        source.versions.fill(self._versions)
        self._log.reserve(len(here))
        floors = np.zeros(len(here), np.int32)
        self._log.write(rows[here] // self._num_shards, source, None if next_use is None else next_use[here], floors)

    def _look_up_fetches(self, step: int) -> None:
        """Those that may be issued once the write-backs of this step are applied."""
        for played in self._steps:
            for record in played.records:
                here = record.not_before == step and bool((record.fetch.row == self._row).any())
                if here and played.step not in self.lays:
                    self.lays[played.step] = self._lay(record)

    def _lay(self, record: Record) -> Lay:
        rows = record.fetch.row[record.fetch.row % self._num_shards == self._shard]
        local = rows // self._num_shards
        nothing = np.zeros((self._layout.num_rows + 7) // 8, np.uint8)
        found = self._log.index.look_up(local, nothing, Rows.empty(len(local), self._layout))
        places = found.places(len(local))
        mine = int(places[rows == self._row][0])
        in_log = np.flatnonzero(places >= 0)
        lay = Lay(num_rows=len(rows), num_in_memory=int(np.count_nonzero(places == IN_RECENT)), num_in_log=len(in_log))
        if mine == IN_RECENT:
            lay.place = "memory"
        if mine < 0:
            return lay
        order = in_log[np.argsort(places[in_log], kind="stable")]
        return self._with_read(lay, rows[order], places[order])

    def _with_read(self, lay: Lay, rows: Int64, positions: Int64) -> Lay:
        """Who comes with it: rows in the order in which they lie."""
        shape, number = self._file.shape, len(rows)
        offsets, lengths, places, words = (np.empty(number, np.int64) for _ in range(4))
        longest = max(PIECE_BYTES_MAX, shape.record_bytes + 2 * SECTOR_BYTES)
        starts, begin = shape.starts(positions), 0
        mine = int(np.flatnonzero(rows == self._row)[0])
        while begin < number:
            requests, end = join_pieces(
                starts, shape.record_bytes, SECTOR_BYTES, begin, BUFFER_BYTES, longest, offsets, lengths, places, words
            )
            lay.num_reads += requests
            if begin <= mine < end:
                which = np.searchsorted(offsets[:requests], starts[begin:end], side="right") - 1
                together = begin + np.flatnonzero(which == which[mine - begin])
                lay.read_bytes, lay.num_together = int(lengths[which[mine - begin]]), len(together)
                others = rows[together[together != mine]][:COMPANIONS_SHOWN]
                lay.companions = [self._name(row) for row in others.tolist()]
            begin = end
        lay.place, lay.chunk = "log", int(positions[mine] // shape.chunk_rows)
        lay.num_in_chunk = int(np.count_nonzero(positions // shape.chunk_rows == lay.chunk))
        return lay
