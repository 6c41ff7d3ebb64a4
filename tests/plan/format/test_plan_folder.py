"""Saved plans of several workers: a file for each and a manifest, whole or refused with a sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_plan_file import assert_equal, records_of

from foresee.errors import PlanError
from foresee.plan.format.folder import MANIFEST, PlanFolder, open_plan, save_plan
from foresee.plan.record import Header, Record
from foresee.testing.traces import header_for, skewed_trace

TRACE = skewed_trace(seed=1, num_rows=60, num_steps=8, num_samples=6, num_lookups=3)


@pytest.fixture(scope="module")
def made() -> tuple[Header, list[Record]]:
    header = header_for("lookahead", TRACE, capacity_rows=30, num_rows=60)
    header = replace(header, num_workers=3, options=replace(header.options, placement="location_aware"))
    return header, records_of(header, TRACE)


def test_what_was_saved_is_read_again(made: tuple[Header, list[Record]], tmp_path: Path) -> None:
    header, records = made
    counters = save_plan(tmp_path / "plan", header, records)
    assert sorted(it.name for it in (tmp_path / "plan").iterdir()) == [
        MANIFEST, "worker-000.arrow", "worker-001.arrow", "worker-002.arrow",
    ]  # fmt: skip
    again = open_plan(tmp_path / "plan")
    assert isinstance(again, PlanFolder)
    assert (again.header, again.counters) == (header, counters)
    for first in (0, 5):
        for left, right in zip(again.records(first), records[first * 3 :], strict=True):
            assert_equal(left, right)
    for left, right in zip(again.workers[1].records(), records[1::3], strict=True):
        assert_equal(left, right)
    save_plan(tmp_path / "plan", header, records)  # over itself
    assert [it.name for it in tmp_path.iterdir()] == ["plan"]


def test_damage_is_a_sentence(made: tuple[Header, list[Record]], tmp_path: Path) -> None:
    header, records = made
    folder = tmp_path / "plan"
    save_plan(folder, header, records)
    whole = (folder / "worker-001.arrow").read_bytes()
    (folder / "worker-001.arrow").write_bytes(whole[:-50])
    with pytest.raises(PlanError, match=r"worker-001\.arrow: .*plan again"):
        open_plan(folder)
    (folder / "worker-001.arrow").write_bytes((folder / "worker-002.arrow").read_bytes())
    with pytest.raises(PlanError, match=r"worker-001\.arrow.*(is not the file|damaged)"):
        list(open_plan(folder).records())
    (folder / "worker-001.arrow").unlink()
    with pytest.raises(PlanError, match="there is no such file"):
        open_plan(folder)
    (folder / "worker-001.arrow").write_bytes(whole)
    content = json.loads((folder / MANIFEST).read_text())
    for broken in ("{", json.dumps({**content, "workers": content["workers"][:2]})):
        (folder / MANIFEST).write_text(broken)
        with pytest.raises(PlanError, match="plan again"):
            open_plan(folder)


def test_half_a_plan_leaves_nothing_and_nothing_else_is_written_over(
    made: tuple[Header, list[Record]], tmp_path: Path
) -> None:
    header, records = made
    with pytest.raises(PlanError, match="its header promises 8"):
        save_plan(tmp_path / "plan", header, records[:-1])
    assert not list(tmp_path.iterdir())
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "mine.txt").write_text("kept")
    with pytest.raises(PlanError, match="give a name that is free"):
        save_plan(tmp_path / "plan", header, records)
    assert (tmp_path / "plan" / "mine.txt").read_text() == "kept"
