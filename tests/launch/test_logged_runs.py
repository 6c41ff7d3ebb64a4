"""Every process of a launched run logs in one format: role, rank, step; what a person reads is as before."""

from __future__ import annotations

import re
from pathlib import Path

from warm_commands import Commands

LINE = re.compile(r"[-\d]{10} [:.\d]{12} INFO (?P<place>[a-z]+(?: \d+)?)(?: step \d+)?: (?P<message>.+)")


def said_in(text: str) -> dict[str, list[str]]:
    """Messages by role and rank."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if (match := LINE.fullmatch(line)) is not None:
            found.setdefault(match["place"], []).append(match["message"])
    return found


def test_all_parts_log_what_happens_to_them(commands: Commands, run_file: Path) -> None:
    code, text = commands.run("train", run_file, "--log-level", "info", "--stop-after", "5")
    assert code == 0, text
    assert any(message.startswith("started server 0; its output goes to ") for message in said_in(text)["launcher"])
    folder = run_file.parent / "run" / "logs"
    parts = {path.stem: said_in(path.read_text()) for path in folder.glob("*.log")}
    assert set(parts) == {"server-0", "server-1", "planner", "worker-0", "worker-1"}
    for name, said in parts.items():
        assert list(said) == [name.replace("-", " ")], said
    assert any("joined run" in message for message in parts["server-1"]["server 1"])
    assert any("Settle of step 5" in message for message in parts["server-0"]["server 0"])
    assert any("planning for run" in message for message in parts["planner"]["planner"])
    assert {"2 workers are here", "begins", "ends after 5 steps"} <= set(parts["worker-1"]["worker 1"])
    assert any(message.startswith("committed in") for message in parts["worker-0"]["worker 0"])


def test_without_the_option_nothing_new_is_said(commands: Commands, run_file: Path) -> None:
    code, text = commands.run("train", run_file, "--stop-after", "5")
    assert code == 0, text
    logs = [text, *(path.read_text() for path in (run_file.parent / "run" / "logs").glob("*.log"))]
    assert not any(said_in(it) for it in logs)
    assert "stopped after 5 of" in text
