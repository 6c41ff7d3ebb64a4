"""A store in memory: one array of rows, nothing durable.

In: a layout. Rows nobody has written take no memory on systems that hand out zeroed pages lazily, and their initial
values are made when they are read. `commit` only remembers the step: a process that ends takes its rows with it. With
`undoable`, as servers have it, a row is kept as it was when it first changes after a commit, so the last commits can be
opened again, and memory grows with the distinct rows written, not with writes.
"""

from __future__ import annotations

import threading

import numpy as np

from foresee.arrays import Float32, Int64, zeroed_rows
from foresee.errors import StoreError, UsageError
from foresee.store.commits import Discard, ForgetWrites, GoBack, Instruction, Part, Promote, Seal
from foresee.store.contract import Rows, check_request
from foresee.store.kernels import (
    Bits,
    assign_in_base,
    clear_bits,
    gather,
    initial_of,
    locate_in_base,
    read_only,
    set_bits,
)
from foresee.store.layout import Layout
from foresee.store.parts import OnePart


class MemoryStore(OnePart):
    """Rows in RAM."""

    def __init__(self, layout: Layout, *, undoable: bool = False) -> None:
        self._layout = layout
        self._part = Part()
        self._undo: list[PreImages] | None = [PreImages(layout.num_rows)] if undoable else None
        """What rows were before: the previous commit's, the last one's if one is prepared, and since the newest."""
        self._initial = initial_of(layout)
        row_words = layout.row_bytes // 4
        try:
            self._base = zeroed_rows(layout.num_rows, row_words)
            self._written = np.zeros((layout.num_rows + 7) // 8, np.uint8)
        except (MemoryError, ValueError) as error:
            raise StoreError(
                f"tables of {layout.num_rows:,} rows need {layout.num_rows * layout.row_bytes:,} bytes, more than this "
                "machine's memory; keep them on disk"
            ) from error
        self._no_overlay = read_only(np.zeros((0, row_words), np.float32))
        self._writer = threading.Lock()
        self._closed = False

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def parts(self) -> tuple[Part]:
        return (self._part,)

    def read(self, rows: Int64, out: Rows) -> None:
        self._check_open()
        check_request(self._layout, rows, out)
        places = np.empty(len(rows), np.int64)
        locate_in_base(rows, self._written, places)
        gather(
            rows,
            places,
            read_only(self._base),
            self._no_overlay,
            0,
            self._initial,
            out.values,
            out.state,
            out.versions,
            0,
            len(rows),
        )

    def write(self, rows: Int64, source: Rows) -> None:
        self._check_open()
        check_request(self._layout, rows, source)
        with self._writer:
            if self._undo is not None:
                self._undo[-1].keep(rows, self._base, self._written)
            assign_in_base(rows, source.values, source.state, source.versions, self._base, self._written)

    def commit(self, step: int) -> None:
        self._check_open()
        super().commit(step)

    def carry_out(self, instruction: Instruction) -> None:
        """What a part is told to do; without `undoable` there is no way back from anything."""
        self._check_open()
        with self._writer:
            self._carry_out(instruction, self._part)

    def _carry_out(self, instruction: Instruction, part: Part) -> None:
        match instruction:
            case Seal(step):
                self._part = Part(committed=part.committed, previous=part.previous, prepared=step)
                if self._undo is not None:
                    self._undo.append(PreImages(self._layout.num_rows))
            case Promote(step):
                if self._undo is not None and part.previous is not None:
                    del self._undo[0]
                self._part = Part(committed=step, previous=None if self._undo is None else part.committed)
            case ForgetWrites():
                self._undo_last()
            case Discard():
                self._part = Part(committed=part.committed, previous=part.previous)
                self._undo_two()
            case GoBack(step):
                self._part = Part(committed=step)
                self._undo_two()

    def _undo_last(self) -> None:
        if self._undo is None:
            raise StoreError("these rows are in memory and nothing was kept of what they were; start anew")
        self._undo.pop().restore(self._base, self._written)
        self._undo.append(PreImages(self._layout.num_rows))

    def _undo_two(self) -> None:
        """Nothing was written since the newest commit; now that one is undone, too."""
        assert self._undo is not None, "writes were forgotten before, which needs it"
        self._undo.pop()
        self._undo_last()

    def close(self) -> None:
        self._closed = True
        self._base = np.zeros((0, self._base.shape[1]), np.float32)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this store is closed; open it again to use it")


class PreImages:
    """For one array of rows and the bits that say which of them were written."""

    def __init__(self, num_rows: int) -> None:
        self._kept: Bits = np.zeros((num_rows + 7) // 8, np.uint8)
        self._pieces: list[tuple[Int64, Float32, Int64]] = []
        """Rows, what they held, and which of them nobody had written."""

    def keep(self, rows: Int64, base: Float32, written: Bits) -> None:
        new = rows[~_are_set(self._kept, rows)]
        if len(new):
            set_bits(self._kept, new)
            self._pieces.append((new, base[new], new[~_are_set(written, new)]))

    def restore(self, base: Float32, written: Bits) -> None:
        for rows, words, unwritten in self._pieces:
            base[rows] = words
            clear_bits(written, unwritten)


def _are_set(bits: Bits, rows: Int64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = (bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 == 1
    return found
