"""Training with tables at least ten times larger than the memory the process may use, against tables all in memory.

A DLRM (bottom 512-256-64, top 512-256-1) on a synthetic log: 26 tables of 1.5 times Criteo's sizes, 50.6 million rows
in all, width 64, row-wise Adagrad, 13.4 GB of rows when full. Both sides are processes of their own that train on the
same batches in turns; the one whose turn it is not is stopped, its background threads included.

    ours        tables on disk, a cache of --cache-rows, and a memory limit (--limit-mb)
    in_memory   tables in memory, a cache that holds every row the log touches, and no limit

The limit is a cgroup v2 (memory.max) where this process may make one. Elsewhere it is RLIMIT_DATA, which bounds what
the process itself allocates, and a warden bounds what the system keeps for it: every few milliseconds the resident
memory and the page cache of the table files are added up, and before the sum reaches the limit the system is told to
forget the table files. Which of the two held, and the peak it saw, is printed; a peak above the limit fails the run.

At the end both sides hash every row the log touches, values, state and versions: the digests must be equal. Rows nobody
has written take no disk and need no read; --written, and so --full, writes every row beforehand: then every fetch reads
the disk.

    tables_over_limit    bytes of all rows / limit          ours_over_in_memory    seconds of a step, median of turns
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np

from sides.process import Process, serve

MEGABYTE = 1_000_000
BATCH_SIZE, DIM, THREADS = 2048, 64, 2
SHUFFLE_SAMPLES = 16_384
FORGET_AT = 0.9
"""Share of the limit at which the warden lets the system forget table pages."""
WATCH_SECONDS = 0.02
CACHESTAT = 451
"""Number of the system call that says how much of a file is in the page cache."""
HASHED_ROWS = 1 << 16
FRUGAL = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2", "NUMPY_MADVISE_HUGEPAGE": "0"}
"""For both sides. Allocators of Arrow and malloc reserve a gigabyte of addresses and more, which would count. In huge
pages a table in memory takes two megabytes for every row that is touched, and half a minute to get them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more steps, and every row written beforehand")
    parser.add_argument("--written", action="store_true", help="write every row beforehand: all fetches read the disk")
    parser.add_argument("--limit-mb", type=int, default=1200)
    parser.add_argument("--cache-rows", type=int, default=30_000)
    parser.add_argument("--table-scale", type=float, default=1.5, help="times Criteo's table sizes")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=14, help="steps of a turn")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--enforced-by", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        Side(arguments).serve()
        return
    if arguments.full:
        arguments.turns, arguments.steps, arguments.written = 8, 40, True
    with tempfile.TemporaryDirectory(dir=os.environ.get("FORESEE_BENCH_DIR", ".")) as folder:
        arguments.folder = Path(folder)
        compare(arguments)


def compare(arguments: argparse.Namespace) -> None:
    """Makes the log, lets the sides train in turns, and prints what came of it."""
    row_bytes, num_rows = make_log(arguments)
    limit = arguments.limit_mb * MEGABYTE
    with memory_limit(limit) as limited, side(arguments, "ours", limited) as ours:
        with side(arguments, "in_memory", None) as in_memory:
            turns = []
            for _ in range(arguments.turns + 1):
                turns.append({"ours": ours.ask("train"), "in_memory": in_memory.ask("train")})
            ends = {"ours": ours.ask("end"), "in_memory": in_memory.ask("end")}
        peak = max(ends["ours"]["peak_bytes"], limited.peak_bytes())
    for name, end in ends.items():
        milliseconds = 1e3 * statistics.median(turn[name]["seconds"] for turn in turns[1:])
        print(f"{name:>10}: {milliseconds:6.1f} ms a step, {end['committing_seconds']:.1f} s to commit at the end")
    print(f"limit by {limited.name}: {limit / 1e6:.0f} MB; peak of ours {peak / 1e6:.0f} MB, table files in the page "
          f"cache included, which were forgotten {ends['ours']['forgotten']} times; peak of in_memory "
          f"{ends['in_memory']['peak_bytes'] / 1e6:.0f} MB; "
          f"{ends['ours']['num_touched']:,} of {num_rows:,} rows touched")  # fmt: skip
    if peak > limit:
        sys.exit(f"the limit did not hold: the peak was {peak:,} bytes, the limit is {limit:,}")
    if ends["ours"]["digest"] != ends["in_memory"]["digest"]:
        sys.exit("the two sides ended with different rows")
    figures = {
        "tables_over_limit": round(num_rows * row_bytes / limit, 2),
        # The first turn compiles, and is not counted.
        "ours_over_in_memory": round(
            statistics.median(turn["ours"]["seconds"] / turn["in_memory"]["seconds"] for turn in turns[1:]), 3
        ),
        "limit_bytes": limit,
        "peak_bytes": peak,
        "in_memory_peak_bytes": ends["in_memory"]["peak_bytes"],
        "tables_bytes": num_rows * row_bytes,
        "touched_bytes": ends["ours"]["num_touched"] * row_bytes,
        "limit_by": limited.name,
        "same_bytes": True,
    }
    print(json.dumps(figures))


def side(arguments: argparse.Namespace, name: str, limit: Limit | None) -> Process:
    """The process of one side."""
    command = [sys.executable, __file__, "--folder", str(arguments.folder)]
    for option in ("limit_mb", "cache_rows", "steps"):
        command += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
    command += ["--enforced-by", limit.name if limit else "nobody", "--side", name]
    return Process(command, environment=FRUGAL, before=limit.enter if limit else None)


def make_log(arguments: argparse.Namespace) -> tuple[int, int]:
    """Writes the log, its touched rows and, if asked for, the tables; returns bytes of a row and rows."""
    from foresee.data import synthetic
    from foresee.engine.tables import layout_for
    from foresee.store.disk import DiskStore

    num_steps = (arguments.turns + 1) * arguments.steps
    path = arguments.folder / "log"
    log = synthetic(path, num_samples=num_steps * BATCH_SIZE, table_scale=arguments.table_scale, valid_share=0.0)
    stream = log.batches(batch_size=BATCH_SIZE, shuffle_samples=SHUFFLE_SAMPLES)
    touched = np.unique(np.concatenate([np.unique(batch.rows) for batch in stream.batches()]))
    np.save(arguments.folder / "touched.npy", touched)
    layout = layout_for(log, DIM, optimizer(), 0, 0.05)
    if arguments.written:
        store = DiskStore.create(arguments.folder / "tables", layout)
        store.initialise_all()
        store.forget_pages()
        store.close()
    return layout.row_bytes, layout.num_rows


def optimizer() -> Any:
    from foresee import RowwiseAdagrad

    return RowwiseAdagrad(lr=0.05)


class Side:
    """One side's process: trains so many steps when asked, and says how long they took."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch
        from torch import nn

        from foresee import ClickLog, Tables, models
        from foresee.engine.header import make_header
        from foresee.engine.loop import Run
        from foresee.engine.planned_step import Pooling

        torch.set_num_threads(THREADS)
        torch.manual_seed(0)
        self.num_steps, self.ours = arguments.steps, arguments.side == "ours"
        self.touched = np.load(arguments.folder / "touched.npy", mmap_mode="r")
        log = ClickLog.open(arguments.folder / "log")
        stream = log.batches(batch_size=BATCH_SIZE, shuffle_samples=SHUFFLE_SAMPLES)
        if self.ours and arguments.enforced_by == "rlimit":
            check_refused(log, arguments.limit_mb * MEGABYTE)
        tables_folder = arguments.folder / "tables"
        self.tables = (
            Tables.on_disk(tables_folder, log, dim=DIM, optimizer=optimizer())
            if self.ours
            else Tables.in_memory(log, dim=DIM, optimizer=optimizer())
        )
        cache_rows = arguments.cache_rows if self.ours else len(self.touched)
        header = make_header(stream, planner="lookahead", cache_rows=cache_rows)
        self.run = Run(stream, self.tables, header, Pooling.of(log.mean_features), num_threads=THREADS)
        self.steps = iter(self.run)
        self.model = models.DLRM(log, DIM)
        self.adam = torch.optim.Adam(self.model.parameters(), fused=True)
        self.loss = nn.BCEWithLogitsLoss()
        limit = arguments.limit_mb * MEGABYTE if self.ours and arguments.enforced_by == "rlimit" else None
        files = sorted(tables_folder.iterdir()) if self.ours else []
        self.warden = Warden(files, self.tables.store, limit)

    def serve(self) -> None:
        with self.warden:
            serve({"train": self.train, "end": self.end})

    def train(self) -> dict[str, float]:
        begun = time.perf_counter()
        for _ in range(self.num_steps):
            step = next(self.steps)
            self.loss(self.model(step.dense, step.embeddings), step.labels).backward()
            self.adam.step()
            self.adam.zero_grad()
            step.update()
        return {"seconds": (time.perf_counter() - begun) / self.num_steps}

    def end(self) -> dict[str, Any]:
        begun = time.perf_counter()
        self.steps.close()
        committing = time.perf_counter() - begun
        digest = self.digest()
        self.warden.look()
        return {
            "digest": digest,
            "committing_seconds": committing,
            "num_touched": len(self.touched),
            "peak_bytes": self.warden.peak_bytes,
            "forgotten": self.warden.forgotten,
        }

    def digest(self) -> str:
        """Of every row that the log touches."""
        from foresee.store.contract import Rows

        digest = hashlib.sha256()
        for begin in range(0, len(self.touched), HASHED_ROWS):
            rows = np.array(self.touched[begin : begin + HASHED_ROWS])
            found = Rows.empty(len(rows), self.tables.layout)
            self.tables.store.read(rows, found)
            for part in (found.values, found.state, found.versions):
                digest.update(part.tobytes())
        return digest.hexdigest()


def check_refused(log: Any, limit: int) -> None:
    """Under the limit, larger tables in memory must be refused: otherwise it is no limit."""
    from foresee import Tables
    from foresee.engine.tables import layout_for
    from foresee.errors import StoreError

    if log.num_rows * layout_for(log, DIM, optimizer(), 0, 0.05).row_bytes <= limit:
        return
    with suppress(StoreError):
        Tables.in_memory(log, dim=DIM, optimizer=optimizer())
        sys.exit("the limit does not hold: tables larger than it were given memory")


class Warden:
    """Watches what memory this process costs, its table files in the page cache included, and keeps it below a limit.

    The sum counts table pages that are mapped twice, once in the resident memory and once in the page cache: what it
    says is never too little.
    """

    def __init__(self, files: list[Path], store: Any, limit_bytes: int | None) -> None:
        self.peak_bytes, self.forgotten = 0, 0
        self._store, self._limit_bytes = store, limit_bytes
        self._descriptors = [os.open(file, os.O_RDONLY) for file in files]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="warden")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._store.close()

    def look(self) -> None:
        now = resident_bytes() + sum(cached_bytes(descriptor) for descriptor in self._descriptors)
        self.peak_bytes = max(self.peak_bytes, now)
        if self._limit_bytes is not None and now > FORGET_AT * self._limit_bytes:
            self._store.forget_pages()
            self.forgotten += 1

    def _watch(self) -> None:
        while not self._done.wait(WATCH_SECONDS):
            self.look()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def cached_bytes(descriptor: int) -> int:
    """Bytes of a file in the page cache; where the system cannot say, all that the file takes on the disk."""
    whole, found = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
    if ctypes.CDLL(None).syscall(CACHESTAT, descriptor, whole, found, 0) == 0:
        return int(found[0]) * resource.getpagesize()
    return os.fstat(descriptor).st_blocks * 512


class Limit:
    """RLIMIT_DATA: what a process may allocate. The warden does the rest."""

    name = "rlimit"

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes

    def enter(self) -> None:
        """Called in the child before it becomes the side."""
        resource.setrlimit(resource.RLIMIT_DATA, (self.num_bytes, self.num_bytes))

    def peak_bytes(self) -> int:
        """As far as the system counts it."""
        return 0

    def leave(self) -> None:
        """Called when all processes under the limit have ended."""


class Cgroup(Limit):
    """A cgroup v2: the kernel counts all memory of the process, page cache included, and takes back what it can."""

    name = "cgroup"

    def __init__(self, num_bytes: int, path: Path) -> None:
        super().__init__(num_bytes)
        self.path = path
        (path / "memory.max").write_text(str(num_bytes))
        if (path / "memory.swap.max").exists():
            (path / "memory.swap.max").write_text("0")

    def enter(self) -> None:
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak_bytes(self) -> int:
        return int((self.path / "memory.peak").read_text())

    def leave(self) -> None:
        self.path.rmdir()


@contextmanager
def memory_limit(num_bytes: int) -> Iterator[Limit]:
    """A cgroup v2 below our own if one may be made there, else a resource limit."""
    limit = make_cgroup(own_cgroup(), num_bytes) or Limit(num_bytes)
    try:
        yield limit
    finally:
        limit.leave()


def make_cgroup(parent: Path | None, num_bytes: int) -> Cgroup | None:
    """None where there is no cgroup v2, it does not count memory, or this process may not make one."""
    if parent is None:
        return None
    try:
        if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
            return None
        path = parent / f"foresee-{os.getpid()}"
        path.mkdir()
    except OSError:
        return None
    try:
        return Cgroup(num_bytes, path)
    except OSError:
        path.rmdir()
        return None


def own_cgroup() -> Path | None:
    """The folder of this process's cgroup v2."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    roots = [Path(fields[1]) for fields in mounts if fields[2] == "cgroup2"]
    ours = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    return roots[0] / ours[0].lstrip("/") if roots and ours else None


if __name__ == "__main__":
    main()
