"""The storage of a run: its files, the dense halves of its commits, and whether all parts have copied theirs.

    URL/config.yaml, run.json, plan.json, metrics.jsonl, _SUCCESS     as in the run folder
    URL/checkpoints/checkpoints.json                                  names the files of the last two dense halves
    URL/timeline/worker-0.jsonl                                       what workers recorded, of a run that has ended
    URL/tables/shard-0-of-2/commits.json                              the rows of each server; see `store.disk.backup`

In: a configuration with a `storage`, and commits that are durable here. Out: the same commits there, copied by a thread
of this process. Training does not wait for it: the next commit does, for a while, so that all parts always have one
commit both here and there. A run whose folder is not on this machine goes on from what the storage has.
"""

from __future__ import annotations

import json
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from foresee.engine.trace.series import TIMELINE_FOLDER
from foresee.errors import ConfigError, InputError, StoreError
from foresee.io import bounded_json
from foresee.io.files import Files
from foresee.io.storage import Storage, Stored
from foresee.io.uploads import Needless, Uploads
from foresee.run import checkpoint
from foresee.run import folder as run_folder
from foresee.run.config import AnyRun
from foresee.run.folder import (
    BEHIND_FILE,
    CONFIG_FILE,
    IDENTITY_FILE,
    MARK_FILE,
    METRICS_FILE,
    PLAN_FILE,
    RunFolder,
    holds_run,
)
from foresee.store.commits import Part
from foresee.store.disk.backed_up import SHARDS, behind_of, copied, shard_place
from foresee.store.registry import StoreKind

RUN_FILES = (CONFIG_FILE, IDENTITY_FILE, PLAN_FILE, METRICS_FILE, MARK_FILE)
CHECKPOINTS = "checkpoints"
POINTER = "checkpoints.json"
FORMAT_VERSION = 1
BEHIND_SECONDS_MAX = 300.0
"""How long a commit that is due waits for the one before to be copied."""
ASK_SECONDS = 1.0
"""How often a commit that is due asks for that."""
SAY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """The dense half of a commit in the storage."""

    step: int
    num_shards: int
    """In which its rows are."""
    files: dict[str, Stored]


class RunStorage:
    """The storage of one run, as the process sees it that commits for all."""

    def __init__(self, url: str, folder: RunFolder, num_shards: int = 1) -> None:
        self._uploads = Uploads(url.partition("?")[0])
        self.storage = Storage.open(url)
        self.storage.check_bucket()
        self._copying = self.storage.patient(self.storage.patience_seconds, lambda: self._uploads.closed)
        self._folder, self._num_shards, self._tidy = folder, num_shards, False
        self._kept = self._read()
        self._asked_at = self._behind_since = None  # type: float | None

    @classmethod
    def of(cls, config: AnyRun) -> RunStorage | None:
        """None: the configuration names none."""
        return (
            None if config.storage is None else cls(config.storage, RunFolder(config.run), max(1, config.num_servers))
        )

    @property
    def steps(self) -> frozenset[int]:
        """Whose dense half is there."""
        return frozenset(it.step for it in self._kept)

    @property
    def num_shards(self) -> int | None:
        """In which the rows of the last commit are; None: there is none."""
        return self._kept[-1].num_shards if self._kept else None

    def copied(self, kind: StoreKind, tables: Path) -> StoreKind:
        """The kind of store of a run of one process, in this folder."""
        return copied(kind, tables, self.storage.below(*shard_place(0, 1)))

    # Files of the run

    def check_can_begin(self, *, replace: bool) -> None:
        """Refuses a storage that holds a run; with `replace` that run is removed, what names it first."""
        if self.storage.get(CONFIG_FILE) is None and not self._kept:
            return
        if not replace:
            raise ConfigError(
                f"{self.storage.url} already holds a run; continue it with --resume, or start anew with --replace"
            )
        self.remove()

    def remove(self) -> None:
        """Takes the run away."""
        self.storage.remove([*RUN_FILES, f"{CHECKPOINTS}/{POINTER}"])
        self.storage.remove(self.storage.names())
        self._kept = []

    def push_files(self) -> None:
        """The files of the run as they are now. A storage that cannot be written shows here."""
        for name in (*RUN_FILES[1:], CONFIG_FILE):  # which says that there is a run: last
            if (content := _content(self._folder.path / name)) is not None:
                self._copying.publish(name, content)

    def check_same_run(self) -> None:
        """Refuses a folder and a storage that hold two runs: going on would cost one of them its commits."""
        if self._other_run():
            raise ConfigError(
                f"{self._folder.path} and {self.storage.url} hold two different runs; give the storage of this run, or "
                "another folder"
            )

    def forget_other_run(self) -> None:
        """Takes away what this node has once had of another run in the same folder."""
        if self._other_run():
            run_folder.forget(self._folder.path)

    def _other_run(self) -> bool:
        there = self.storage.published(IDENTITY_FILE)
        if there is None or not holds_run(self._folder.path):
            return False
        return there != _content(self._folder.path / IDENTITY_FILE)

    def fetch_files(self) -> None:
        """The run folder, where it is not here or is older than what the storage has."""
        whole = checkpoint.whole_steps(self._folder.checkpoints)
        if holds_run(self._folder.path) and max(self.steps, default=0) <= max(whole, default=0):
            return
        found = {name: self.storage.published(name) for name in RUN_FILES}
        if found[CONFIG_FILE] is None:
            return
        self._folder.path.mkdir(parents=True, exist_ok=True)
        for name in (*RUN_FILES[1:], CONFIG_FILE):
            if (content := found[name]) is not None and not (name == CONFIG_FILE and holds_run(self._folder.path)):
                Files().publish(self._folder.path / name, content)
        timelines = self.storage.below(TIMELINE_FOLDER)
        for name in timelines.names():
            timelines.fetch(name, self._folder.path / TIMELINE_FOLDER / name)

    # Dense halves

    def bring(self, step: int) -> None:
        """The checkpoint of a step is here, as the storage has it."""
        for kept in self._kept:
            if kept.step == step:
                target = checkpoint.folder_of(self._folder.checkpoints, step)
                manifest = kept.files[checkpoint.MANIFEST_FILE]
                if not checkpoint.problems(self._folder.checkpoints, step) and _is(target, manifest):
                    return
                contents = {name: self._files.read(stored) for name, stored in kept.files.items()}
                content = contents.pop(checkpoint.MANIFEST_FILE)
                checkpoint.write(target, contents, content)

    def copy(self, step: int) -> None:
        """Copies the checkpoint of a step, and the files of the run with it, in the background."""
        self._uploads.submit("checkpoint", f"the checkpoint of step {step}", lambda: self._copy(step))

    def forget_after(self, step: int) -> None:
        """The run did not go on from later commits."""
        if any(it.step > step for it in self._kept):
            keep = [it for it in self._kept if it.step <= step]
            self._uploads.submit("forget", f"the end of commits after step {step}", lambda: self._publish(keep))

    def _copy(self, step: int) -> None:
        source, files = checkpoint.folder_of(self._folder.checkpoints, step), dict[str, Stored]()
        prefix = f"{source.name}-{uuid.uuid4().hex[:12]}"
        for name in (*checkpoint.FILES, checkpoint.MANIFEST_FILE):
            try:
                content = (source / name).read_bytes()
            except FileNotFoundError:  # of this machine: a newer checkpoint has replaced it
                raise Needless from None
            files[name] = self._files.store(f"{prefix}-{name}", partial(list, [content]))
        self.push_files()
        before = [it for it in self._kept if it.step < step]
        self._publish([*before[1 - checkpoint.KEPT :], StoredCheckpoint(step, self._num_shards, files)])
        self._remove_other_shards()

    def resharded(self, step: int, num_shards: int) -> None:
        """The rows of a step are in another number of shards now."""
        kept = next(it for it in self._kept if it.step == step)
        self._num_shards = num_shards
        self._publish([replace(kept, num_shards=num_shards)])
        self._remove_other_shards()

    def _remove_other_shards(self) -> None:
        """Rows in another number of shards, once nobody goes back to them."""
        if not self._tidy and all(it.num_shards == self._num_shards for it in self._kept):
            ours, tables = f"-of-{self._num_shards}", self._copying.below(SHARDS)
            tables.remove([name for name in tables.names() if not name.split("/")[0].endswith(ours)])
            self._tidy = True

    def _publish(self, kept: Sequence[StoredCheckpoint]) -> None:
        content = {"format_version": FORMAT_VERSION, "commits": [asdict(it) for it in kept]}
        self._files.publish(POINTER, json.dumps(content, indent=2).encode())
        names = [{stored.name for it in some for stored in it.files.values()} for some in (self._kept, kept)]
        self._kept = list(kept)
        self._files.remove(sorted(names[0] - names[1]))

    @property
    def _files(self) -> Storage:
        return self._copying.below(CHECKPOINTS)

    def _read(self) -> list[StoredCheckpoint]:
        storage = self.storage.below(CHECKPOINTS)
        content = storage.published(POINTER)
        try:
            entries = [] if content is None else bounded_json.objects(bounded_json.parse_object(content), "commits")
            return [
                StoredCheckpoint(
                    bounded_json.whole(it, "step"),
                    bounded_json.whole(it, "num_shards", 1),
                    {
                        name: Stored.parse(bounded_json.object_of(bounded_json.object_of(it, "files"), name))
                        for name in (*checkpoint.FILES, checkpoint.MANIFEST_FILE)
                    },
                )
                for it in entries
            ]
        except ValueError as error:
            raise StoreError(f"{storage.url}/{POINTER} is damaged ({error}); restore it from a copy") from error

    def open_at(self, step: int) -> None:
        """The run goes on from this step: its dense half is here afterwards, and later ones are forgotten there."""
        self.bring(step)
        self.forget_after(step)
        if step and step not in self.steps:
            self.copy(step)

    # When to commit, and when all is copied

    def ready(self, parts: Callable[[], Sequence[Part]], clock: Callable[[], float] = time.monotonic) -> bool:
        """Whether a commit that is due may begin: the one before is copied by all, or is not for too long."""
        now = clock()
        if self._asked_at is not None and now - self._asked_at < ASK_SECONDS:
            return False
        self._asked_at = now
        if self.behind(parts()) is None:
            self._asked_at = self._behind_since = None
            return True
        self._behind_since = now if self._behind_since is None else self._behind_since
        if now - self._behind_since < BEHIND_SECONDS_MAX:
            return False
        self._asked_at = self._behind_since = None
        return True

    def behind(self, parts: Sequence[Part]) -> str | None:
        """What is not copied yet, as a sentence."""
        late = behind_of(parts)
        if late:
            step = parts[late[0]].committed
            return f"the commit of step {step} of {len(late)} of {len(parts)} parts is on its way to {self.storage.url}"
        return self._uploads.behind()

    def finish(self, parts: Callable[[], Sequence[Part]], say: Callable[[str], None]) -> None:
        """Waits until all is copied, and says so. A second signal ends the wait as it ends everything; then, as after
        too long a wait, `BEHIND_FILE` is left in the run folder."""
        begun, mark = time.monotonic(), self._folder.path / BEHIND_FILE
        said = begun
        mark.touch()
        while (behind := self.behind(parts())) is not None:
            if time.monotonic() - said > SAY_SECONDS:
                said = time.monotonic()
                say(f"waiting for the storage: {behind}")
            if time.monotonic() - begun > BEHIND_SECONDS_MAX:
                say(f"not all is in the storage: {behind}; it is all in {self._folder.path}, and --resume copies it")
                return
            time.sleep(0.05)
        self.push_files()
        mark.unlink()
        with suppress(StoreError):  # a recording is no result
            for path in sorted((self._folder.path / TIMELINE_FOLDER).glob("*.jsonl")):
                self._copying.publish(f"{TIMELINE_FOLDER}/{path.name}", path.read_bytes())

    def close(self) -> None:
        self._uploads.close()


def is_begun(config: AnyRun) -> bool:
    """Whether the run folder or the storage of a run holds it, so that it can go on."""
    if config.storage is None or holds_run(config.run):
        return holds_run(config.run)
    return Storage.open(config.storage).published(CONFIG_FILE) is not None


@contextmanager
def copying(config: AnyRun) -> Iterator[RunStorage | None]:
    """The storage of a run, for the process that commits; None where it has none."""
    stored = RunStorage.of(config)
    try:
        yield stored
    finally:
        if stored is not None:
            stored.close()


@contextmanager
def opened_folder(config: AnyRun, *, log_digest: str, resume: bool, replace: bool) -> Iterator[RunFolder]:
    """The folder of a run that begins or goes on, here and in its storage."""
    with copying(config) as stored:
        if stored is not None and resume:
            stored.check_same_run()
            stored.fetch_files()
        if stored is not None and not resume:
            run_folder.check_can_begin(config, replace=replace)
            stored.check_can_begin(replace=replace)
        folder = (
            run_folder.resume(config, log_digest=log_digest)
            if resume
            else run_folder.begin(config, log_digest=log_digest, replace=replace)
        )
        try:
            with folder as opened:
                if stored is not None:
                    stored.push_files()
                yield opened
        except InputError:
            if stored is not None and not resume and not holds_run(config.run):
                with suppress(StoreError):  # what ended the run is what has to be told
                    stored.storage.patient(0.0).remove(RUN_FILES)
            raise


def _content(path: Path) -> bytes | None:
    """Return a file of this machine, or None if it is not there."""
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return None


def _is(folder: Path, manifest: Stored) -> bool:
    content = (folder / checkpoint.MANIFEST_FILE).read_bytes()
    return (len(content), zlib.crc32(content)) == (manifest.num_bytes, manifest.crc32)
