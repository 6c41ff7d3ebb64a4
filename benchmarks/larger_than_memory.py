"""Training with tables at least ten times larger than the memory the process may use, against tables all in memory.

A DLRM (bottom 512-256-64, top 512-256-1) on a synthetic log: 26 tables of 1.5 times Criteo's sizes, 50.6 million rows
in all, width 64, row-wise Adagrad, 13.4 GB of rows when full. Both sides are processes of their own that train on the
same batches in turns; the one whose turn it is not is stopped, its background threads included.

    ours        tables on disk, a cache of --cache-rows, and a memory limit (--limit-mb)
    in_memory   tables in memory, a cache that holds every row the log touches, and no limit
    mapped      with --written: rows in a mapped file, plain PyTorch, the same limit (`sides/peer_rows.py`)
    lmdb        with --written: rows in LMDB, plain PyTorch, the same limit; needs .venv-bench (make bench-env)

The limit is a cgroup v2 (memory.max) or v1 where this process may make one. Elsewhere it is RLIMIT_DATA, which bounds
what the process itself allocates, and a warden bounds what the system keeps for it: every few milliseconds the resident
memory and the page cache of the table files are added up, and before the sum reaches the limit the system is told to
forget the table files. Which of the two held, and the peak it saw, is printed; a peak above the limit fails the run.
Before, ours trains a few steps without a limit, so that numba has compiled its kernels: the limit is for training.

At the end both sides hash every row the log touches, values, state and versions: the digests must be equal. Rows nobody
has written take no disk and need no read; --written, and so --full, writes every row beforehand: then every fetch reads
the disk, and peers train too (`sides/written_tables.py`, `sides/peer_rows.py`, `sides/peer_side.py`). Without --full
there are 8.3 million rows of 1,028 bytes then (width 128, Adagrad with a state for each value), 8.5 GB; the limit is
850 MB, a batch has 1,024 samples. Of that ours takes up to 740 MB: 270 are Python with torch and its libraries.

With --written the figure is that of long training, from the second epoch on. In the first one a row comes from the base
by a small read of its own when it is first fetched; later almost each was written back by this run before, and lies
with others that are needed when it is. So ours and in_memory train a whole first epoch of --epoch-steps, in turns that
are a figure of their own, and the timed turns begin with the second. Next uses are looked for as `foresee train` does
it, also while turns are timed. An epoch touches more than four times the rows that the cache of ours holds, on pages
(`touched_pages_bytes`) for which peers have no room under the limit (`*_room_for_pages_bytes`). They train the last
--warm-steps of the first epoch, until pages have nearly taken that room (`*_filled_bytes`, by a control group): most of
what they had read before would be forgotten by then. A peer's turn is the same steps as ours, and ends when what it
changed is on the disk: ours writes as it goes. Peers take part in --peer-turns of the turns, as theirs are long.

    tables_over_limit    bytes of all rows / limit          ours_over_in_memory    seconds of a step, median of turns
    first_epoch_over_in_memory  the same of the first epoch's turns but its first, which compiles (--written)
    ours_over_best_peer  samples a second of ours over those of the faster peer (--written)

All sides let threads of torch sleep while they wait (OMP_WAIT_POLICY), as `foresee train` does on few cores; ours and
in_memory switch between threads of Python as often as it does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np

from sides.memory_limit import Limit, Warden, memory_limit
from sides.peer_rows import PEERS, Lmdb
from sides.peer_side import THREADS, PeerSide
from sides.process import Process, serve
from sides.written_tables import OPTIMIZERS, make_log, optimizer, rows_for_lmdb, stream_of, write_all

SIDE_OPTIONS = (
    "limit_mb", "cache_rows", "steps", "epoch_steps", "epochs", "warm_steps", "dim", "batch_size", "optimizer",
)  # fmt: skip
MEGABYTE, PAGE_BYTES = 1_000_000, 4096
HASHED_ROWS = 1 << 13
Turn = dict[str, dict[str, float]]
"""What each side took."""
WRITTEN = {
    "table_scale": 0.2457, "dim": 128, "optimizer": "adagrad", "batch_size": 1024, "limit_mb": 850, "turns": 5,
    "peer_turns": 3, "steps": 8, "epoch_steps": 184, "warm_steps": 64, "cache_rows": 50_000,
}  # fmt: skip
"""Of --written without --full: as little as shows it. Rows are wider, so that fewer fill ten times the limit."""
EPOCHS_PLANNED = 4
"""With --written. So many that next uses are looked for while the timed steps go on, a batch for each of them, as it is
in the mean of a long run: of two epochs everything would be known before the first step."""
RLIMIT_NEEDED_MB = 1100
"""With --written: what the process of ours reserves at most (VmData), with a margin; 957 MB were seen."""
COMPILED_TURNS = 7
"""Turns after which ours has run every kernel: some run only once rows have left its memory for the log."""
WINDOW_BYTES = 16 * MEGABYTE
"""With --written, of both sides: the batches that the planner keeps count against the limit, too."""
BENCH_PYTHON = Path(__file__).resolve().parent.parent / ".venv-bench" / "bin" / "python"
FRUGAL = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "NUMPY_MADVISE_HUGEPAGE": "0",
}
"""For both sides. Allocators of Arrow and malloc reserve a gigabyte of addresses and more, which would count. In huge
pages a table in memory takes two megabytes for every row that is touched, and half a minute to get them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more steps, and every row written beforehand")
    parser.add_argument("--written", action="store_true", help="write every row beforehand: all fetches read the disk")
    parser.add_argument("--limit-mb", type=int, help="megabytes [default: 1200; --written: 850]")
    parser.add_argument("--cache-rows", type=int)
    parser.add_argument("--table-scale", type=float, help="times Criteo's sizes [default: 1.5; --written: 0.2457]")
    parser.add_argument("--dim", type=int, help="width of a row [default: 64; --written: 128]")
    parser.add_argument("--batch-size", type=int, help="samples [default: 2048; --written: 1024]")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, help="[default: rowwise_adagrad; --written: adagrad]")
    parser.add_argument("--turns", type=int)
    parser.add_argument("--steps", type=int, help="steps of a turn")
    parser.add_argument("--epoch-steps", type=int, help="with --written: steps of an epoch; the first is not timed")
    parser.add_argument("--epochs", type=int, help="with --written: so many are planned [default: 4]")
    parser.add_argument("--peer-turns", type=int, help="with --written: peers take part in so many of the turns")
    parser.add_argument("--warm-steps", type=int, help="with --written: a peer's untimed steps; LMDB's: half")
    parser.add_argument("--no-peers", action="store_true", help="with --written: ours and in_memory alone")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--enforced-by", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side == "load":
        Lmdb.load(arguments.folder, np.load(arguments.folder / "loaded.npy"))
        return
    if arguments.side:
        (PeerSide if arguments.side in PEERS else Side)(arguments).serve()
        os._exit(0)  # nothing is left to be saved, and taking down torch and the tables would take a second
    complete(arguments)
    check_limit(arguments)
    with tempfile.TemporaryDirectory(dir=os.environ.get("FORESEE_BENCH_DIR", ".")) as folder:
        arguments.folder = Path(folder)
        compare(arguments)


def complete(arguments: argparse.Namespace) -> None:
    """What was not given."""
    chosen = {
        "table_scale": 1.5, "dim": 64, "batch_size": 2048, "limit_mb": 1200, "turns": 5, "steps": 14,
        "warm_steps": 0, "peer_turns": 0, "cache_rows": 30_000, "optimizer": "rowwise_adagrad",
    }  # fmt: skip
    if arguments.full:
        arguments.written = True
        chosen |= {"turns": 8, "peer_turns": 8, "steps": 40, "epoch_steps": 320, "warm_steps": 160}
    elif arguments.written:
        chosen = WRITTEN
    for name, value in chosen.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if not arguments.written:
        arguments.epoch_steps = (arguments.turns + 1) * arguments.steps
    elif arguments.epoch_steps < arguments.turns * arguments.steps or arguments.epoch_steps % arguments.steps:
        sys.exit(f"--epoch-steps {arguments.epoch_steps}: an epoch is so many turns, and has all timed ones; give "
                 f"a multiple of {arguments.steps}, {arguments.turns * arguments.steps} or more")  # fmt: skip
    arguments.epochs = (arguments.epochs or EPOCHS_PLANNED) if arguments.written else 1


def check_limit(arguments: argparse.Namespace) -> None:
    """Refuse, before anything is written, a limit that cannot be held on this machine."""
    with memory_limit(arguments.limit_mb * MEGABYTE) as limit:
        if limit.name == "rlimit" and arguments.written and arguments.limit_mb < RLIMIT_NEEDED_MB:
            sys.exit(
                f"--limit-mb {arguments.limit_mb}: this process may not make a control group, and RLIMIT_DATA also "
                f"counts memory that is reserved and not used, about {RLIMIT_NEEDED_MB} MB here; run as root or in a "
                f"delegated cgroup with the memory controller, or give --limit-mb {RLIMIT_NEEDED_MB} or more"
            )


def peers_of(arguments: argparse.Namespace) -> list[str]:
    """Those that can be measured here."""
    if not arguments.written or arguments.no_peers:
        return []
    if BENCH_PYTHON.exists():
        return ["mapped", "lmdb"]
    print("lmdb: .venv-bench is not there; make bench-env makes it", file=sys.stderr)
    return ["mapped"]


def compare(arguments: argparse.Namespace) -> None:
    """Makes the log, lets the sides train in turns, and prints what came of it."""
    compile_kernels(arguments)
    row_bytes, num_rows, page_bytes = make(arguments)
    limit, peers = arguments.limit_mb * MEGABYTE, peers_of(arguments)
    with ExitStack() as stack:
        limited = stack.enter_context(memory_limit(limit))
        sides = {"ours": stack.enter_context(side(arguments, "ours", limited))}
        sides["in_memory"] = stack.enter_context(side(arguments, "in_memory", None))
        limits = {peer: stack.enter_context(memory_limit(limit)) for peer in peers}
        sides |= {peer: stack.enter_context(side(arguments, peer, limits[peer])) for peer in peers}
        first_epoch, own_bytes = warm(arguments, sides)
        filled = {f"{peer}_filled_bytes": limits[peer].peak_bytes() for peer in peers}
        timed = [
            [name for name in sides if name not in peers or k < arguments.peer_turns] for k in range(arguments.turns)
        ]
        turns = [{name: sides[name].ask("train") for name in names} for names in timed]
        ends = {name: each.ask("end") for name, each in sides.items()}
        # A control group counts what is this side's; the warden counts pages that others brought, too.
        peak = limited.peak_bytes() or ends["ours"]["peak_bytes"]
    seconds = {name: statistics.median(turn[name]["seconds"] for turn in turns if name in turn) for name in sides}
    for name, each in seconds.items():
        committing = ends[name].get("committing_seconds")
        more = "" if committing is None else f", {committing:.1f} s to commit at the end"
        print(f"{name:>10}: {1e3 * each:6.1f} ms a step{more}")
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
        "ours_over_in_memory": over_in_memory(turns),
        "limit_bytes": limit,
        "peak_bytes": peak,
        "in_memory_peak_bytes": ends["in_memory"]["peak_bytes"],
        "tables_bytes": num_rows * row_bytes,
        "touched_bytes": ends["ours"]["num_touched"] * row_bytes,
        "touched_pages_bytes": page_bytes,
        "limit_by": limited.name,
        "same_bytes": True,
    }
    if arguments.written:
        figures["first_epoch_over_in_memory"] = over_in_memory(first_epoch)
    if peers:
        with_peers = turns[: arguments.peer_turns]
        best = [min(turn[peer]["seconds"] for peer in peers) / turn["ours"]["seconds"] for turn in with_peers]
        figures["ours_over_best_peer"] = round(statistics.median(best), 2)
        figures |= {f"{name}_samples_per_second": round(arguments.batch_size / seconds[name], 1) for name in seconds}
        figures |= filled | {f"{peer}_room_for_pages_bytes": limit - own_bytes[peer] for peer in peers}
    print(json.dumps(figures))


def compile_kernels(arguments: argparse.Namespace) -> None:
    """Let numba compile what ours runs, without a limit: the compiler takes 110 MB where it never ran before.

    Tables are as large as those of the comparison, so that the same kernels are used, but hold no rows.
    """
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        given = argparse.Namespace(**{**vars(arguments), "folder": Path(folder)})
        make_log(
            given.folder, num_steps=COMPILED_TURNS * given.steps, batch_size=given.batch_size,
            table_scale=given.table_scale, dim=given.dim, optimizer=optimizer(given.optimizer),
        )  # fmt: skip
        with side(given, "ours", None) as process:
            for _ in range(COMPILED_TURNS):
                process.ask("train")
            process.ask("end")


def warm(arguments: argparse.Namespace, sides: dict[str, Process]) -> tuple[list[Turn], dict[str, int]]:
    """What comes before the timed turns: one turn that compiles, of all sides at once, and the rest of a first epoch.

    Returns turns of the first epoch without the one that compiles, and what memory peers have besides pages of rows.
    """
    with ThreadPoolExecutor(len(sides)) as pool:
        answers = pool.map(lambda name: sides[name].ask("warm" if name in PEERS else "train"), sides)
        own_bytes = {name: it["own_bytes"] for name, it in zip(sides, answers, strict=True) if name in PEERS}
    two = {name: each for name, each in sides.items() if name not in PEERS}
    num_turns = arguments.epoch_steps // arguments.steps - 1 if arguments.written else 0
    return [{name: each.ask("train") for name, each in two.items()} for _ in range(num_turns)], own_bytes


def over_in_memory(turns: list[Turn]) -> float:
    return round(statistics.median(turn["ours"]["seconds"] / turn["in_memory"]["seconds"] for turn in turns), 3)


def side(arguments: argparse.Namespace, name: str, limit: Limit | None) -> Process:
    """The process of one side."""
    python = str(BENCH_PYTHON) if name == "lmdb" else sys.executable
    command = [python, __file__, "--folder", str(arguments.folder)]
    for option in SIDE_OPTIONS:
        command += [f"--{option.replace('_', '-')}", str(getattr(arguments, option))]
    command += ["--enforced-by", limit.name if limit else "nobody", "--side", name]
    return Process(command, environment=FRUGAL, before=limit.enter if limit else None)


def make(arguments: argparse.Namespace) -> tuple[int, int, int]:
    """The log and, if asked for, all rows; returns bytes of a row, rows, and bytes of the pages of touched ones."""
    layout, touched = make_log(
        arguments.folder, num_steps=arguments.epoch_steps, batch_size=arguments.batch_size,
        table_scale=arguments.table_scale, dim=arguments.dim, optimizer=optimizer(arguments.optimizer),
    )  # fmt: skip
    if arguments.written:
        peers = peers_of(arguments)
        load = [str(BENCH_PYTHON), __file__, "--folder", str(arguments.folder), "--side", "load"]
        write_all(
            arguments.folder, layout, load if "lmdb" in peers else None, mapped="mapped" in peers,
            rows_of_lmdb=rows_for_lmdb(layout, touched, every_row=arguments.full),
        )  # fmt: skip
    begins = touched * layout.row_bytes
    pages = np.union1d(begins // PAGE_BYTES, (begins + layout.row_bytes - 1) // PAGE_BYTES)
    return layout.row_bytes, layout.num_rows, len(pages) * PAGE_BYTES


class Side:
    """One side's process: trains so many steps when asked, and says how long they took."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch
        from torch import nn

        from foresee import ClickLog, Tables, models
        from foresee.engine.header import make_header
        from foresee.engine.next_uses import USES_AHEAD_STEPS
        from foresee.engine.planned_step import Pooling
        from foresee.engine.run import Run
        from foresee.run.worker import SWITCH_SECONDS
        from foresee.store.disk import DiskStore

        torch.set_num_threads(THREADS)
        sys.setswitchinterval(SWITCH_SECONDS)
        torch.manual_seed(0)
        self.num_steps, self.ours = arguments.steps, arguments.side == "ours"
        self.touched = np.load(arguments.folder / "touched.npy", mmap_mode="r")
        log = ClickLog.open(arguments.folder / "log")
        stream = stream_of(log, arguments.batch_size, arguments.epochs)
        if self.ours and arguments.enforced_by == "rlimit":
            check_refused(log, arguments)
        tables_folder, how = arguments.folder / "tables", optimizer(arguments.optimizer)
        self.tables = (
            Tables.on_disk(tables_folder, log, dim=arguments.dim, optimizer=how)
            if self.ours
            else Tables.in_memory(log, dim=arguments.dim, optimizer=how)
        )
        cache_rows = arguments.cache_rows if self.ours else len(self.touched)
        written = arguments.epochs > 1
        window = WINDOW_BYTES if written else None
        ahead = USES_AHEAD_STEPS if self.ours and written else None  # as `foresee train` has it
        header = make_header(
            stream, planner="lookahead", cache_rows=cache_rows, window_bytes=window, uses_ahead_steps=ahead
        )  # fmt: skip
        pooling = Pooling.of(log.mean_features)
        self.run = Run(stream, self.tables, header, pooling, num_threads=THREADS, scratch=arguments.folder)
        self.steps = iter(self.run)
        self.model = models.DLRM(log, arguments.dim)
        self.adam = torch.optim.Adam(self.model.parameters(), fused=True)
        self.loss = nn.BCEWithLogitsLoss()
        limit = arguments.limit_mb * MEGABYTE if self.ours and arguments.enforced_by == "rlimit" else None
        files = sorted(tables_folder.iterdir()) if self.ours else []
        if isinstance(self.tables.store, DiskStore):
            self.tables.store.fold_at_end = "never"  # nobody reads the folder afterwards
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


def check_refused(log: Any, arguments: argparse.Namespace) -> None:
    """Under the limit, larger tables in memory must be refused: otherwise it is no limit."""
    from foresee import Tables
    from foresee.engine.tables import layout_for
    from foresee.errors import StoreError

    how = optimizer(arguments.optimizer)
    if log.num_rows * layout_for(log, arguments.dim, how, 0, 0.05).row_bytes <= arguments.limit_mb * MEGABYTE:
        return
    with suppress(StoreError):
        Tables.in_memory(log, dim=arguments.dim, optimizer=how)
        sys.exit("the limit does not hold: tables larger than it were given memory")


if __name__ == "__main__":
    main()
