"""Does anything grow while a server serves and a trainer trains? Slopes of memory, threads, files and processes.

`run(seconds=, progress=)` lets clients come, read, write, fail and go against one server, and trains small runs one
after another in this process, for so long. It returns what grew: bytes a minute, and numbers of threads, files and
children more at the end than after the first quarter, when everything was loaded. `make chaos` gives it an hour.
"""

from __future__ import annotations

import gc
import io
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

for _neighbour in ("chaos", "store", "engine", "run"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / _neighbour))

import hostile_wire as wire  # noqa: E402
import numpy as np  # noqa: E402
from remote_servers import Servers  # noqa: E402
from rich.console import Console  # noqa: E402
from training_runs import small_run  # noqa: E402

from foresee.data import tiny  # noqa: E402
from foresee.errors import ForeseeError  # noqa: E402
from foresee.run.session import train  # noqa: E402
from foresee.store.contract import Rows  # noqa: E402
from foresee.store.layout import Layout, Table  # noqa: E402
from foresee.store.remote import RemoteStore  # noqa: E402

LAYOUT = Layout(tables=(Table("t", 2000),), width=8, state_width=1, optimizer="x")


class Sample(NamedTuple):
    """One process at one moment."""

    seconds: float
    memory_bytes: int
    num_threads: int
    num_files: int


def run(*, seconds: float, progress: Callable[[str], None]) -> dict[str, float]:
    """Serves and trains for so long."""
    with tempfile.TemporaryDirectory(prefix="foresee-leaks-") as scratch, Servers(Path(scratch)) as servers:
        server = servers.start(LAYOUT, limits={"unauthenticated_seconds": 1.0})
        log = tiny(Path(scratch) / "log", num_samples=200)
        ours: list[Sample] = []
        theirs: list[Sample] = []
        begun, rounds = time.monotonic(), 0
        while time.monotonic() - begun < seconds or rounds < 8:
            _visit(server.address, rounds)
            config = small_run(log, Path(scratch) / "run")
            train(config, replace=rounds > 0, console=Console(file=io.StringIO()))
            gc.collect()
            ours.append(_sample(os.getpid(), begun))
            theirs.append(_sample(server.process_id, begun))
            rounds += 1
        progress(f"leaks: {rounds} rounds in {time.monotonic() - begun:.0f} s")
        return {**_growth("trainer", ours), **_growth("server", theirs), "leak_rounds": rounds}


def _visit(address: str, number: int) -> None:
    """A client that works, one that fails, one that hangs up in the middle."""
    rows = np.arange(number % 7, 2000, 7)
    with closing(RemoteStore([address], deadline_seconds=20.0)) as store:
        found = Rows.empty(len(rows), LAYOUT)
        store.read(rows, found)
        found.versions[:] = number + 1
        store.write(rows, found)
        with suppress(ForeseeError):
            store._links[0].read(np.array([-1]), lambda begin, chunk: None)
    with closing(wire.connect(address)) as rude:
        wire.send(rude, wire.call("DoAction", wire.action("describe", b"{}"))[: 30 + number % 90])


def _sample(process_id: int, begun: float) -> Sample:
    folder = Path(f"/proc/{process_id}")
    pages = int((folder / "statm").read_text().split()[1])
    return Sample(
        time.monotonic() - begun,
        pages * os.sysconf("SC_PAGE_SIZE"),
        len(os.listdir(folder / "task")),
        len(os.listdir(folder / "fd")),
    )


def _growth(name: str, samples: list[Sample]) -> dict[str, float]:
    """After the first quarter: medians of the next and of the last, so that one odd moment counts for nothing."""
    settled = samples[len(samples) // 4 :]
    third = max(1, len(settled) // 3)
    early, late = settled[:third], settled[-third:]
    minutes = max(1e-9, (statistics.median(it.seconds for it in late) - early[0].seconds) / 60)

    def more(field: str) -> float:
        before, after = (statistics.median(float(getattr(it, field)) for it in some) for some in (early, late))
        return after - before

    return {
        f"{name}_megabytes_more": round(more("memory_bytes") / 1e6, 2),
        f"{name}_megabytes_a_minute": round(more("memory_bytes") / 1e6 / minutes, 2),
        f"{name}_threads_more": more("num_threads"),
        f"{name}_files_more": more("num_files"),
    }


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3600.0
    print(run(seconds=seconds, progress=print), threading.active_count())


if __name__ == "__main__":
    main()
