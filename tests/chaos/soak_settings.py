"""What the soak draws: runs of `foresee train` and user-written loops, and how each of them is killed.

A setting is everything that decides the bytes of a run. What must not change them is drawn anew for each cell: the
number of servers, a storage, and of course the kills. (One process and one worker with servers draw other random
numbers, which are kept with the dense optimizer: whether there are servers belongs to the setting.)
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import socket
import threading
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from killed_runs import Commands, Disturbed, Setting, is_alive, wait_until
from run_results import rows_of

from foresee.data import ClickLog, tiny
from foresee.io import failpoints
from own_loop import Loop

BATCH_SIZE, STEPS_OF_AN_EPOCH = 16, 8
ONE_WIDTH, WIDTHS = 4, {"user": 6, "item": 3, "default": 2}
CLIPS = (None, 0.05, 0.05, 1.0)
PLACEMENTS = ("contiguous", "herald", "location_aware", "location_aware")
DTYPES = ("float32", "bfloat16", "float16")
ROW_OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "lazy_adam")
DENSE_OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {"name": "adam"}, {"name": "sgd", "lr": 0.1, "options": {"momentum": 0.9}}, {"name": "adagrad", "lr": 0.05},
)  # fmt: skip
LOOPS_SHARE = 0.25
"""Of all settings, those with a user-written loop."""
LATE = (0.45, 0.8)
"""When the first kill comes, as a share of the run's steps."""
POINTS_OF_TRAINER_0 = (
    failpoints.FLUSHED, failpoints.PREPARED, failpoints.CHECKPOINT_WRITTEN, failpoints.DECIDED, failpoints.SETTLED,
)  # fmt: skip
POINTS_OF_SERVERS = (failpoints.SEALING, failpoints.SEALED, failpoints.ROWS_APPLIED)
LOST = ("tables/shard-0", "checkpoints")

_log_lock = threading.Lock()


class Drawn(Protocol):
    """One setting."""

    kind: ClassVar[str]

    def train(self, commands: Commands, folder: Path) -> None:
        """Train to the end, undisturbed."""
        ...

    def train_under_kills(self, commands: Commands, folder: Path, rng: random.Random) -> list[str]:
        """Train to the end in spite of kills; returns what was killed when."""
        ...

    def leavings(self, folder: Path) -> dict[str, bytes]:
        """Every byte that the run promises."""
        ...


def draw(rng: random.Random) -> Drawn:
    """Draw a setting."""
    workers, clip_norm = rng.choice((1, 2, 2, 3)), rng.choice(CLIPS)
    optimizer, placement, widths = rng.choice(ROW_OPTIMIZERS), rng.choice(PLACEMENTS), rng.random() < 0.4
    if rng.random() < LOOPS_SHARE:
        num_steps = rng.choice((24, 32, 40))
        dims = {"user": 6, "film": 3, "seen": 3, "place": 2} if widths else dict.fromkeys(
            ("user", "film", "seen", "place"), 4
        )  # fmt: skip
        return DrawnLoop(workers, Loop(
            num_steps=num_steps, commit_every_steps=rng.randint(3, 6), seed=rng.randrange(1000), dims=dims,
            data_type=rng.choice(("fp32", "bf16", "fp16")), optimizer=optimizer, placement=placement,
            cache_rows=100, sequences=rng.random() < 0.7, parts=rng.choice((1, 2, 3)),
            clip_norm=clip_norm,
        ))  # fmt: skip
    return DrawnRun(
        name="run", epochs=rng.choice((3, 4, 5)), workers=workers, placement=placement,
        servers=int(workers > 1 or rng.random() < 0.3),
        commit_every_steps=rng.randint(3, 6), optimizer=optimizer, clip_norm=clip_norm, widths=widths,
        dtype=rng.choice(DTYPES), rounding=rng.choice(("stochastic", "nearest")),
        dense_optimizer=rng.randrange(len(DENSE_OPTIMIZERS)),
        cache_rows=rng.choice((150, 170) if widths else (100, 130)), seed=rng.randrange(1000),
        schedule=rng.random() < 0.3,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DrawnRun(Setting):
    """A run of `foresee train`."""

    kind: ClassVar[str] = "soak_runs"
    optimizer: str
    clip_norm: float | None
    widths: bool
    dtype: str
    rounding: str
    dense_optimizer: int
    cache_rows: int
    seed: int
    schedule: bool
    stored: bool = False

    @property
    def num_steps(self) -> int:
        return self.epochs * STEPS_OF_AN_EPOCH

    def write(self, folder: Path, log: ClickLog) -> Path:
        file, optimizer = folder / f"{self.name}.yaml", {"name": self.optimizer, "lr": 0.05}
        if self.schedule:
            optimizer["schedule"] = {"shape": "cosine", "warmup_steps": 5, "steps": self.num_steps}
        one_width = {"name": "dlrm", "dim": ONE_WIDTH, "options": {"bottom": [8], "top": [8]}}
        several = {"name": "dcn_v2", "dim": WIDTHS, "options": {"num_cross": 1, "deep": [8]}}
        content = {
            "log": str(log.path), "run": self.name, "cache": {"rows": self.cache_rows},
            "model": several if self.widths else one_width,
            "tables": {"dtype": self.dtype, "rounding": self.rounding, "optimizer": optimizer, "seed": self.seed},
            "train": {
                "batch_size": BATCH_SIZE, "num_threads": 1, "log_every_steps": 1, "epochs": self.epochs,
                "commit_every_steps": self.commit_every_steps, "clip_norm": self.clip_norm, "seed": self.seed,
                "optimizer": DENSE_OPTIMIZERS[self.dense_optimizer], "evaluate_samples_max": BATCH_SIZE,
            },
            "report": {"timeline_steps": 0, "series_points": 0},
            "distributed": {
                "workers": self.workers, "servers": self.servers, "placement": self.placement, "restarts_max": 100,
            },
        }  # fmt: skip
        if self.stored:
            content["storage"] = f"file://{folder / 'storage'}"
        file.write_text(json.dumps(content))  # JSON is YAML
        return file

    def train(self, commands: Commands, folder: Path) -> None:
        code, text = commands.run("train", self.write(folder, _log_beside(folder)))
        assert code == 0, text

    def train_under_kills(self, commands: Commands, folder: Path, rng: random.Random) -> list[str]:
        setting = replace(self, servers=self.servers and rng.randint(1, 3), stored=rng.random() < 0.3)
        disturbed = Disturbed(commands, setting.write(folder, _log_beside(folder)), setting, rng, Counter())
        killed: list[str] = []
        at = rng.uniform(*LATE) * self.num_steps
        disturbed.start()
        for _ in range(rng.choice((1, 1, 2))):
            step, part = int(at), rng.choice(_parts_of(setting))
            wait_until(lambda step=step: disturbed.steps_done >= step or disturbed.is_over, disturbed.told)  # type: ignore[misc]
            if _kill(disturbed, part):
                killed.append(f"{part} after step {step}")
            at = min(at + rng.uniform(0.05, 0.2) * self.num_steps, 0.9 * self.num_steps)
        assert disturbed.end() == 0, disturbed.told()
        return killed

    def leavings(self, folder: Path) -> dict[str, bytes]:
        return super().leavings(folder / self.name)


def _log_beside(folder: Path) -> ClickLog:
    """One log for all cells, beside the folders of the settings."""
    with _log_lock:
        path = folder.parents[1] / "log"
        return ClickLog.open(path) if path.exists() else tiny(path, seed=5, num_samples=160)


def _parts_of(setting: DrawnRun) -> list[str]:
    if not setting.servers:
        return ["train"]
    workers = [f"worker {number}" for number in range(setting.workers)]
    return [*workers, *workers, *(f"server {number}" for number in range(setting.servers)), "planner", "launcher"]


def _kill(disturbed: Disturbed, part: str) -> bool:
    """Kill a part now or at a point of its next commit; False if the run was over before."""
    rng = disturbed.rng
    if part in ("train", "launcher"):
        return _kill_all(disturbed)
    points = POINTS_OF_TRAINER_0 if part == "worker 0" else POINTS_OF_SERVERS if part.startswith("server") else None
    if points and rng.random() < 0.5:
        return disturbed.wait_for_fault(disturbed.plant(part, rng.choice(points), 1))
    return disturbed.kill_part(part)


def _kill_all(disturbed: Disturbed) -> bool:
    """Kill the process that was started, with which all parts end, then resume, maybe without a part of its folder."""
    if disturbed.is_over:
        return False
    parts = disturbed.parts()
    disturbed.command.signal(signal.SIGKILL)
    code = disturbed.end()
    wait_until(lambda: not any(is_alive(it) for it in parts.values()), lambda: f"the end of {parts}")
    setting = disturbed.setting
    if isinstance(setting, DrawnRun) and setting.stored and setting.servers and disturbed.rng.random() < 0.5:
        shutil.rmtree(disturbed.run / disturbed.rng.choice(LOST))
    disturbed.start()
    return code != 0


@dataclass(frozen=True)
class DrawnLoop:
    """A user-written loop, of one trainer or several; nobody but the soak starts it again."""

    kind: ClassVar[str] = "soak_loops"
    workers: int
    loop: Loop

    def train(self, commands: Commands, folder: Path) -> None:
        assert self._live(commands, folder, {}) == [0] * self.workers

    def train_under_kills(self, commands: Commands, folder: Path, rng: random.Random) -> list[str]:
        killed = []
        at = rng.uniform(*LATE) * self.loop.num_steps
        for _ in range(rng.choice((1, 1, 2))):
            rank, step = rng.randrange(self.workers), int(at)
            codes = self._live(commands, folder, {rank: step})
            assert codes[rank] == -signal.SIGKILL, codes
            killed.append(f"trainer {rank} after step {step}")
            at = min(at + rng.uniform(0.05, 0.2) * self.loop.num_steps, 0.9 * self.loop.num_steps)
        self.train(commands, folder)
        return killed

    def leavings(self, folder: Path) -> dict[str, bytes]:
        kept = folder / "checkpoints" / f"step-{self.loop.num_steps:09d}"
        with self.loop.tables_on_disk(folder) as tables:
            assert tables.store.committed_step == self.loop.num_steps
            rows = rows_of(tables.store)
        return {**rows, **{it: (kept / it).read_bytes() for it in ("model.safetensors", "optimizer.safetensors")}}

    def _live(self, commands: Commands, folder: Path, die: dict[int, int]) -> list[int]:
        """Start all trainers and wait until all have ended; returns their exit codes."""
        (folder / "loop.json").write_text(json.dumps({"loop": asdict(self.loop), "die": die}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        common = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(self.workers),
            "LOCAL_WORLD_SIZE": str(self.workers), "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        script = Path(__file__).with_name("own_loop.py")
        started = [
            commands.start("python", script, folder, environment={**common, "RANK": str(rank)})
            for rank in range(self.workers)
        ]
        first, *others = started
        codes = [commands.wait(first)]
        if "failed to listen" in first.text():  # another process has taken the port meanwhile; the others would wait
            for trainer in others:
                trainer.signal(signal.SIGKILL)
                commands.wait(trainer)
            return self._live(commands, folder, die)
        codes += [commands.wait(trainer) for trainer in others]
        if not die and any(codes):
            raise AssertionError("\n".join(trainer.text()[-3000:] for trainer in started))
        return codes
