"""The folder of a run: what is where in it, who may begin in it, and what a later command finds there.

    RUN/config.yaml      the run as it was started, every key, paths as seen from RUN
    RUN/run.json         the log's digest: a run cannot go on with another log; and the run's id, another for each run
    RUN/metrics.jsonl    one JSON object a line: kind train, valid or commit
    RUN/plan.json        where a plan for several workers began, so that a resumed run resumes the same plan
    RUN/_SUCCESS         the step of the last commit, for other tools; written when all parts have it
    RUN/behind           the run has ended, and its storage does not have all of it: nobody may take the disk away yet
    RUN/stop             who makes it asks the run to commit and end, as Ctrl-C does; see `ending`
    RUN/timeline/        what each worker recorded of itself, for `foresee report`; see `timeline`
    RUN/checkpoints/     dense weights, optimiser and random state of the last commits; see `checkpoint`
    RUN/tables/          rows, unless the configuration keeps them elsewhere
    RUN/best/            rows and checkpoint of the best evaluation; see `best_folder`

In: a configuration and whether to begin, replace or resume. Out: a `RunFolder`. A folder that holds anything but a run
is left alone, and a run that fails before its first commit leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from foresee.engine.trace.series import TIMELINE_FOLDER, TimelineFile
from foresee.errors import ConfigError, InputError, StoreError
from foresee.io import bounded_json
from foresee.io.files import Files, file_sentence
from foresee.io.urls import shown
from foresee.plan.record import Header
from foresee.run.config import AnyRun, RunConfig, Section
from foresee.run.config_file import changed_result_keys, dump_run, load, load_run
from foresee.store.disk.folder import lock_folder
from foresee.store.registry import store_kind

CONFIG_FILE = "config.yaml"
IDENTITY_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
MARK_FILE = "_SUCCESS"
PLAN_FILE = "plan.json"
STOP_FILE = "stop"
BEHIND_FILE = "behind"
BEFORE_A_RUN = (IDENTITY_FILE, f"{IDENTITY_FILE}.draft", f"{CONFIG_FILE}.draft")
"""What a process that was killed while it began may have left."""
FORMAT_VERSION = 1


@dataclass(frozen=True)
class RunFolder:
    """Paths inside a run folder, and its metrics."""

    path: Path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def kept_tables(self) -> Path:
        """Rows of a run whose store ended with its process; see `dense_half.keep_rows`."""
        return self.path / "kept-tables"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def best_tables(self) -> Path:
        return self.best / "tables"

    @property
    def best_checkpoints(self) -> Path:
        return self.best / "checkpoints"

    @property
    def stop_file(self) -> Path:
        return self.path / STOP_FILE

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def remedy(self) -> str:
        """What to do where a disk is full. A run without a commit is taken away, so that it cannot be resumed."""
        if any(self.checkpoints.glob("*/*")):
            return "free some space, then resume"
        return "nothing was committed yet: free some space, then start anew"

    @property
    def metrics_file(self) -> Path:
        return self.path / METRICS_FILE

    def records(self, worker: int) -> tuple[Path, ...]:
        """What a worker writes down of the run and of itself; nobody computes with it."""
        timeline = TimelineFile(self.path, worker).path
        return (self.metrics_file, timeline) if worker == 0 else (timeline,)

    def mark(self, step: int) -> None:
        """Tells other tools that the commit of a step is complete. Nothing of ours reads it."""
        content = {"step": step, "checkpoint": f"{self.checkpoints.name}/step-{step:09d}"}
        try:
            Files().publish(self.path / MARK_FILE, (json.dumps(content) + "\n").encode())
        except OSError as error:
            raise StoreError(f"{self.path / MARK_FILE} cannot be written ({error.strerror}); {self.remedy}") from error

    def append_metrics(self, line: dict[str, Any]) -> None:
        try:
            with open(self.metrics_file, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise StoreError(f"{self.metrics_file} cannot be written ({error.strerror}); {self.remedy}") from error

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """All lines that are whole: a process that was killed may have left half a line at the end."""
        try:
            text = self.metrics_file.read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"{self.metrics_file} cannot be read ({error.strerror}); move it away") from error
        for line in text.splitlines():
            try:
                found = bounded_json.parse_object(line)
                bounded_json.whole(found, "step")
            except ValueError:
                continue
            yield found

    def forget_metrics_after(self, step: int) -> None:
        """A resumed run will measure these steps again."""
        kept = [json.dumps(line) + "\n" for line in self.read_metrics() if line["step"] <= step]
        try:
            Files().publish(self.metrics_file, "".join(kept).encode())
        except OSError as error:
            raise StoreError(f"{self.metrics_file} cannot be written ({error.strerror}); {self.remedy}") from error


@contextmanager
def begin(config: AnyRun, *, log_digest: str, replace: bool) -> Iterator[RunFolder]:
    """The folder of a new run. If a person's mistake ends the run before its first commit, nothing of it stays."""
    folder = RunFolder(config.run)
    check_can_begin(config, replace=replace)
    with _in_words():
        _remove(config)
    _write_down(config, log_digest)
    try:
        with _in_words():
            yield folder
    except InputError:
        if not any(folder.checkpoints.glob("*/*")):
            with suppress(OSError):  # what ended the run is what has to be told
                _remove(config)
            _remove_if_empty(config.run)
        raise


@contextmanager
def resume(config: AnyRun, *, log_digest: str) -> Iterator[RunFolder]:
    """The folder of a run that goes on; refuses a configuration that would end with other bytes."""
    before, identity = _config_of(config.run, config), _identity(config.run)
    for key, old, new in changed_result_keys(before, config):
        raise ConfigError(
            f"{key} is {new!r}, but the run in {config.run} was started with {old!r}, and the result depends on it; "
            "use the old value, or start anew with --replace or in another folder"
        )
    if identity.get("log_digest") != log_digest:
        raise ConfigError(
            f"{shown(config.source)} is not the one that the run in {config.run} was started with; "
            "give that one, or start anew with --replace or in another folder"
        )
    if not store_kind(config.tables.store).durable:
        raise ConfigError(
            f"the rows of {config.run} were in memory and ended with their process; "
            "start anew with --replace, and with tables.store: disk to be able to resume"
        )
    _write_down(config, log_digest)  # what may differ now, such as paths or the number of epochs
    with _in_words():
        yield RunFolder(config.run)


@contextmanager
def _in_words() -> Iterator[None]:
    """What the system refuses to do with a file of the run is a sentence."""
    try:
        yield
    except OSError as error:
        if (sentence := file_sentence(error)) is None:
            raise
        raise StoreError(sentence) from error


def open_run(path: Path) -> RunConfig:
    """The configuration that a run folder was started with."""
    _check_run(path)
    return load_run(path / CONFIG_FILE)


def _config_of(path: Path, like: AnyRun) -> AnyRun:
    """The same, of a run of the same kind."""
    _check_run(path)
    kind = cast("type[Section]", type(like))
    return cast("AnyRun", load(kind, path / CONFIG_FILE))


def holds_run(path: Path) -> bool:
    """Whether a run was begun here, so that it can be resumed."""
    return (path / CONFIG_FILE).is_file()


def _check_run(path: Path) -> None:
    if not holds_run(path):
        raise ConfigError(f"{path} holds no run ({CONFIG_FILE} is missing); start one with `foresee train`")


def check_can_begin(config: AnyRun, *, replace: bool) -> None:
    """Refuses to begin in a folder with another run, or with anything that is no run; deletes nothing."""
    path, tables = config.run, config.tables_folder
    if path.exists() and not path.is_dir():
        raise ConfigError(f"run: {path} is a file, and a run needs a folder; give another path")
    holds_run = (path / CONFIG_FILE).is_file()
    if holds_run and not replace:
        raise ConfigError(f"{path} already holds a run; continue it with --resume, or start anew with --replace")
    if not holds_run and path.is_dir() and any(it for it in path.iterdir() if it.name not in BEFORE_A_RUN):
        raise ConfigError(f"run: {path} is not empty and holds no run; give another folder, or empty it yourself")
    kind = store_kind(config.tables.store)
    if kind.in_folder and kind.holds(tables):
        if not _inside(tables, path):
            raise ConfigError(
                f"tables.folder: {tables} already holds tables, and a new run needs new ones; "
                "give another folder, or remove it yourself"
            )
        if kind.checked:
            os.close(lock_folder(tables))  # somebody may be training them at this moment
    elif kind.open_newest is not None and kind.holds(tables):
        raise ConfigError(
            f"tables.store: {config.tables.store} holds the rows of a run already, and a new run needs new ones; go on "
            "with --resume, or start servers with new folders"
        )


def _write_down(config: AnyRun, log_digest: str) -> None:
    path, files = config.run, Files()
    try:
        path.mkdir(parents=True, exist_ok=True)
        identity = {"format_version": FORMAT_VERSION, "log_digest": log_digest, "id": run_id(path) or uuid.uuid4().hex}
        files.publish(path / IDENTITY_FILE, (json.dumps(identity, indent=2) + "\n").encode())
        files.publish(path / CONFIG_FILE, dump_run(config, path).encode())
    except OSError as error:
        raise ConfigError(f"run: {path} cannot be written ({error.strerror}); give another folder") from None


def _remove(config: AnyRun) -> None:
    """Takes away what runs write and nothing else; tables only where they are part of the run."""
    forget(config.run)
    if _inside(config.tables_folder, config.run):
        shutil.rmtree(config.tables_folder, ignore_errors=True)


def forget(run: Path) -> None:
    """Takes away what a run has written here, but its tables."""
    folder = RunFolder(run)
    # The configuration goes first: without it the folder counts as no run, whatever of the rest is still there.
    for name in (CONFIG_FILE, IDENTITY_FILE, METRICS_FILE, MARK_FILE, PLAN_FILE, STOP_FILE, BEHIND_FILE):
        (run / name).unlink(missing_ok=True)
    for tree in (folder.checkpoints, folder.best, folder.kept_tables, folder.tensorboard, run / TIMELINE_FOLDER):
        shutil.rmtree(tree, ignore_errors=True)


def _remove_if_empty(path: Path) -> None:
    try:
        path.rmdir()
    except OSError:
        pass


def _inside(path: Path, folder: Path) -> bool:
    return path.absolute().is_relative_to(folder.absolute())


def _identity(path: Path) -> dict[str, Any]:
    try:
        return bounded_json.parse_object((path / IDENTITY_FILE).read_bytes())
    except (OSError, ValueError):
        raise ConfigError(f"{path / IDENTITY_FILE} is missing or damaged; start anew with --replace") from None


def run_id(path: Path) -> str:
    """What tells a run from all others, also from one that was in the same folder before; empty: none is here."""
    try:
        return bounded_json.text_of(bounded_json.parse_object((path / IDENTITY_FILE).read_bytes()), "id")
    except (OSError, ValueError):
        return ""


def plan_origin(folder: RunFolder, header: Header) -> int | None:
    """The first step of the plan that the header belongs to; None if where it begins makes no difference."""
    if header.num_workers == 1 or header.options.placement == "contiguous":
        return None
    settings, path = _settings(header), folder.path / PLAN_FILE
    known = _read(path.read_bytes()) if path.exists() else None
    if known is not None and known[0] == settings and known[1] <= header.first_step:
        return known[1]
    content = {"settings": settings, "planned_from": header.first_step}
    try:
        Files().publish(path, (json.dumps(content, indent=2) + "\n").encode())
    except OSError as error:
        raise StoreError(f"{path} cannot be written ({error.strerror}); {folder.remedy}") from error
    return header.first_step


def _settings(header: Header) -> dict[str, Any]:
    """Everything a plan follows from, beside the log. How far ahead next uses are looked for decides nothing."""
    without = ("planned_from", "uses_ahead_steps")
    parameters = {name: value for name, value in header.options.to_dict().items() if name not in without}
    return {
        "planner": header.planner, "parameters": parameters, "num_workers": header.num_workers,
        "capacity_rows": header.capacity_rows, "fetch_ahead_steps": header.fetch_ahead_steps,
        **({"groups": [group.to_dict() for group in header.groups]} if header.groups else {}),
    }  # fmt: skip


def _read(content: bytes) -> tuple[dict[str, Any], int] | None:
    """What a plan followed from and where it began; None if the file is damaged, which costs bits and not rows."""
    try:
        known = bounded_json.parse_object(content)
        return bounded_json.object_of(known, "settings"), bounded_json.whole(known, "planned_from")
    except ValueError:
        return None
