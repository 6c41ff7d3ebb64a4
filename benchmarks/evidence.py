"""Measures, draws and writes the figures of docs/evidence.md: nothing on that page is typed by hand.

Every section has commands that print one JSON object last. What they printed is kept in docs/evidence/SECTION.json,
with the command, how long it took and on what machine; pictures are drawn from that into
docs/pictures/evidence-SECTION.png, and the tables between the section's markers in docs/evidence.md are written anew.

    python benchmarks/evidence.py                        draws and writes from what was kept; measures nothing
    python benchmarks/evidence.py --full                 measures every section first, one after the other
    python benchmarks/evidence.py --only accuracy peers  measures these sections
    python benchmarks/evidence.py --missing              measures what was not kept yet: goes on after an interruption

A command that is not there or fails leaves what was kept of it, and is named at the end with exit code 1. Measure on a
machine that does nothing else; `--full` takes about as long as the minutes of the sections in sum (`--list`).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drawn import accuracy, breakdown, larger, peers, pictures, planner, policies, scaling, sensitivity
from drawn.section import Command, Output, Section

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence.md"
KEPT = ROOT / "docs" / "evidence"
PICTURES = ROOT / "docs" / "pictures"
TALL = {"accuracy": 700, "sensitivity": 760}
PATIENCE_SECONDS = 1800

SECTIONS: dict[str, Section] = {
    "breakdown": breakdown.SECTION,
    "sensitivity": sensitivity.SECTION,
    "scaling": scaling.SECTION,
    "planner": planner.SECTION,
    "policies": policies.SECTION,
    "accuracy": accuracy.SECTION,
    "peers": peers.SECTION,
    "larger": larger.SECTION,
}


class FailedError(Exception):
    """A command that gave no figures, in one sentence."""


def measure(name: str, *, only_missing: bool) -> list[str]:
    """Runs the commands of a section and keeps what they print; gives a sentence for each that failed."""
    kept, failures = load(name), []
    for key, command in SECTIONS[name].commands.items():
        if only_missing and key in kept:
            continue
        shared = _measured_elsewhere(name, command)
        print(f"{name}: {command.words}", flush=True)
        try:
            kept[key] = shared or _run(command)
        except FailedError as failure:
            failures.append(f"{name}: {failure}")
            continue
        _keep(name, kept)  # after every command, so that an interruption loses one at most
    return failures


def _measured_elsewhere(name: str, command: Command) -> dict[str, Any] | None:
    """What the same command gave in an earlier section, if it did."""
    for other in list(SECTIONS)[: list(SECTIONS).index(name)]:
        for entry in load(other).values():
            if entry["command"] == command.words:
                return entry
    return None


def _run(command: Command) -> dict[str, Any]:
    if not command.is_foresee and not (ROOT / command.script).is_file():
        raise FailedError(f"{command.script} is not there; its part of the page stays as it is")
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "figures.csv"
        arguments = ["-m", "foresee", *command.arguments, "--csv", str(table)]
        words = [sys.executable, *(arguments if command.is_foresee else [command.script, *command.arguments])]
        printed = _output_of(words, command)
        output = {"lines": _lines_of(table)} if command.is_foresee else _last_object(printed, command)
    seconds = round(time.perf_counter() - begun, 1)
    return {"command": command.words, "seconds": seconds, "machine": _machine(), "output": output}


def _output_of(words: list[str], command: Command) -> str:
    try:
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise FailedError(f"{command.words} took longer than {PATIENCE_SECONDS} s") from None
    if done.returncode:
        raise FailedError(f"{command.words} ended with {done.returncode}; run it by itself to see why")
    return done.stdout


def _last_object(printed: str, command: Command) -> Output:
    lines = printed.strip().splitlines()
    try:
        output = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError):
        raise FailedError(f"{command.words} did not print a JSON object last") from None
    if not isinstance(output, dict):
        raise FailedError(f"{command.words} did not print a JSON object last")
    return output


def _lines_of(table: Path) -> list[dict[str, str]]:
    with open(table, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def load(name: str) -> dict[str, dict[str, Any]]:
    """What was kept of a section, by command."""
    file = KEPT / f"{name}.json"
    kept: dict[str, dict[str, Any]] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return kept


def _keep(name: str, kept: dict[str, dict[str, Any]]) -> None:
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


def render(name: str) -> str | None:
    """The part of the page between a section's markers, and its picture; None if nothing was kept."""
    section, kept = SECTIONS[name], load(name)
    outputs = {key: entry["output"] for key, entry in kept.items()}
    if not outputs:
        return None
    try:
        figure, words = section.draw(outputs), section.words(outputs)
    except KeyError as missing:
        print(f"{name}: nothing is kept of {missing}; measure it with --only {name}", file=sys.stderr)
        return None
    picture = f"evidence-{name}.png"
    if figure is not None and not pictures.draw(figure, PICTURES / picture, height=TALL.get(name, pictures.HEIGHT)):
        print(f"{name}: no browser is here to draw {picture}, which stays as it is", file=sys.stderr)
    shown = f"![{name}](pictures/{picture})\n\n" if (PICTURES / picture).is_file() else ""
    commands = "".join(f"    {entry['command']}   # {_duration(entry)}\n" for entry in kept.values())
    return f"\n{commands}\n{shown}{words}\n"


def _duration(entry: dict[str, Any]) -> str:
    return f"{entry['seconds']:.0f} s on {entry['machine']}"


def with_figures(page: str, name: str, part: str) -> str:
    """The page with a section's figures between its markers."""
    pattern = re.compile(rf"(<!-- figures: {name} -->\n).*?(<!-- end: {name} -->)", re.DOTALL)
    if not pattern.search(page):
        raise FailedError(f"{PAGE.name} has no markers for {name}")
    return pattern.sub(lambda found: found[1] + part + found[2], page)


def write_page(names: Iterator[str] | list[str]) -> None:
    page = PAGE.read_text("utf-8")
    for name in names:
        part = render(name)
        if part is not None:
            page = with_figures(page, name, part)
    PAGE.write_text(page, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="measure every section")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=[], help="measure these sections")
    parser.add_argument("--missing", action="store_true", help="measure only what was not kept yet")
    parser.add_argument("--list", action="store_true", help="the sections, their commands and minutes")
    options = parser.parse_args()
    if options.list:
        for name, section in SECTIONS.items():
            commands = "; ".join(command.words for command in section.commands.values())
            print(f"{name:12} {section.minutes:4.1f} min  {commands}")
        return
    failures: list[str] = []
    for name in options.only or (SECTIONS if options.full or options.missing else ()):
        failures += measure(name, only_missing=options.missing)
        write_page([name])
    write_page(list(SECTIONS))
    for failure in failures:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
