"""Runs that are disturbed on purpose, and what they must leave in spite of it.

`Disturbed` is one run in a folder of its own, started as a person would start it. A fault is planted at a named point
of one of its parts (see store.points), or a signal is sent at a random moment; each is seen to have happened before it
counts. When the run is done, its bytes are those of a run that nobody disturbed: `leavings` are rows, optimiser state,
versions, dense weights, and the dense optimiser with its random state.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "launch"))

import warm_commands
from run_results import rows_in_folders, rows_of
from warm_commands import Command, Commands, is_alive

from foresee.data import ClickLog, tiny
from foresee.graph import build
from foresee.graph.options import GraphOptions
from foresee.graph.synthetic import Synthetic, synthetic_graph
from foresee.graph.trained import run_config
from foresee.io import failpoints

__all__ = ["Commands", "Disturbed", "GraphSetting", "Setting", "is_alive", "leavings", "make_log", "wait_until"]

WAIT_SECONDS = warm_commands.WAIT_SECONDS = 300.0
"""A bound for what fails; nothing waits for it."""
TAIL_BYTES = 4096
BATCH_SIZE, NUM_SAMPLES = 16, 500


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One kind of run."""

    name: str
    epochs: int
    workers: int = 1
    servers: int = 0
    placement: str = "contiguous"
    commit_every_steps: int = 5

    @property
    def num_steps(self) -> int:
        return self.epochs * 25

    @property
    def command(self) -> tuple[str, ...]:
        return ("train",)

    def leavings(self, run: Path) -> dict[str, bytes]:
        """Every byte that a run promises."""
        return leavings(run, self.num_steps)

    def write(self, folder: Path, log: ClickLog) -> Path:
        file = folder / f"{self.name}.yaml"
        file.write_text(
            f"log: {log.path}\nrun: {self.name}\n"
            "model: {name: dlrm, dim: 4, options: {bottom: [8], top: [8]}}\n"
            "cache: {rows: 100}\n"
            f"train: {{batch_size: {BATCH_SIZE}, num_threads: 1, log_every_steps: 1, epochs: {self.epochs}, "
            f"commit_every_steps: {self.commit_every_steps}}}\n"
            f"distributed: {{workers: {self.workers}, servers: {self.servers}, placement: {self.placement}, "
            "restarts_max: 100000}\n"
        )
        return file


@dataclass(frozen=True, kw_only=True)
class GraphSetting(Setting):
    """A run over a graph: one process, rows of nodes on disk, of which a buffer holds a part."""

    unit: str = "partitions"
    staleness_bound: int = 1
    edges_of_a_step: int = 32

    @property
    def command(self) -> tuple[str, ...]:
        return "graph", "train"

    def leavings(self, run: Path) -> dict[str, bytes]:
        """Every byte that a run promises; how many steps it has follows from the order of its edges."""
        config = run_config(run)
        graph = build.open_graph(config)
        stream = build.train_stream(config, graph, build.choose_order(config, graph))
        with build.node_tables(config, graph) as tables:
            return {**rows_of(tables.store), **_dense(run, stream.num_steps)}

    def write(self, folder: Path, log: ClickLog) -> Path:
        graph = log.path.parent / "graph"
        if not graph.exists():
            source = Synthetic(num_nodes=100, num_edges=900, num_relations=3, communities=4)
            synthetic_graph(source, graph, GraphOptions(partitions=8, valid_share=0.1))
        file = folder / f"{self.name}.yaml"
        file.write_text(
            f"graph: {graph}\nrun: {self.name}\nmodel: {{dim: 4}}\nnegatives: {{num_chunks: 2, num_nodes: 8}}\n"
            f"order: {{name: ring, buffer: 4}}\ncache: {{unit: {self.unit}}}\n"
            f"train: {{batch_size: {self.edges_of_a_step}, num_threads: 1, log_every_steps: 1, epochs: {self.epochs}, "
            f"commit_every_steps: {self.commit_every_steps}, staleness_bound: {self.staleness_bound}}}\n"
        )
        return file


def make_log(folder: Path) -> ClickLog:
    return tiny(folder / "log", seed=5, num_samples=NUM_SAMPLES)


def leavings(run: Path, num_steps: int) -> dict[str, bytes]:
    """Every byte that a run promises."""
    return {**rows_in_folders(run), **_dense(run, num_steps)}


def _dense(run: Path, num_steps: int) -> dict[str, bytes]:
    kept = run / "checkpoints" / f"step-{num_steps:09d}"
    mark = json.loads((run / "_SUCCESS").read_text())
    assert mark["step"] == num_steps, mark
    return {name: (kept / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


def wait_until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"this did not happen within {WAIT_SECONDS:.0f} s: {what()}")
        time.sleep(0.03)


@dataclass
class Disturbed:
    """One run under faults."""

    commands: Commands
    run_file: Path
    setting: Setting
    rng: random.Random
    counts: Counter[str]
    """Kills by role, and other faults by kind."""
    command: Command = field(init=False)
    options: tuple[str, ...] = ()
    _num_faults: int = 0
    _lives: int = 0

    def __post_init__(self) -> None:
        self.faults.mkdir()

    @property
    def run(self) -> Path:
        return self.run_file.parent / self.setting.name

    @property
    def faults(self) -> Path:
        return self.run_file.parent / "faults"

    @property
    def is_over(self) -> bool:
        return not is_alive(self.command.process_id)

    @property
    def steps_done(self) -> int:
        """As the end of metrics.jsonl has it; 0 before there is one."""
        with suppress(OSError), open(self.run / "metrics.jsonl", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            for line in reversed(file.read().splitlines()):
                with suppress(ValueError):
                    return int(json.loads(line)["step"])
        return 0

    def start(self) -> None:
        """The first time as a new run, then as one that goes on."""
        resume = ["--resume"] if (self.run / "config.yaml").exists() else []
        environment = {failpoints.FAULTS_VARIABLE: str(self.faults)}
        what = self.setting.command
        self.command = self.commands.start(*what, self.run_file, *resume, *self.options, environment=environment)
        self._lives += 1

    def end(self) -> int:
        return self.commands.wait(self.command)

    def parts(self) -> dict[str, int]:
        """Process ids by name, as the launcher has written them down."""
        with suppress(OSError, ValueError):
            found: dict[str, int] = json.loads((self.run / "logs" / "parts.json").read_text())
            return found
        return {}

    def plant(self, part: str, point: str, occurrence: int, number: signal.Signals = signal.SIGKILL) -> Path:
        """A fault that will happen when the part comes to the point; returns the file that shows it has."""
        self._num_faults += 1
        path = self.faults / f"{self._num_faults:05d}.json"
        content = {"part": part, "point": point, "occurrence": occurrence, "signal": number.name}
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(content))
        os.replace(draft, path)
        return path.with_suffix(".fired")

    def wait_for_fault(self, fired: Path) -> bool:
        """True if it happened; False if the run was over before."""
        wait_until(lambda: fired.exists() or self.is_over, lambda: f"{fired} in {self.told()}")
        if not fired.exists():
            fired.with_suffix(".json").unlink(missing_ok=True)
            return False
        process_id = int(fired.read_text())
        wait_until(lambda: not is_alive(process_id), lambda: f"the death of {process_id}")
        return True

    def kill_part(self, part: str, number: signal.Signals = signal.SIGKILL) -> bool:
        """Sends a signal now; False if that part is not there."""
        process_id = self.parts().get(part)
        if process_id is None or not is_alive(process_id):
            return False
        with suppress(ProcessLookupError):
            os.kill(process_id, number)
        wait_until(lambda: not is_alive(process_id) or self.is_over, lambda: f"the end of {part}: {self.told()}")
        return True

    def pause_part(self, part: str, seconds: float) -> bool:
        process_id = self.parts().get(part)
        if process_id is None or not is_alive(process_id):
            return False
        with suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(process_id, signal.SIGCONT)
        return True

    def wait_for_progress(self, beyond: int) -> None:
        wait_until(lambda: self.steps_done > beyond or self.is_over, lambda: f"step {beyond + 1}: {self.told()}")

    def count(self, role: str) -> None:
        self.counts[role] += 1
        self.counts["kills"] += 1

    def told(self) -> str:
        """What the run has said, for an error."""
        logs = [path.read_text(errors="replace")[-1500:] for path in sorted(self.run.glob("logs/*.log"))]
        return "\n".join([self.command.text()[-3000:], *logs])

    def different_bytes(self, expected: dict[str, bytes]) -> int:
        """How many bytes of what the run left are not those of the undisturbed one."""
        found = self.setting.leavings(self.run)
        assert found.keys() == expected.keys()
        return sum(_num_different(found[name], expected[name]) for name in expected)


def _num_different(one: bytes, other: bytes) -> int:
    return sum(a != b for a, b in zip(one, other, strict=False)) + abs(len(one) - len(other))
