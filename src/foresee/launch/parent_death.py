"""Parts of a run end with the process that launched them, even if that one was killed.

In: the launcher's process id, in the environment of the part. Out: nothing. On Linux the kernel sends the signal; on
other systems a thread looks once a second whether the launcher is still the parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping

LAUNCHER_VARIABLE = "FORESEE_LAUNCHER"
PR_SET_PDEATHSIG = 1
LOOK_SECONDS = 1.0


def end_with_launcher(environment: Mapping[str, str] = os.environ) -> None:
    """Does nothing in a process that no launcher started."""
    if LAUNCHER_VARIABLE not in environment:
        return
    launcher = int(environment[LAUNCHER_VARIABLE])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_look, args=(launcher,), name="foresee-lifeline", daemon=True).start()
    # It may have ended before the line above.
    if os.getppid() != launcher:
        os._exit(1)


def _look(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(LOOK_SECONDS)
    os._exit(1)
