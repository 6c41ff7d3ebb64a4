"""Hidden and urgent work that meet: on the links of the trainers, and on their cores.

Hidden work is what nobody waits for yet: fetches, write-backs, the background exchange. It begins beside compute, and
while there is enough of everything, it costs nothing. Where there is not, both share evenly, and what is urgent takes
longer. All seconds are of the slowest worker, or an array [workers].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

HIDDEN_FLOWS = 2
"""Hidden flows that an urgent one shares a link with, each way: one with the servers, one with the other trainers."""
HIDDEN_THREADS = 3
"""Threads that compute shares its cores with: who reads, who writes, who exchanges in the background."""


class SharedLink:
    """Hidden and urgent traffic on the links of the trainers: flows that are there at once share them evenly."""

    def __init__(self, num_workers: int) -> None:
        self._waiting = np.zeros((num_workers, 2))
        """[workers, directions]: seconds of hidden traffic that are not sent yet."""

    def hide(self, seconds: Float64) -> None:
        """More hidden traffic. It is never let grow beyond what matters: a bound of its own sees to that."""
        self._waiting = self._waiting + seconds

    def pass_time(self, seconds: float) -> None:
        self._waiting = np.maximum(self._waiting - seconds, 0.0)

    def send(self, urgent: Float64) -> float:
        """Seconds until urgent traffic has gone over, of the slowest worker."""
        alone = (1 + HIDDEN_FLOWS) * urgent
        took = float(np.minimum(alone, urgent + self._waiting).max())
        self._waiting = np.maximum(self._waiting - np.maximum(took - urgent, 0.0), 0.0)
        return took


class SharedCores:
    """Compute and hidden work on the cores of each trainer.

    A gate lets hidden work begin when a step's update is over, so most of it meets the compute of the next step.
    """

    def __init__(self, num_workers: int, *, cores: float, compute_threads: int) -> None:
        self._cores, self._threads = cores, compute_threads
        self._waiting = np.zeros(num_workers)
        """[workers]: hidden work that is not done, in seconds of all cores."""

    def hide(self, processor_seconds: Float64) -> None:
        """More hidden work, as seconds of one core."""
        self._waiting = self._waiting + processor_seconds / self._cores

    def pass_time(self, seconds: Float64) -> None:
        """Training waits, and all cores are for hidden work."""
        self._waiting = np.maximum(self._waiting - seconds, 0.0)

    def compute(self, seconds: Float64) -> Float64:
        """[workers]: how long compute takes that would take so many seconds by itself."""
        own, evenly = self._threads / self._cores * seconds, (self._threads + HIDDEN_THREADS) / self._cores * seconds
        took: Float64 = np.maximum(seconds, np.minimum(own + self._waiting, evenly))
        self._waiting = np.maximum(self._waiting - (took - own), 0.0)
        return took
