"""Named points at which a process can be made to fail, so that recovery is tested where it is hardest.

Code calls `failpoint(point)` where being killed would be most awkward. Without the variable FORESEE_FAULTS that is one
comparison. With it, the folder it names is looked into: a file such as

    {"part": "server 0", "point": "sealed", "occurrence": 2, "signal": "SIGKILL"}

makes that part send itself the signal when it comes to the point for the second time, once: the file is first renamed
to `*.fired`, with the process id in it, so a test can see that the fault happened. FORESEE_PART is a process's name.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

FAULTS_VARIABLE = "FORESEE_FAULTS"
PART_VARIABLE = "FORESEE_PART"

# A table folder, in the order of a commit.
SEALING = "sealing"
SEALED = "sealed"
PROMOTED = "promoted"
UNDO_WRITTEN = "undo written"
FOLDING = "folding"
FOLDED = "folded"
GOING_BACK = "going back"
# Its copy in a storage.
PACK_COPIED = "pack copied"
COPYING = "copying"
COPIED = "copied"
# A trainer.
STEP_DONE = "step done"
FLUSHED = "flushed"
PREPARED = "prepared"
CHECKPOINT_WRITTEN = "checkpoint written"
DECIDED = "decided"
SETTLED = "settled"
MARKED = "marked"
RESTORED = "restored"
# Its rows, in the middle of a swap.
ROWS_FETCHED = "rows fetched"
ROWS_WRITTEN = "rows written"
# A server and the planner.
ROWS_APPLIED = "rows applied"
RUN_OPENED = "run opened"
RECORDS_SENT = "records sent"

COPY_POINTS = (PACK_COPIED, COPYING, COPIED)
STORE_POINTS = (SEALING, SEALED, PROMOTED, UNDO_WRITTEN, FOLDING, FOLDED)
TRAINER_POINTS = (STEP_DONE, FLUSHED, PREPARED, CHECKPOINT_WRITTEN, DECIDED, SETTLED, MARKED, RESTORED)
SWAP_POINTS = (ROWS_FETCHED, ROWS_WRITTEN)
SERVER_POINTS = (*STORE_POINTS, ROWS_APPLIED, RUN_OPENED)
PLANNER_POINTS = (RECORDS_SENT,)


class _Faults:
    """What a folder asks of this process."""

    def __init__(self, folder: Path, part: str) -> None:
        self._folder, self._part = folder, part
        self._reached: Counter[str] = Counter()

    def failpoint(self, point: str) -> None:
        self._reached[point] += 1
        for path in sorted(self._folder.glob("*.json")):
            with suppress(OSError, ValueError, KeyError):
                fault = json.loads(path.read_bytes())
                here = (fault["part"], fault["point"]) == (self._part, point)
                if here and self._reached[point] >= int(fault["occurrence"]):
                    self._fire(path, signal.Signals[fault["signal"]])

    def _fire(self, path: Path, number: signal.Signals) -> None:
        draft = path.with_suffix(".firing")
        draft.write_text(str(os.getpid()))
        os.replace(draft, path.with_suffix(".fired"))
        path.unlink()
        os.kill(os.getpid(), number)


_faults: _Faults | bool | None = False
"""False: not looked at yet."""


def failpoint(point: str) -> None:
    """This process has come to a named point."""
    if _faults is not None and (faults := _look()) is not None:
        faults.failpoint(point)


def arm(part: str) -> None:
    """Looks at the environment anew, in a process that was forked or has got its name just now."""
    global _faults
    folder = os.environ.get(FAULTS_VARIABLE)
    _faults = _Faults(Path(folder), os.environ.get(PART_VARIABLE, part)) if folder else None


def _look() -> _Faults | None:
    if isinstance(_faults, bool):
        arm("train")
    return None if isinstance(_faults, bool) else _faults
