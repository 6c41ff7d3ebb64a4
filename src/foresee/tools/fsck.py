"""`foresee check` as a function: what a path holds, and whether it is whole.

In: a path. Out: an `FsckReport`, or a DataError for what is not ours. A table folder, the shards of servers, a run
folder, a prepared log, a plan, an export: each is recognised by one file that only it has. Nothing is ever written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from foresee.data.click_log import ClickLog
from foresee.data.writer import DESCRIPTION_FILE
from foresee.errors import DataError, PlanError, StoreError
from foresee.io.storage import Storage
from foresee.io.units import counted
from foresee.io.urls import Place, brought, shown
from foresee.plan.format.folder import MANIFEST, SavedPlan, open_plan
from foresee.run import checkpoint
from foresee.run.backup_shards import brought_run
from foresee.run.config import AnyRun
from foresee.run.config_file import is_of_graph, load
from foresee.run.folder import CONFIG_FILE, RunFolder, open_run
from foresee.run.serving.export import EXPORT_FILE
from foresee.run.serving.exported import load_exported
from foresee.store.disk.manifest import MANIFEST_FILE
from foresee.store.registry import store_kind
from foresee.store.row_groups import group_folders
from foresee.store.server.shard import SHARD_FILE, read_shard_file
from foresee.store.shard_folders import shard_folders
from foresee.tools.fsck_tables import FsckReport, check_tables, openable_steps

ARROW_MARK = b"\xff\xff\xff\xff"
PLAN_SUFFIX = ".arrow"


def check(path: Place) -> FsckReport:
    """Looks at whatever is there. What is at a URL is fetched first, except a log."""
    if isinstance(path, Path):
        return _check(path)
    report = FsckReport("a prepared log", shown(path))
    if Storage.open(path).size(DESCRIPTION_FILE) is not None:
        _log(path, report)
        return report
    return replace(_check(_brought(path)), where=shown(path))


def _brought(url: str) -> Path:
    storage = Storage.open(url)
    if storage.size(CONFIG_FILE) is not None:
        return brought_run(url)
    marker = next((it for it in (EXPORT_FILE, MANIFEST) if storage.size(it) is not None), None)
    return brought(url, "checked", marker=marker)


def _check(path: Path) -> FsckReport:
    if not path.exists():
        raise DataError(f"{path}: there is nothing here; give a folder or file that Foresee made")
    for mark, kind, look in _KINDS:
        if (path / mark).exists():
            report = FsckReport(kind, str(path))
            look(path, report)
            return report
    if path.is_dir() and (shard_folders(path) or group_folders(path)):
        kind = "the tables of several servers" if shard_folders(path) else "tables of several widths"
        report = FsckReport(kind, str(path))
        _parts(path, report)
        return report
    if _looks_like_plan(path):
        report = FsckReport("a plan", str(path))
        _plan(path, report)
        return report
    raise DataError(
        f"{path} is nothing that Foresee made: neither a table folder, a run, a prepared log, a plan nor an export; "
        "give another path"
    )


def _looks_like_plan(path: Path) -> bool:
    try:
        if path.is_dir():
            return (path / MANIFEST).is_file() and any(path.glob("worker-*.arrow"))
        with open(path, "rb") as file:
            return file.read(4) == ARROW_MARK or path.suffix == PLAN_SUFFIX
    except OSError:
        return False


def _tables(path: Path, report: FsckReport) -> None:
    check_tables(path, report)
    if (path / SHARD_FILE).exists():
        report.attempt(SHARD_FILE, lambda: "shard {shard} of {num_shards}".format(**(read_shard_file(path) or {})))


def table_folders(path: Path) -> list[Path]:
    """The table folders of some tables: of each width, and of each shard."""
    below = [*shard_folders(path), *group_folders(path)]
    return [folder for part in below for folder in table_folders(part)] if below else [path]


def _parts(path: Path, report: FsckReport, where: str = "") -> list[set[int]]:
    """All table folders; the steps that each can be opened at."""
    steps = []
    for folder in table_folders(path):
        prefix = "" if folder == path else f"{folder.relative_to(path)}/"
        manifest = check_tables(folder, report, where + prefix)
        steps.append(set() if manifest is None else set(openable_steps(manifest)))
    if len(steps) > 1 and not set.intersection(*steps):
        what = "shards" if shard_folders(path) else "widths"
        report.add(where + what, "damaged", "there is no step that all of them can be opened at")
    return steps


def _run(path: Path, report: FsckReport) -> None:
    config: list[AnyRun] = []

    def read() -> str:
        config.append(_config(path))
        return f"trains on {shown(config[0].source)}"

    readable = report.attempt(CONFIG_FILE, read)
    folder = RunFolder(path)
    report.attempt(folder.metrics_file.name, lambda: f"{sum(1 for _ in folder.read_metrics()):,} lines")
    whole = _checkpoints(folder.checkpoints, report)
    if folder.best.is_dir():
        _best(folder, report)
    if not readable:
        return
    kind = store_kind(config[0].tables.store)
    if not kind.durable:
        report.add("tables", "note", "the rows were in memory and ended with their process")
        return
    if kind.open_newest is not None:
        report.add("tables", "note", f"the rows are on {config[0].tables.store}; check the folders of these servers")
        return
    if not kind.checked:
        report.add("tables", "note", f"the rows are in a store {kind.name!r}, which only its own package can check")
        return
    tables = config[0].tables_folder
    if (tables / MANIFEST_FILE).exists():
        steps = _parts(tables, report, "tables/")
    elif shard_folders(tables) or group_folders(tables):
        steps = _parts(tables, report)
    else:
        report.add("tables", "note" if not whole else "damaged", f"there are no tables in {tables}")
        return
    _both_halves(whole, steps, report)


def _config(path: Path) -> AnyRun:
    """What the run was started with, whatever it trains on."""
    if is_of_graph(path / CONFIG_FILE):
        from foresee.graph.config import GraphConfig  # only here: most checks need nothing of graphs

        return load(GraphConfig, path / CONFIG_FILE)
    return open_run(path)


def _best(folder: RunFolder, report: FsckReport) -> None:
    """A pair of tables and checkpoints of its own, for the best evaluation."""
    whole = _checkpoints(folder.best_checkpoints, report, "best/")
    steps = _parts(folder.best_tables, report, "best/tables/")
    if all(steps):
        _both_halves(whole, steps, report, "best/")


def _checkpoints(folder: Path, report: FsckReport, where: str = "") -> list[int]:
    """Steps whose dense half is whole. One that was being written when the run stopped is no damage: the newest."""
    there, whole = checkpoint.steps_there(folder), []
    for step in there:
        problems = checkpoint.problems(folder, step)
        unfinished = step == there[-1] and any("not finished" in problem for problem in problems)
        if not problems:
            whole.append(step)
            report.add(f"{where}checkpoint of step {step}", "whole", "all files as its manifest says")
        else:
            report.add(f"{where}checkpoint of step {step}", "note" if unfinished else "damaged", "; ".join(problems))
    if not there:
        report.add(f"{where}checkpoints", "note", "nothing was committed yet")
    return whole


def _both_halves(whole: list[int], steps: list[set[int]], report: FsckReport, where: str = "") -> None:
    """A commit is rows and weights of one step."""
    common = sorted(set(whole).intersection(*steps))
    if common:
        report.add(f"{where}commits", "whole", f"rows and weights are there of step {', '.join(map(str, common))}")
    elif whole or any(step > 0 for some in steps for step in some):
        report.add(f"{where}commits", "damaged", "there is no step of which both rows and weights are there")


def _log(path: Place, report: FsckReport) -> None:
    log: list[ClickLog] = []

    def read() -> str:
        log.append(ClickLog.open(path))
        samples = ", ".join(f"{name} {size:,}" for name, size in log[0].split_sizes.items())
        return f"{counted(len(log[0].features), 'feature')}, {log[0].num_rows:,} rows; samples: {samples}"

    def contents() -> str:
        log[0].check()
        return f"all samples as the digest says ({log[0].digest[:12]}…)"

    def vocabularies() -> str:
        found = [log[0].vocabulary(name) for name in log[0].vocabularies]
        return f"{counted(sum(1 for it in found if it is not None), 'file')} can be read"

    if report.attempt(DESCRIPTION_FILE, read):
        report.attempt("samples", contents)
        report.attempt("vocabularies", vocabularies)


def _plan(path: Path, report: FsckReport) -> None:
    plan: list[SavedPlan] = []

    def read() -> str:
        plan.append(open_plan(path))
        header = plan[0].header
        return f"{header.planner}, {counted(header.num_steps, 'step')}, {counted(header.num_workers, 'worker')}"

    def records() -> str:
        return f"{sum(1 for _ in plan[0].records()):,} records, each as its checksum says"

    if report.attempt("header and counters", read) and report.attempt("records", records):
        as_planned = plan[0].is_as_planned()
        words = "the plan is as its planner left it" if as_planned else "none that fits: `train` proves the plan"
        report.add("digest", "whole" if as_planned else "note", words)


def _export(path: Path, report: FsckReport) -> None:
    def read() -> str:
        exported = load_exported(path)
        name, step = exported.description["model"]["name"], exported.description.get("step")
        return f"model {name} of step {step}, tables as long as it says"

    try:
        report.add(EXPORT_FILE, "whole", read())
    except (DataError, StoreError, PlanError) as error:
        foreign = "import_model" in str(error)
        report.add(EXPORT_FILE, "note" if foreign else "damaged", str(error))


_KINDS: tuple[tuple[str, str, Callable[[Path, FsckReport], None]], ...] = (
    (CONFIG_FILE, "a run", _run),
    (MANIFEST_FILE, "a table folder", _tables),
    (DESCRIPTION_FILE, "a prepared log", _log),
    (EXPORT_FILE, "an export", _export),
)
"""The file that decides, what it makes of its folder, and the check."""
