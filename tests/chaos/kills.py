"""Real processes of real runs, killed at named points and at random moments; every run ends with the same bytes.

`run(kills=, seed=, progress=)` disturbs runs of four kinds until so many processes were killed with SIGKILL: launched
runs whose trainers, servers and planner are killed one after the other and started again by the launcher; runs of one
process, over a log and over graphs, killed and resumed; launchers killed with everything they started. Beside that
parts are stopped for a while (SIGSTOP), asked to end (SIGTERM), and the disk is full. Every fault is seen to have
happened before it counts, and every run that is done is compared, byte for byte, with one that nobody disturbed.

    python tests/chaos/kills.py --kills 60 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from full_disks import fill_disks
from killed_runs import Commands, Disturbed, GraphSetting, Setting, is_alive, make_log, wait_until

from foresee.data import ClickLog
from foresee.io import failpoints

SINGLE = Setting(name="single", epochs=4, commit_every_steps=4)
LAUNCHED = Setting(name="launched", epochs=6, workers=2, servers=2)
PLACED = Setting(name="placed", epochs=6, workers=2, servers=2, placement="location_aware")
LAUNCHED_SETTINGS = (LAUNCHED, PLACED)
ABANDONED = Setting(name="abandoned", epochs=4, workers=2, servers=2)
GRAPHS = (
    GraphSetting(name="partitions", epochs=1, commit_every_steps=9),
    GraphSetting(name="rows-in-flight", epochs=1, commit_every_steps=9, unit="rows", staleness_bound=3),
)

OFTEN = {failpoints.STEP_DONE, failpoints.ROWS_APPLIED, failpoints.RECORDS_SENT, *failpoints.SWAP_POINTS}
"""Points that are reached with every step; the others once for each commit."""
AT_START = {failpoints.RESTORED, failpoints.RUN_OPENED}
"""Points that are reached while a run recovers: the fault needs another one before it."""
PAUSE_SECONDS_MAX = 0.6
PARTS = ("worker 0", "worker 1", "server 0", "server 1", "planner")

Progress = Callable[[str], None]


class Deck:
    """Every part at every named point, in a random order, then again: none is left out."""

    def __init__(self, rng: random.Random, parts: Sequence[str]) -> None:
        self._rng, self._all = rng, [(part, point) for part in parts for point in _points_of(part)]
        self._left: list[tuple[str, str]] = []

    def draw(self) -> tuple[str, str]:
        if not self._left:
            self._left = self._rng.sample(self._all, len(self._all))
        return self._left.pop()


def run(*, kills: int, seed: int, progress: Progress) -> dict[str, int]:
    """Kills so many processes; returns how many of which role, and `different_bytes`."""
    with tempfile.TemporaryDirectory(prefix="foresee-kills-") as name, Commands(Path(name)) as commands:
        return run_with(commands, Path(name), kills=kills, seed=seed, progress=progress)


def run_with(commands: Commands, folder: Path, *, kills: int, seed: int, progress: Progress) -> dict[str, int]:
    """The four kinds of runs beside each other, then full disks."""
    counts: Counter[str] = Counter(kills=0, different_bytes=0, runs=0)
    log, lock, errors = make_log(folder), threading.Lock(), list[BaseException]()

    def work(kind: Callable[..., None], share: float) -> None:
        try:
            mine: Counter[str] = Counter()
            place = folder / kind.__name__
            place.mkdir()
            kind(commands, place, log, random.Random(f"{seed} {kind.__name__}"), mine, share * kills, progress)
            with lock:
                counts.update(mine)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=it) for it in SHARES.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    trials = max(1, kills // 25)
    counts.update(fill_disks(commands, folder, log, random.Random(seed), trials=trials, progress=progress))
    return dict(counts)


def _undisturbed(commands: Commands, folder: Path, log: ClickLog, setting: Setting) -> dict[str, bytes]:
    place = folder / f"undisturbed-{setting.name}"
    place.mkdir()
    code, text = commands.run(*setting.command, setting.write(place, log))
    assert code == 0, text
    return setting.leavings(place / setting.name)


def _next_run(
    commands: Commands, folder: Path, log: ClickLog, setting: Setting, rng: random.Random, counts: Counter[str]
) -> Disturbed:
    place = Path(tempfile.mkdtemp(dir=folder))
    return Disturbed(commands, setting.write(place, log), setting, rng, counts)


def _finish(disturbed: Disturbed, expected: dict[str, bytes], progress: Progress) -> None:
    """The run is done: it must have left what the undisturbed one has."""
    different = disturbed.different_bytes(expected)
    disturbed.counts["different_bytes"] += different
    disturbed.counts["runs"] += 1
    progress(
        f"{disturbed.setting.name}: {disturbed.counts['kills']} kills in {disturbed.counts['runs']} runs"
        + (f"; {different} DIFFERENT BYTES in {disturbed.run}" if different else "")
    )
    if not different:
        shutil.rmtree(disturbed.run_file.parent)


def _single_runs(
    commands: Commands, folder: Path, log: ClickLog, rng: random.Random, counts: Counter[str], kills: float,
    progress: Progress,
) -> None:  # fmt: skip
    """One process trains, is killed, and goes on, until it is done."""
    _lives_of(SINGLE, commands, folder, log, rng, counts, kills, progress)


def _graph_runs(
    commands: Commands, folder: Path, log: ClickLog, rng: random.Random, counts: Counter[str], kills: float,
    progress: Progress,
) -> None:  # fmt: skip
    """The same over graphs: killed in the middle of an epoch, of a swap, of a commit."""
    for number, setting in enumerate(GRAPHS, start=1):
        _lives_of(setting, commands, folder, log, rng, counts, kills * number / len(GRAPHS), progress)


def _lives_of(
    setting: Setting, commands: Commands, folder: Path, log: ClickLog, rng: random.Random, counts: Counter[str],
    kills: float, progress: Progress,
) -> None:  # fmt: skip
    expected = _undisturbed(commands, folder, log, setting)
    disturbed = _next_run(commands, folder, log, setting, rng, counts)
    deck = Deck(rng, ["train"])
    while counts["kills"] < kills:
        _one_life(disturbed, deck)
        if disturbed.end() == 0:
            _finish(disturbed, expected, progress)
            disturbed = _next_run(commands, folder, log, setting, rng, counts)
    disturbed.start()
    assert disturbed.end() == 0, disturbed.told()
    _finish(disturbed, expected, progress)


def _one_life(disturbed: Disturbed, deck: Deck) -> None:
    rng = disturbed.rng
    if rng.random() < 0.75:
        _, point = deck.draw()
        occurrence = rng.randint(1, 20) if point in OFTEN else rng.randint(1, 4)
        fired = disturbed.plant("train", point, occurrence)
        disturbed.start()
        if disturbed.wait_for_fault(fired):
            disturbed.count("train")
        return
    disturbed.start()
    number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
    time.sleep(rng.random())
    if not disturbed.is_over:
        disturbed.command.signal(number)
        wait_until(lambda: disturbed.is_over, disturbed.told)
        if number == signal.SIGKILL:
            disturbed.count("train")
        else:
            disturbed.counts["asked_to_end"] += 1


def _launched_runs(
    commands: Commands, folder: Path, log: ClickLog, rng: random.Random, counts: Counter[str], kills: float,
    progress: Progress,
) -> None:  # fmt: skip
    """Parts of launched runs are killed; the launcher starts them again."""
    expected: dict[Setting, dict[str, bytes]] = {}
    deck = Deck(rng, PARTS)
    while counts["kills"] < kills:
        setting = rng.choice(LAUNCHED_SETTINGS)
        if setting not in expected:
            expected[setting] = _undisturbed(commands, folder, log, setting)
        disturbed = _next_run(commands, folder, log, setting, rng, counts)
        disturbed.start()
        disturbed.wait_for_progress(0)
        while not disturbed.is_over and counts["kills"] < kills:
            _one_fault(disturbed, deck)
        assert disturbed.end() == 0, disturbed.told()
        _finish(disturbed, expected[setting], progress)


def _one_fault(disturbed: Disturbed, deck: Deck) -> None:
    rng, step = disturbed.rng, disturbed.steps_done
    part, kind = rng.choice(PARTS), rng.random()
    if kind < 0.55:
        _fault_at_point(disturbed, *deck.draw())
    elif kind < 0.88:
        time.sleep(rng.random() * 0.3)
        if disturbed.kill_part(part):
            disturbed.count(part)
    elif kind < 0.95:
        if disturbed.pause_part(part, rng.random() * PAUSE_SECONDS_MAX):
            disturbed.counts["paused"] += 1
    elif part.startswith(("server", "planner")) and disturbed.kill_part(part, signal.SIGTERM):
        disturbed.counts["asked_to_end"] += 1
    disturbed.wait_for_progress(step)


def _fault_at_point(disturbed: Disturbed, part: str, point: str) -> None:
    rng = disturbed.rng
    occurrence = 1 if point in AT_START else rng.randint(1, 12) if point in OFTEN else rng.randint(1, 2)
    fired = disturbed.plant(part, point, occurrence)
    if point in AT_START and disturbed.kill_part("worker 1"):
        disturbed.count("worker 1")
    if disturbed.wait_for_fault(fired):
        disturbed.count(part)


def _points_of(part: str) -> tuple[str, ...]:
    if part == "train":
        return (*failpoints.STORE_POINTS, *failpoints.TRAINER_POINTS[:-1], *failpoints.SWAP_POINTS)
    if part == "worker 0":
        return failpoints.TRAINER_POINTS
    if part.startswith("worker"):
        return (failpoints.STEP_DONE, failpoints.FLUSHED, failpoints.RESTORED)
    return failpoints.PLANNER_POINTS if part == "planner" else failpoints.SERVER_POINTS


def _abandoned_runs(
    commands: Commands, folder: Path, log: ClickLog, rng: random.Random, counts: Counter[str], kills: float,
    progress: Progress,
) -> None:  # fmt: skip
    """The launcher is killed, with it end all parts, and the run is resumed; or it is asked to stop."""
    expected = _undisturbed(commands, folder, log, ABANDONED)
    while counts["kills"] < kills:
        disturbed = _next_run(commands, folder, log, ABANDONED, rng, counts)
        while True:
            disturbed.start()
            if _abandon(disturbed):
                continue
            if disturbed.end() == 0:
                break
        _finish(disturbed, expected, progress)


def _abandon(disturbed: Disturbed) -> bool:
    """True if the launcher was ended before the run was done."""
    rng, step = disturbed.rng, disturbed.steps_done
    disturbed.wait_for_progress(step + rng.randint(0, 30))
    if disturbed.is_over:
        return False
    number = signal.SIGKILL if rng.random() < 0.8 else signal.SIGTERM
    parts = disturbed.parts()
    disturbed.command.signal(number)
    code = disturbed.end()
    if code == 0:  # it was done in the same moment
        disturbed.start()
        return False
    assert code == (-number if number == signal.SIGKILL else 128 + number), disturbed.told()
    wait_until(lambda: not any(is_alive(it) for it in parts.values()), lambda: f"the end of {parts}")
    if number == signal.SIGKILL:
        disturbed.count("launcher")
    else:
        disturbed.counts["asked_to_end"] += 1
    return True


SHARES: dict[Callable[..., None], float] = {
    _launched_runs: 0.5, _single_runs: 0.26, _graph_runs: 0.16, _abandoned_runs: 0.08,
}  # fmt: skip
"""Of all kills."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    begun = time.monotonic()
    found = run(kills=arguments.kills, seed=arguments.seed, progress=lambda line: print(line, file=sys.stderr))
    print(json.dumps({**found, "seconds": round(time.monotonic() - begun, 1)}))


if __name__ == "__main__":
    main()
