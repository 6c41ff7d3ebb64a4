"""The command line, the public API and the figures of benchmarks are those that were recorded."""

from __future__ import annotations

import pytest
import surfaces


@pytest.mark.parametrize("name", surfaces.SURFACES)
def test_as_recorded(name: str) -> None:
    """If a change is meant: `python tests/gate/run_gate.py --record --only surfaces`, and a line in CHANGELOG.md."""
    assert surfaces.differences(name) == []


def test_a_lost_option_and_a_changed_default_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    before = surfaces.recorded("command_line")
    now = [line.replace("default=200", "default=201") for line in before if "option --watch" not in line]
    assert now != before
    monkeypatch.setitem(surfaces.SURFACES, "command_line", lambda: iter(now))
    found = surfaces.differences("command_line")
    assert any(line.startswith("command_line: gone: foresee train option --watch") for line in found)
    assert (
        any(line.startswith("command_line: new: foresee plan run option --steps") for line in found) or len(found) > 1
    )
