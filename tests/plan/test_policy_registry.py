"""A policy is one file and one line, also from outside: every list, table and command has it from the registry."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import foresee
from foresee.data import tiny
from foresee.engine.planned_step import Pooling, replayed
from foresee.errors import InputError, PlanError, UsageError
from foresee.plan import (
    Policy,
    all_policies,
    baselines,
    check_plan,
    find,
    make_planner,
    plan,
    register,
    trainable,
    unregister,
)
from foresee.plan.check import check
from foresee.plan.format.columns import batch_of
from foresee.plan.record import ComparedRecord, Header, PlannerOptions, Record
from foresee.plan.registry import BUILT_IN
from foresee.testing.traces import accesses_of, header_for, skewed_trace
from trace_stream import TraceStream

TOY = """
import numpy as np
from foresee.plan import Policy
from foresee.plan.baselines.ranked_eviction import RankedEviction

def alone(header, profile):
    return RankedEviction(header, lambda step, slots, rows: np.full(len(slots), -step, np.int64))

MRU = Policy(name="mru", meaning="the row used last leaves", colour="#123456", alone=alone)
"""


def toy() -> Policy:
    found: dict[str, Any] = {}
    exec(compile(TOY, "toy", "exec"), found)
    policy: Policy = found["MRU"]
    return policy


@pytest.fixture
def mru() -> Iterator[Policy]:
    yield register(toy())
    unregister("mru")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with an entry point, as pip leaves one behind."""
    site = tmp_path / "site"
    (site / "toy-1.0.dist-info").mkdir(parents=True)
    (site / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (site / "toy-1.0.dist-info" / "entry_points.txt").write_text("[foresee.policies]\nmru = toy_policy:MRU\n")
    (site / "toy_policy.py").write_text(TOY)
    monkeypatch.syspath_prepend(site)
    monkeypatch.delitem(sys.modules, "toy_policy", raising=False)
    monkeypatch.setattr("foresee.plan.registry._asked_packages", False)
    yield site
    unregister("mru")


def test_a_policy_added_by_a_call_plans_and_is_proved(mru: Policy) -> None:
    trace = skewed_trace(seed=3, num_rows=60, num_steps=8, num_samples=8, num_lookups=3)
    header = header_for("mru", trace, capacity_rows=30, num_rows=60)
    records = list(plan(make_planner(header, lambda num_steps: trace[:num_steps]), trace))
    assert check(header, trace, records, None).right
    assert check_plan(header, trace, records, None).right
    assert trainable()[-2:] == ["mru", "belady"], "the bound comes last"
    with pytest.raises(PlanError, match="planner 'mru' cannot plan for 2 workers; choose one of none, lookahead"):
        make_planner(replace(header, num_workers=2), lambda num_steps: trace)


def test_what_cannot_be_registered_is_said(mru: Policy) -> None:
    for wrong, sentence in {
        mru: "there is a policy 'mru' already",
        replace(mru, name="most recent"): "cannot be named 'most recent'",
        replace(mru, name="empty", alone=None): "'empty' plans nothing",
    }.items():
        with pytest.raises(UsageError, match=sentence):
            register(wrong)


def test_an_installed_policy_trains_and_is_in_every_list(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    tiny(tmp_path / "log", num_samples=300)
    Path("run.yaml").write_text(
        "log: log\nrun: run\nmodel: {name: dlrm, dim: 4}\ncache: {rows: 150}\ntrain: {batch_size: 32}\n"
    )
    assert foresee("verify", "run.yaml", "--set", "cache.planner=mru", monkeypatch=monkeypatch) == 0
    assert foresee("plan", "run.yaml", "--steps", "3", "--curve", "curve.html", monkeypatch=monkeypatch) == 0
    table = capsys.readouterr().out
    assert "│ mru " in table
    assert "mru: the row used last leaves" in table.replace("\n", " ")
    assert "#123456" in Path("curve.html").read_text("utf-8")
    asked = ("compare", "log", "--trainers", "1,2", "--steps", "3", "--batch-size", "16", "--policies", "mru,none")
    assert foresee(*asked, monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert len(re.findall("│ mru ", text)) == 2
    assert "is planned for one trainer only" in text


def test_a_package_that_cannot_be_imported_is_named(installed: Path) -> None:
    (installed / "toy_policy.py").write_text("import nowhere_at_all")
    with pytest.raises(InputError, match=r"mru of the installed package toy cannot be imported .* uninstall it"):
        all_policies()


def test_names_of_policies_stand_in_their_own_file_only() -> None:
    source = Path(baselines.__file__).parent
    own = {"lru": "lru.py", "lfu": "lfu.py", "static": "static.py"}
    for path in sorted(source.glob("*.py")):
        found = set(re.findall(r"\b(?:lru|lfu|static)\b", path.read_text("utf-8")))
        assert all(own[name] == path.name for name in found), f"{path} names {', '.join(sorted(found))}"


def test_every_policy_says_all_that_tables_and_plots_need() -> None:
    assert len({policy.colour for policy in BUILT_IN}) == len(BUILT_IN)
    for policy in all_policies():
        assert re.fullmatch("#[0-9a-f]{6}", policy.colour)
        assert policy.meaning
        assert (policy.foresight_steps == 0 and not policy.keeps_nothing) == (policy.rule is not None)


@pytest.mark.parametrize("name", [policy.name for policy in BUILT_IN if not (policy.alone or policy.together)])
def test_a_record_that_only_compares_is_neither_kept_nor_run(name: str) -> None:
    """By its type: also where it happens to push, refresh and sum nothing."""
    trace = skewed_trace(seed=1, num_rows=50, num_steps=4, num_samples=8, num_lookups=3)
    header = replace(header_for(name, trace, capacity_rows=50, num_rows=50), num_workers=2)
    records = list(plan(find(name).planner_to_compare(header, lambda num_steps: trace[:num_steps]), trace))
    if name == "owner":
        assert not any(isinstance(record, ComparedRecord) for record in records), "as those that are trained"
        return
    assert all(isinstance(record, ComparedRecord) for record in records)
    bare = ComparedRecord(**{field: getattr(records[0], field) for field in Record.__slots__})
    with pytest.raises(PlanError, match=r"step 0, worker 0: .* cannot be kept; such plans are made to be compared"):
        batch_of(bare)


def test_a_run_refuses_a_record_that_only_compares() -> None:
    samples = [[0, 1], [2, 3]]
    header = replace(header_for("het", [accesses_of(samples)], capacity_rows=8, num_rows=8), num_workers=1)
    records = plan(find("het").planner_to_compare(header, lambda num_steps: []), [accesses_of(samples)])
    with pytest.raises(PlanError, match=r"step 0, worker 0: .* cannot be run; such plans are made to be compared"):
        list(replayed(TraceStream([samples], 8), records, 0, Pooling.of([False, False])))


def test_options_are_written_as_plans_have_always_had_them() -> None:
    options = PlannerOptions(window_bytes=7, remember_versions=True, placement="herald", placement_positions=(1, 12))
    written = {
        "window_steps": None, "window_bytes": 7, "remember_versions": 1, "placement": "herald",
        "placement_positions": "1,12", "planned_from": None,
    }  # fmt: skip
    assert options.to_dict() == written
    assert PlannerOptions.from_dict(written) == options
    assert PlannerOptions.from_dict({"remember_versions": 1}) == PlannerOptions(remember_versions=True)
    more = PlannerOptions(read_ahead_steps=3, staleness=2, window_first_bytes=5)
    assert PlannerOptions.from_dict(more.to_dict()) == more
    header = header_for("none", [], capacity_rows=1, num_rows=1, placement_positions=(0,))
    assert Header.from_dict(header.to_dict()) == header
    assert list(header.to_dict())[:3] == ["planner", "parameters", "num_workers"]


@pytest.mark.parametrize(
    "wrong",
    [{"placement_positions": "1,,2"}, {"placement_positions": [1]}, {"window_steps": "4"}, {"window_bytes": -1},
     {"placement": 3}, {"window": 4}],
)  # fmt: skip
def test_options_that_nobody_wrote_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="planner option"):
        PlannerOptions.from_dict(wrong)
