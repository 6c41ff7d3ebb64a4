"""The saved plan of several workers: a folder with one file for each worker, and a manifest written last.

    PLAN/manifest.json     how many workers, and for each its file, the file's size and the digest in it
    PLAN/worker-000.arrow  the records of one worker, a plan file as `plan_file` has it

In: a header and the records of all workers, in order. Out: a folder, which appears whole or not at all, or the same
header, counters and records again. Each worker's file can be carried to its machine and read there by itself.
`open_plan` opens a plan of one worker or of several.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from foresee.errors import PlanError
from foresee.io import bounded_json
from foresee.io.files import Files
from foresee.plan.count import Counting
from foresee.plan.format.file import PlanFile, PlanWriter, counters_from_dict, write_plan
from foresee.plan.record import Counters, Header, Record

MANIFEST = "manifest.json"
FORMAT_VERSION = 1


def save_plan(path: str | Path, header: Header, records: Iterable[Record], *, from_planner: bool = False) -> Counters:
    """Keep a whole plan: a file for one worker, a folder for several. Appears complete or not at all.

    `from_planner`: the records come straight from the header's planner, see `write_plan`.
    """
    if header.num_workers == 1:
        return write_plan(path, header, records, from_planner=from_planner)
    path = Path(path)
    _check_free(path)
    draft: Path | None = None
    try:
        draft = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.partial-"))
        counters = _write(draft, header, records, from_planner)
        draft.chmod(0o755)  # a temporary folder is its maker's alone
        if path.exists():
            shutil.rmtree(path)
        os.replace(draft, path)
        return counters
    except OSError as error:
        raise PlanError(
            f"{path}: the plan cannot be written ({error.strerror or error}) and nothing was kept; "
            "free some space, or give another path"
        ) from None
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)


def _check_free(path: Path) -> None:
    if path.exists() and not (path / MANIFEST).is_file():
        raise PlanError(
            f"{path} is there and is no plan of several workers, which is a folder; give a name that is free"
        )


def _write(folder: Path, header: Header, records: Iterable[Record], from_planner: bool) -> Counters:
    counting, files = Counting(), [_file_of(worker) for worker in range(header.num_workers)]
    with ExitStack() as open_files:
        handles = [open_files.enter_context(open(folder / name, "wb")) for name in files]
        writers = [PlanWriter(file, header, header.num_steps, from_planner=from_planner) for file in handles]
        for record in counting.watch(records):
            writers[record.worker].add(record)
        for writer, file in zip(writers, handles, strict=True):
            writer.end()
            file.flush()
            os.fsync(file.fileno())
    content = {
        "format_version": FORMAT_VERSION,
        "workers": [
            {"file": name, "bytes": (folder / name).stat().st_size}
            | ({} if writer.digest is None else {"sha256": writer.digest})
            for name, writer in zip(files, writers, strict=True)
        ],
        "counters": asdict(counting.counters),
    }
    Files().publish(folder / MANIFEST, (json.dumps(content, indent=2) + "\n").encode())
    return counting.counters


def _file_of(worker: int) -> str:
    return f"worker-{worker:03d}.arrow"


@dataclass(frozen=True, slots=True)
class PlanFolder:
    """The saved plan of several workers, found to be complete."""

    path: Path
    header: Header
    counters: Counters
    workers: tuple[PlanFile, ...]
    digests: tuple[str | None, ...]
    """That the files have according to the manifest."""

    @classmethod
    def open(cls, path: str | Path) -> PlanFolder:
        """Refuses a folder in which a file is missing, cut, or of another plan."""
        path = Path(path)
        try:
            content = bounded_json.parse_object((path / MANIFEST).read_bytes())
            entries = bounded_json.objects(content, "workers")
            sizes = [bounded_json.whole(it, "bytes") for it in entries]
            digests = tuple(bounded_json.text_of(it, "sha256") if "sha256" in it else None for it in entries)
            counters = counters_from_dict(bounded_json.object_of(content, "counters"))
            version = bounded_json.whole(content, "format_version")
        except (OSError, ValueError) as error:
            raise PlanError(f"{path / MANIFEST} cannot be read ({error}); plan again") from None
        if version != FORMAT_VERSION:
            raise PlanError(
                f"{path}: the plan has format version {version}, this program reads {FORMAT_VERSION}; plan again"
            )
        plans = tuple(PlanFile.open(path / _file_of(worker), worker=worker) for worker in range(len(sizes)))
        for plan, size in zip(plans, sizes, strict=True):
            if plan.header != plans[0].header or plan.path.stat().st_size != size:
                raise PlanError(f"{plan.path} is not the file that {MANIFEST} names: another plan's; plan again")
        if not plans or plans[0].header.num_workers != len(plans):
            raise PlanError(f"{path / MANIFEST} names {len(plans)} workers, and the plan has others; plan again")
        return cls(path, plans[0].header, counters, plans, digests)

    def records(self, first_step: int | None = None) -> Iterator[Record]:
        """The records of all workers from a step on, step by step."""
        for together in zip(*(plan.records(first_step) for plan in self.workers), strict=True):
            yield from together

    def is_as_planned(self) -> bool:
        """Compare the files with their planner's digests, and with each other's plan; reads all of them once."""
        same = self.digests == tuple(plan.digest for plan in self.workers)
        return same and all(plan.is_as_planned() for plan in self.workers)

    @property
    def num_bytes(self) -> int:
        """On disk."""
        return sum(plan.num_bytes for plan in self.workers)


SavedPlan = PlanFile | PlanFolder


def open_plan(path: str | Path) -> SavedPlan:
    """A saved plan, of one worker or of several."""
    return PlanFolder.open(path) if Path(path).is_dir() else PlanFile.open(path)
