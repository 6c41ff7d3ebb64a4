"""The power goes at every operation of a commit: two table folders and the dense checkpoint, each image judged.

`run(trials=, seed=, progress=)` commits again and again, as a run with two servers does (rows, prepare, manifest,
settle, fold, prune, going back) with chunks of a few rows, on a `CrashDisk`. At every operation the folder is looked at
as a kill, and as several power cuts, may leave it: opened anew, it must be at the one commit that was decided (or,
while the decision is being written, at that or the one before), byte for byte, rows and weights. Opening is
interrupted in the same way.

    python tests/chaos/power_cuts.py --seed SEED      repeats all trials of a seed and prints what was wrong
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from torch import nn

from foresee.arrays import Int64
from foresee.errors import ForeseeError
from foresee.run import checkpoint
from foresee.run import folder as run_folder
from foresee.store.commits import step_to_open
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore
from foresee.store.layout import Layout, Table
from foresee.testing.fake_disk import CrashDisk, Image, small_chunks
from foresee.testing.store_suite import initial_rows, random_rows, read_rows

LAYOUT = Layout(tables=(Table("a", 40), Table("b", 23)), width=5, state_width=1, optimizer="rowwise_adagrad", seed=3)
ALL_ROWS = np.arange(LAYOUT.num_rows, dtype=np.int64)
SERVERS = ("server-0", "server-1")
CHECKPOINTS = "checkpoints"
NUM_STEPS = 3
NUM_CLASSES = 7
"""Rows are needed next in one of so many steps."""
POWER_CUTS = 4
"""Ways in which each crash may end, beside a mere kill."""
RECOVERY_EVERY = 50
"""Every so many trials the recovery, too, is interrupted at each of its operations."""
WAY_BACK_EVERY = 3
"""Every so many trials each folder is also opened at the commit before its last one."""
VIOLATIONS_SHOWN = 5

Progress = Callable[[str], None]


@dataclass
class Tally:
    """What was tried and what was found."""

    trials: int = 0
    violations: list[str] = field(default_factory=list)
    points: Counter[str] = field(default_factory=Counter)
    """How often the power went at which operation."""
    stop_at_first: bool = False
    power_cuts: int = POWER_CUTS

    def found(self, violation: str) -> None:
        self.violations.append(violation)
        if self.stop_at_first:
            raise Enough


class Enough(Exception):  # noqa: N818 - an ending
    """One violation is enough."""


def run(*, trials: int, seed: int, progress: Progress) -> dict[str, int]:
    """Scenario after scenario until there were so many trials."""
    tally, number = Tally(), 0
    while tally.trials < trials:
        scenario_seed = seed * 1000 + number
        try_scenario(scenario_seed, tally)
        progress(f"{tally.trials:,} power cuts, {len(tally.violations)} violations")
        number += 1
    for violation in tally.violations[:VIOLATIONS_SHOWN]:
        progress(f"VIOLATION: {violation}")
    return {"disk_trials": tally.trials, "disk_violations": len(tally.violations)}


def try_scenario(seed: int, tally: Tally) -> None:
    """One sequence of commits with a crash at every operation."""
    with scratch_folder() as folder, small_chunks():
        Scenario(folder, seed, tally).play()
        _try_run_folder(folder / "run", seed, tally)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="foresee-crash-", dir=memory) as folder:
        yield Path(folder)


class Scenario:
    """Commits of one seed."""

    def __init__(self, folder: Path, seed: int, tally: Tally) -> None:
        self._root, self._copy, self._seed, self._tally = folder / "disk", folder / "copy", seed, tally
        self._rng = np.random.default_rng(seed)
        self._writes = [[_writes(self._rng, step) for step in range(1, NUM_STEPS + 1)] for _ in SERVERS]
        self._expected = [_expected(writes) for writes in self._writes]
        self._decided, self._under_way = 0, 0
        self._root.mkdir(parents=True)
        (self._root / CHECKPOINTS).mkdir()

    def play(self) -> None:
        for name in SERVERS:
            DiskStore.create(self._root / name, LAYOUT).close()
        disk = CrashDisk(self._root, self._look)
        self._disk = disk
        disk.settle_everything()
        try:
            self._run(disk, range(1, NUM_STEPS))
            self._go_back(disk)
            self._run(disk, range(NUM_STEPS - 1, NUM_STEPS + 1))
        finally:
            disk.close()

    def _run(self, disk: CrashDisk, steps: range) -> None:
        stores = [DiskStore.open(self._root / name, LAYOUT, files=disk) for name in SERVERS]
        with mock.patch.object(checkpoint, "Files", return_value=disk):
            for step in steps:
                for store, writes in zip(stores, self._writes, strict=True):
                    for rows, source in writes[step - 1]:
                        store.write(rows, source, (rows % NUM_CLASSES).astype(np.int32) - 1)
                self._commit(stores, step)
        for store in stores:
            store.close()

    def _commit(self, stores: list[DiskStore], step: int) -> None:
        for store in stores:
            store.prepare(step)
        self._under_way = step
        checkpoint.save(self._root / CHECKPOINTS, step, *_model(step))
        self._decided = step
        self._look("decided")
        for store in stores:
            store.settle(step)
            if self._seed % 2 == 0:  # otherwise they are folded at the end
                store.fold()
        checkpoint.prune(self._root / CHECKPOINTS)
        self._look("pruned")

    def _go_back(self, disk: CrashDisk) -> None:
        """The newest checkpoint is lost, so the run goes on from the one before: all folders undo their last commit."""
        shutil.rmtree(checkpoint.folder_of(self._root / CHECKPOINTS, self._decided))
        disk.settle_everything()
        self._decided = self._under_way = self._decided - 1
        for name in SERVERS:
            store = DiskStore.open(self._root / name, LAYOUT, files=disk)
            store.open_at(self._decided)
            store.close()

    # Crashes ---------------------------------------------------------------------------------------------------------

    def _look(self, point: str) -> None:
        """The power goes here, in several ways."""
        where = f"seed {self._seed}, operation {len(self._disk.points)} ({point})"
        allowed = {self._decided, self._under_way}
        for ending in range(self._tally.power_cuts + 1):
            rng = np.random.default_rng([self._seed, len(self._disk.points), ending]) if ending else None
            self._tally.trials += 1
            self._tally.points[point] += 1
            what = f"{where}, power cut {ending}" if ending else f"{where}, killed"
            self._judge(self._disk.image(rng), allowed, what)

    def _judge(self, image: Image, allowed: set[int], where: str) -> None:
        shutil.rmtree(self._copy, ignore_errors=True)
        self._copy.mkdir()
        image.write_to(self._copy)
        interrupted = self._tally.trials % RECOVERY_EVERY == 0
        try:
            found = self._recover(self._copy, allowed)
            if found is not None:
                self._tally.found(f"{where}: {found}")
            elif interrupted:
                self._interrupt_recovery(image, allowed, where)
            if self._tally.trials % WAY_BACK_EVERY == 0:
                self._try_way_back(image, where)
        except (ForeseeError, AssertionError, OSError, ValueError) as error:
            self._tally.found(f"{where}: {type(error).__name__}: {error}")

    def _try_way_back(self, image: Image, where: str) -> None:
        """Where a folder says that it can go back to the commit before its last one, it can."""
        for name, expected in zip(SERVERS, self._expected, strict=True):
            shutil.rmtree(self._copy, ignore_errors=True)
            self._copy.mkdir()
            image.write_to(self._copy)
            store = DiskStore.open(self._copy / name, LAYOUT)
            try:
                if (previous := store.parts[0].previous) is None:
                    continue
                store.open_at(previous)
                self._tally.trials += 1
                self._tally.points["way back"] += 1
                if (found := _other_rows(name, store, expected[previous], previous)) is not None:
                    self._tally.found(f"{where}, on the way back: {found}")
            finally:
                store.close()

    def _interrupt_recovery(self, image: Image, allowed: set[int], where: str) -> None:
        """The power goes again while the folders are opened."""
        root, copy = self._copy.with_name("recovered"), self._copy
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        image.write_to(root)
        images: list[tuple[str, Image]] = []
        rng = np.random.default_rng(self._tally.trials)
        disk = CrashDisk(root, lambda point: images.append((point, disk.image(rng))))
        disk.settle_everything()
        try:
            self._recover(root, allowed, disk)
        finally:
            disk.close()
        for point, again in images:
            self._tally.trials += 1
            self._tally.points[f"recovery: {point}"] += 1
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir()
            again.write_to(copy)
            found = self._recover(copy, allowed)
            if found is not None:
                self._tally.found(f"{where}, and again in recovery ({point}): {found}")

    def _recover(self, root: Path, allowed: set[int], disk: CrashDisk | None = None) -> str | None:
        """Opens everything at the newest whole commit; says what is wrong with it."""
        stores = [DiskStore.open(root / name, LAYOUT, files=disk) for name in SERVERS]
        try:
            openable = [store.parts[0].openable for store in stores]
            step = step_to_open(checkpoint.whole_steps(root / CHECKPOINTS), openable)
            if step is None or step not in allowed:
                return f"opened at {step}, allowed were {sorted(allowed)}; the folders have {openable}"
            for store in stores:
                store.open_at(step)
            return self._differences(root, stores, step)
        finally:
            for store in stores:
                store.close()

    def _differences(self, root: Path, stores: list[DiskStore], step: int) -> str | None:
        for name, store, expected in zip(SERVERS, stores, self._expected, strict=True):
            if (found := _other_rows(name, store, expected[step], step)) is not None:
                return found
        if step:
            model, _ = _model(-1)
            checkpoint.load_weights(root / CHECKPOINTS, step, model)
            if not all(bool((weights == step).all()) for weights in model.state_dict().values()):
                return f"the weights of step {step} are of another"
        return None


def _other_rows(name: str, store: DiskStore, right: Rows, step: int) -> str | None:
    found = read_rows(store, ALL_ROWS)
    if found.versions.tobytes() != right.versions.tobytes():
        return f"{name} at step {step} has versions {found.versions.tolist()}"
    if (found.values.tobytes(), found.state.tobytes()) != (right.values.tobytes(), right.state.tobytes()):
        return f"{name} at step {step} has other values"
    return None


def _writes(rng: np.random.Generator, step: int) -> list[tuple[Int64, Rows]]:
    """What a step writes: some rows for the first time, some again, and some of them twice. Rows that are needed at one
    time come together, so that whole chunks are written anew."""
    classes = rng.permutation(NUM_CLASSES)[:4]
    rows = rng.permutation(ALL_ROWS[np.isin(ALL_ROWS % NUM_CLASSES, classes)])
    again = rows[:5].copy()
    return [(some, random_rows(rng, len(some), LAYOUT, step)) for some in (rows, again)]


def _expected(writes: list[list[tuple[Int64, Rows]]]) -> list[Rows]:
    """All rows after each number of steps, from the definition."""
    rows = initial_rows(LAYOUT, ALL_ROWS)
    after = [_copy(rows)]
    for step in writes:
        for at, source in step:
            rows.values[at], rows.state[at], rows.versions[at] = source.values, source.state, source.versions
        after.append(_copy(rows))
    return after


def _copy(rows: Rows) -> Rows:
    return Rows(rows.values.copy(), rows.state.copy(), rows.versions.copy())


def _model(step: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A dense half that says of which step it is."""
    model = nn.Linear(2, 1)
    with torch.no_grad():
        for weights in model.parameters():
            weights.fill_(step)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _try_run_folder(root: Path, seed: int, tally: Tally) -> None:
    """A run folder that is being begun: with its configuration there, everything else it needs is there and whole."""
    root.mkdir(parents=True)
    config = "model:\n  name: dlrm\n" * 40

    def look(point: str) -> None:
        for ending in range(tally.power_cuts + 1):
            rng = np.random.default_rng([seed, len(disk.points), ending]) if ending else None
            files = disk.image(rng).files
            tally.trials += 1
            tally.points[f"run folder: {point}"] += 1
            if (there := files.get(run_folder.CONFIG_FILE)) is None:
                continue
            identity = files.get(run_folder.IDENTITY_FILE, b"")
            if there != config.encode() or b'"abc"' not in identity or not identity.endswith(b"}\n"):
                tally.found(f"seed {seed}, run folder, {point}: a configuration without all that it needs")

    disk = CrashDisk(root, look)
    with (
        mock.patch.object(run_folder, "Files", return_value=disk),
        mock.patch.object(run_folder, "dump_run", return_value=config),
    ):
        run_folder._write_down(SimpleNamespace(run=root), "abc")  # type: ignore[arg-type]
    disk.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=6000)
    arguments = parser.parse_args()
    print(run(trials=arguments.trials, seed=arguments.seed, progress=print))


if __name__ == "__main__":
    main()
