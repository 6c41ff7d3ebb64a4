"""Runs of `foresee train` that take turns: a model that waits at a gate after every so many steps.

`GatedDLRM` is what a run file names as its model (`sides.turns:GatedDLRM`, with a folder as its gate). `Gate` is the
other end: it lets the run do its next steps and says how long they took, from the first forward pass of the turn to
the first of the next one. A run may be of several processes on any engine: only its trainer waits, the others have
nothing to do meanwhile. `stopped` stops a run's process between turns, with everything it does in the background.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from foresee.models import DLRM
from foresee.models.contract import Embeddings

POLL_SECONDS = 0.002
WAIT_SECONDS = 120.0


class GatedDLRM(DLRM):
    """A DLRM that counts its training steps."""

    def __init__(self, log: Any, dim: int, *, gate: str, turn_steps: int, **options: Any) -> None:
        super().__init__(log, dim, **options)
        self._gate, self._turn_steps, self._count, self._begun = Path(gate), turn_steps, 0, 0.0

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        """As ever, after waiting for the turn."""
        if self.training:
            if self._count % self._turn_steps == 0:
                self._wait(self._count // self._turn_steps)
            self._count += 1
        return super().forward(dense, embeddings)

    def _wait(self, turn: int) -> None:
        seconds = time.perf_counter() - self._begun
        draft = self._gate / "draft"
        draft.write_text(repr(seconds))
        os.replace(draft, self._gate / f"done-{turn}")
        while not (self._gate / f"go-{turn}").exists() and not (self._gate / "open").exists():
            time.sleep(POLL_SECONDS)
        self._begun = time.perf_counter()


class Gate:
    """One run, seen from outside."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], *, stopped: bool) -> None:
        self._folder, self._process, self._stopped, self._turn = folder, process, stopped, 0

    def start(self) -> None:
        """Waits until the run has come to its gate."""
        self._await(0)

    def turn(self) -> float:
        """Seconds of its next steps."""
        if self._stopped:
            self._process.send_signal(signal.SIGCONT)
        (self._folder / f"go-{self._turn}").touch()
        self._turn += 1
        return self._await(self._turn)

    def end(self) -> None:
        """The run is killed: how it would end is no matter here."""
        self._process.kill() if self._stopped else self._process.send_signal(signal.SIGINT)
        (self._folder / "open").touch()

    def _await(self, turn: int) -> float:
        file, end = self._folder / f"done-{turn}", time.monotonic() + WAIT_SECONDS
        while not file.exists():
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self._folder / "output.txt").read_text(errors="replace")[-2000:])
            time.sleep(POLL_SECONDS)
        if self._stopped:
            self._process.send_signal(signal.SIGSTOP)
        return float(file.read_text())
