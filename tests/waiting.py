"""Wait for what other threads and processes do.

The time is only a bound for a test that fails: whether a test passes must not depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_SECONDS = 60.0


def wait_until(condition: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Look again and again until `condition` holds; after `seconds`, fail and name what was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(0.005)
