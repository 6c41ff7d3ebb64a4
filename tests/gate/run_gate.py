"""`make gate`: did a change that should change nothing change nothing?

    python tests/gate/run_gate.py                   compare everything with what was recorded
    python tests/gate/run_gate.py --only herald     compare the runs or `surfaces` whose names contain this
    python tests/gate/run_gate.py --record          write down what is there now; review the diff of golden/

Readers of all format versions are ordinary tests (`test_samples.py`); `make gate` runs them first.

Runs compute in a fixed environment (`pinned.py`), so their digests are those of any x86-64 machine. Exits with 1 and
names each run and part that differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pinned

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden" / "runs.json"
PROCESSES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the golden files instead of comparing")
    parser.add_argument("--only", metavar="TEXT", default="", help="runs whose names contain this")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="leave what runs wrote here")
    options = parser.parse_args()
    if not pinned.is_pinned():
        pinned.start_pinned()
    begun = time.monotonic()
    lines = surface_differences(options.only, record=options.record)
    found = all_runs(options.only, options.keep)
    recorded = read_golden()
    if options.record and found:
        write_golden({**recorded, **found} if options.only else found)
    expected = {name: it for name, it in recorded.items() if options.only in name}
    lines += differences(expected, found)
    for line in lines:
        print(line)
    verdict = "recorded" if options.record else "differs" if lines else "same"
    print(f"gate: {len(found)} runs, {len(lines)} differences, {time.monotonic() - begun:.0f} s: {verdict}")
    sys.exit(1 if lines and not options.record else 0)


def surface_differences(only: str, *, record: bool) -> list[str]:
    """Lines of the command line, the public API and the benchmarks' figures that are gone or new."""
    import surfaces

    lines = []
    for name in surfaces.SURFACES:
        if only in f"surfaces: {name}":
            lines += surfaces.differences(name)
            if record:
                surfaces.record(name)
    return lines


def all_runs(only: str, keep: Path | None) -> dict[str, Any]:
    """What each run left, by name; of one that failed, its error."""
    import forked
    import plan_traffic
    from gate_runs import RUNS, prepare

    forked.load_libraries()
    with tempfile.TemporaryDirectory(prefix="foresee-gate-") as temporary:
        root = (keep or Path(temporary)).resolve()
        data = root / "data"
        data.mkdir(parents=True)
        wanted = {name: it for name, it in {**RUNS, **plan_traffic.TRAFFIC}.items() if only in name}
        if not wanted and only not in "data":
            return {}
        prepared = prepare(data)
        found: dict[str, Any] = {"data": prepared} if only in "data" else {}
        folders = {name: root / f"run-{number}" for number, name in enumerate(wanted)}

        def one(name: str) -> Any:
            folders[name].mkdir()
            begun = time.monotonic()
            try:
                return wanted[name](folders[name], data)
            except Exception as error:
                is_expected = isinstance(error, forked.FailedError)
                return {"failed": str(error) if is_expected else traceback.format_exc()}
            finally:
                print(f"{time.monotonic() - begun:6.1f} s  {name}", flush=True)

        with ThreadPoolExecutor(PROCESSES) as pool:
            found |= dict(zip(wanted, pool.map(one, wanted), strict=True))
    as_kept: dict[str, Any] = json.loads(json.dumps(found))
    return as_kept


def read_golden() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    return content


def write_golden(found: dict[str, Any]) -> None:
    """One line a run, so that the diff of a review names what changed."""
    failed = [name for name, parts in found.items() if "failed" in parts]
    if failed:
        sys.exit(
            f"nothing was recorded: {', '.join(failed)} failed\n" + "\n".join(found[it]["failed"] for it in failed)
        )
    lines = [f"{json.dumps(name)}: {json.dumps(parts)}" for name, parts in found.items()]
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def differences(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """One line for each part of each run that is not as recorded."""
    lines = []
    for name in sorted({*expected, *found}):
        if name not in found or name not in expected:
            lines.append(f"{name}: {'not run any more' if name not in found else 'not recorded'}")
        elif "failed" in found[name]:
            lines.append(f"{name}: failed: {found[name]['failed']}")
        else:
            parts = sorted({*expected[name], *found[name]})
            lines += [
                f"{name}: {part}: recorded {before}, now {now}"
                for part in parts
                for before, now in [_changed(expected[name].get(part), found[name].get(part))]
                if before != now
            ]
    return lines


def _changed(before: Any, now: Any) -> tuple[str, str]:
    """Both as JSON; of two objects, only the keys that differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = [key for key in {**before, **now} if json.dumps(before.get(key)) != json.dumps(now.get(key))]
        before, now = ({key: it[key] for key in keys if key in it} for it in (before, now))
    return json.dumps(before), json.dumps(now)


if __name__ == "__main__":
    main()
