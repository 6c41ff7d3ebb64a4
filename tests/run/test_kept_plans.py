"""A saved plan is trusted while it is as its planner left it; any other is proved step by step, or refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_runs import everything, small_run, train_quietly

from foresee.data import ClickLog, tiny
from foresee.engine.planned_step import accesses_of, planned_records
from foresee.errors import PlanError
from foresee.plan.baselines.check_additive import check_additive
from foresee.plan.check import check
from foresee.plan.format.file import TAIL, write_plan
from foresee.plan.format.folder import MANIFEST, open_plan, save_plan
from foresee.plan.record import Header, Record
from foresee.run.build import check_same_plan, open_log, plan_header, records_of, saved_plan, train_stream
from foresee.run.config import RunConfig
from foresee.run.kept_plan import KeptPlan
from foresee.tools.forecast import proved
from foresee.tools.fsck import check as fsck

WIDTHS = {"name": "wide_and_deep", "dim": {"user": 6, "item": 3, "default": 2}, "options": {"deep": [8]}}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "log")


@pytest.fixture(params=["one width", "three widths"])
def config(request: pytest.FixtureRequest, log: ClickLog, tmp_path: Path) -> RunConfig:
    return small_run(log, tmp_path / "run", **({"model": WIDTHS} if request.param == "three widths" else {}))


def planned(config: RunConfig) -> tuple[Header, list[Record]]:
    log = open_log(config)
    stream = train_stream(config, log)
    header = plan_header(config, log, stream)
    return header, list(planned_records(stream, header))


def with_plan(config: RunConfig, plan: Path) -> RunConfig:
    return config.model_copy(update={"cache": config.cache.model_copy(update={"plan_file": plan})})


def swapped(records: list[Record]) -> list[Record]:
    """Two write-backs of one step in the middle, each with the other's row: every bound and checksum stays right."""
    number = next(k for k in range(len(records) // 2, len(records)) if len(set(records[k].evict.version.tolist())) > 1)
    row = records[number].evict.row.copy()
    row[[0, -1]] = row[[-1, 0]]
    return [*records[:number], replace(it := records[number], evict=replace(it.evict, row=row)), *records[number + 1 :]]


def test_a_plan_as_planned_is_trusted_and_one_without_a_digest_is_proved(config: RunConfig, tmp_path: Path) -> None:
    header, records = planned(config)
    save_plan(tmp_path / "new.arrow", header, records, from_planner=True)
    save_plan(tmp_path / "old.arrow", header, records)  # as releases before digests wrote it
    train_quietly(config)
    expected = everything(config)
    for name, words in (("new", "new.arrow is as lookahead planned it"), ("old", "each step is proved before it is")):
        again = with_plan(config, tmp_path / f"{name}.arrow").model_copy(update={"run": tmp_path / name})
        outcome, text = train_quietly(again)
        assert outcome.finished
        assert words in " ".join(text.split())
        assert everything(again) == expected
    states = {name: fsck(tmp_path / f"{name}.arrow").findings[-1].state for name in ("new", "old")}
    assert states == {"new": "whole", "old": "note"}


@pytest.mark.parametrize("digest", ["none", "of the plan before the edit"])
def test_a_wrong_plan_is_not_trained(config: RunConfig, tmp_path: Path, digest: str) -> None:
    header, records = planned(config)
    write_plan(tmp_path / "plan.arrow", header, swapped(records))
    if digest != "none":
        write_plan(tmp_path / "right.arrow", header, records, from_planner=True)
        right, wrong = ((tmp_path / name).read_bytes() for name in ("right.arrow", "plan.arrow"))
        closing = TAIL.unpack(right[-TAIL.size :])[0]
        (tmp_path / "plan.arrow").write_bytes(wrong[:closing] + right[closing:])
        assert open_plan(tmp_path / "plan.arrow").records()
    with pytest.raises(PlanError, match=r"plan\.arrow: the plan is wrong: step \d+, row \d+, slot \d+: evicted, but"):
        train_quietly(with_plan(config, tmp_path / "plan.arrow"))


def test_an_update_that_is_never_written_back_is_found_before_the_last_step(config: RunConfig, tmp_path: Path) -> None:
    header, records = planned(config)
    evict = records[-1].evict
    shorter = replace(evict, **{it.name: getattr(evict, it.name)[:-1] for it in fields(evict)})
    write_plan(tmp_path / "plan.arrow", header, [*records[:-1], replace(records[-1], evict=shorter)])
    stream = train_stream(config, open_log(config))
    proving = KeptPlan.from_saved(open_plan(tmp_path / "plan.arrow")).records(stream)
    assert [next(proving).step for _ in records[:-1]] == list(range(len(records) - 1))
    with pytest.raises(PlanError, match="never reached the store"):
        next(proving)


@pytest.mark.parametrize(
    ("options", "changes", "words"),
    [
        ({"read_only": True}, {}, "was planned with read_only 1, this run has None"),
        ({"staleness": 1}, {}, "was planned with staleness 1, this run has None"),
        ({"partition_rows": 2}, {}, "was planned with partition_rows 2, this run has None"),
        ({"planned_from": 1}, {}, "was planned with planned_from 1, this run has None"),
        ({}, {"planner": "herald"}, "was planned by 'herald', which is no planner that trains"),
        ({}, {"num_rows": 10_000}, "was planned with num_rows 10000, this run has 189"),
        ({}, {"first_step": 3}, r"covers 25 \(from step 3 on\) of the run's 25 steps"),
    ],
)
def test_a_header_that_cannot_be_trained_is_refused_before_anything_is_written(
    log: ClickLog, tmp_path: Path, options: dict[str, Any], changes: dict[str, Any], words: str
) -> None:
    config = small_run(log, tmp_path / "run")
    header, records = planned(config)
    header = replace(header, options=replace(header.options, **options), **changes)
    write_plan(tmp_path / "plan.arrow", header, records, from_planner=True)
    with pytest.raises(PlanError, match=words):
        train_quietly(with_plan(config, tmp_path / "plan.arrow"))
    assert not (tmp_path / "run").exists()


def test_widths_of_another_run_are_refused(log: ClickLog, tmp_path: Path) -> None:
    one, several = small_run(log, tmp_path / "run"), small_run(log, tmp_path / "run", model=WIDTHS)
    for made, used in ((one, several), (several, one)):
        header, records = planned(made)
        write_plan(tmp_path / "plan.arrow", header, records, from_planner=True)
        with pytest.raises(PlanError, match="was planned with groups"):
            train_quietly(with_plan(used, tmp_path / "plan.arrow"))
        assert not (tmp_path / "run").exists()


def test_another_planner_cache_and_window_may_be_in_a_plan(config: RunConfig, tmp_path: Path) -> None:
    other = config.model_copy(update={"cache": config.cache.model_copy(update={"rows": 120, "planner": "lru"})})
    save_plan(tmp_path / "plan.arrow", *planned(other), from_planner=True)
    assert train_quietly(with_plan(config, tmp_path / "plan.arrow"))[0].finished


def test_plans_of_several_workers(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run", distributed={"workers": 2, "servers": 1})
    header, records = planned(config)
    stream = train_stream(config, log)
    save_plan(tmp_path / "plan", header, records, from_planner=True)
    save_plan(tmp_path / "wrong", header, swapped(records))
    save_plan(tmp_path / "old", header, records)

    def given(folder: Path) -> Iterator[Record]:
        saved = saved_plan(with_plan(config, folder), stream)
        assert saved is not None
        check_same_plan(saved, header)
        return records_of(KeptPlan.from_saved(saved), stream, header)

    assert KeptPlan.from_saved(open_plan(tmp_path / "plan")).as_planned
    assert not KeptPlan.from_saved(open_plan(tmp_path / "old")).as_planned
    assert [it.digest for it in given(tmp_path / "plan")] == [it.digest for it in records]
    assert [it.digest for it in given(tmp_path / "old")] == [it.digest for it in records]
    with pytest.raises(PlanError, match=r"wrong: the plan is wrong: step \d+, row \d+, slot \d+: evicted, but"):
        list(given(tmp_path / "wrong"))
    # A file of another plan with the same header and size: its own digest matches, that of the manifest does not.
    shutil.copytree(tmp_path / "plan", tmp_path / "mixed")
    manifest = json.loads((tmp_path / "mixed" / MANIFEST).read_text())
    manifest["workers"][1]["sha256"] = "0" * 64
    (tmp_path / "mixed" / MANIFEST).write_text(json.dumps(manifest))
    assert not KeptPlan.from_saved(open_plan(tmp_path / "mixed")).as_planned


def renumbered(part: Any, slots: np.ndarray[Any, Any]) -> Any:
    """A record, or a part of it, in other slots."""
    changes = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            changes[field.name] = renumbered(value, slots)
        elif field.name in ("slot", "unique", "apply", "drop"):
            changes[field.name] = slots[value]
    return replace(part, **changes)


def test_slots_of_another_row_group_are_found(log: ClickLog, tmp_path: Path) -> None:
    """Two slots of different widths swapped through the whole plan: all else about it stays right."""
    config = small_run(log, tmp_path / "run", model=WIDTHS)
    header, records = planned(config)
    slots = np.arange(header.capacity_rows, dtype=np.int32)
    slots[[0, -1]] = slots[[-1, 0]]
    stream = train_stream(config, log)
    verdict = proved(stream, header, [renumbered(record, slots) for record in records], None)
    assert not verdict.right
    assert all("the row's group has slots" in words for words in verdict.violations)
    assert proved(stream, header, records, None).right


@pytest.mark.parametrize("sample", [-1, -40, 32])
def test_samples_that_the_batch_does_not_have_are_an_error(log: ClickLog, tmp_path: Path, sample: int) -> None:
    config = small_run(log, tmp_path / "run")
    header, records = planned(config)
    samples = records[3].samples.copy()
    samples[0] = sample
    wrong = [*records[:3], replace(records[3], samples=samples), *records[4:]]
    trace = [accesses_of(batch) for batch in train_stream(config, log).batches()]
    words = r"step 3, worker 0: samples holds .*, the batch has samples 0 to 31"
    with pytest.raises(PlanError, match=words):
        check(header, trace, wrong, None)
    with pytest.raises(PlanError, match=words):
        check_additive(header, trace, wrong, None, exact=True)
    short = replace(records[3], fetch=replace(records[3].fetch, slot=records[3].fetch.slot[:-1]))
    with pytest.raises(PlanError, match="step 3, worker 0: its columns of rows and slots have different lengths"):
        check(header, trace, [*records[:3], short, *records[4:]], None)
    with pytest.raises(PlanError, match="step 3: a record is of worker 7, the plan has 1 workers"):
        check(header, trace, [*records[:3], replace(records[3], worker=7), *records[4:]], None)
