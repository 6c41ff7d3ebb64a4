"""What has to notice when a rule is broken: each judge runs real code under test and says what it found wrong.

A judge is a function without arguments that returns the first violation in words, or None after it has tried enough.
The long versions are `schedules.py` and `disk.py`; here each stops at the first finding.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import torch
from power_cuts import Enough, Tally, try_scenario

from foresee.engine import pipeline
from foresee.engine.exchange import protocol
from foresee.engine.exchange.schedule import Payload
from foresee.engine.planner_service.server import PlanSession, kept_steps
from foresee.errors import ForeseeError, PlanViolation, StaleReadError
from foresee.io.files import Files
from foresee.plan import make_planner, plan
from foresee.plan.baselines.additive import het
from foresee.plan.baselines.check_additive import check_additive
from foresee.plan.baselines.herald import herald
from foresee.plan.check import check
from foresee.plan.format.columns import record_of
from foresee.plan.record import Fetch, Header, Record, compared_parts
from foresee.store import commits
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore
from foresee.store.layout import Layout, Table
from foresee.testing import simulation
from foresee.testing.fake_disk import small_chunks
from foresee.testing.simulation import SCHEDULES_OF_A_CASE, simulate
from foresee.testing.simulation.case import make_case
from foresee.testing.store_suite import random_rows, read_rows
from foresee.testing.traces import skewed_trace
from het_model import AT_THE_BOUND, pulls_and_pushes
from trace_stream import TraceStream, header_of, records_of

CASES, SCHEDULES = 60, 30
Judge = Callable[[], str | None]


def schedules() -> str | None:
    """The simulation: a few schedules of many cases."""
    simulation._case.cache_clear()
    gc.disable()
    try:
        for turn in range(2):
            for case in range(CASES):
                for number in range(SCHEDULES // 2):
                    seed = case * SCHEDULES_OF_A_CASE + turn * SCHEDULES // 2 + number
                    if found := simulate(seed).violations:
                        return f"schedule {seed}: {found[0]}"
                gc.collect(0)
    finally:
        gc.enable()
        simulation._case.cache_clear()
    return None


def disk() -> str | None:
    """The power goes at every operation of a commit."""
    for seed in range(4):
        tally = Tally(stop_at_first=True, power_cuts=2)
        try:
            try_scenario(seed, tally)
        except Enough:
            return tally.violations[0]
        except (ForeseeError, AssertionError, OSError, ValueError) as error:
            return f"disk scenario {seed}: {type(error).__name__}: {error}"
    return None


def kept_chunks() -> str | None:
    """Rows are written again and again; the last two commits and a prepared one are still what they were."""
    layout = Layout(tables=(Table("a", 60),), width=4, state_width=1, optimizer="x")
    rows, after = np.arange(60), {}
    for step_to_open in (2, 3, 4):
        with TemporaryDirectory() as folder, small_chunks():
            store = DiskStore.create(Path(folder) / "tables", layout)
            try:
                for version in range(1, 25):
                    source = random_rows(np.random.default_rng(version), 60, layout, version)
                    for some in np.array_split(np.random.default_rng(version).permutation(60), 3):
                        part = Rows(source.values[some], source.state[some], source.versions[some])
                        store.write(some, part, (some % 5).astype(np.int32) - 1)
                    if version in (4, 8, 12, 16):
                        store.prepare(version // 4)
                        after[version // 4] = source
                        if version < 16:
                            store.settle(version // 4)
                store.open_at(step_to_open)
                found = read_rows(store, rows)
                if found.values.tobytes() != after[step_to_open].values.tobytes():
                    return f"step {step_to_open} has other rows"
            except (ForeseeError, AssertionError) as error:
                return f"step {step_to_open}: {error}"
            finally:
                store.close()
    return None


def flipped_bits() -> str | None:
    """One bit of one file of a table folder is another: an error, or the right rows."""
    layout = Layout(tables=(Table("a", 60),), width=4, state_width=1, optimizer="x")
    after = {step: random_rows(np.random.default_rng(step), 30, layout, step) for step in (1, 2, 3)}
    with TemporaryDirectory() as place, small_chunks():
        folder, copy = Path(place) / "tables", Path(place) / "copy"
        for fold in (False, True):
            shutil.rmtree(folder, ignore_errors=True)
            store = DiskStore.create(folder, layout)
            for step, source in after.items():
                store.write(np.arange(30), source, (np.arange(30) % 5).astype(np.int32))
                store.commit(step)
                if fold:
                    store.fold()
            shutil.copytree(folder, copy)
            store.close()
            for path in sorted(copy.iterdir()):
                found = _flip_bits(path, layout, after)
                if found is not None:
                    return f"{path.name}, {'folded' if fold else 'in the log'}: {found}"
            shutil.rmtree(copy)
    return None


def _flip_bits(path: Path, layout: Layout, after: dict[int, Rows]) -> str | None:
    content, rng = path.read_bytes(), np.random.default_rng(0)
    used = np.flatnonzero(np.frombuffer(content, np.uint8))  # where it is not empty
    places = rng.permutation(used)[:60]
    if path.name == "log.bin":  # ids are few of its bytes
        inside = used % json.loads((path.parent / "layout.json").read_bytes())["chunk_bytes"]
        places = np.append(places, used[(inside >= 64) & (inside < 128) & (inside % 8 == 0)])
    for at in places.tolist():
        damaged = Path(str(path.parent) + ".damaged")
        shutil.copytree(path.parent, damaged)
        flipped = bytearray(content)
        flipped[at] ^= 1 << int(rng.integers(8))
        (damaged / path.name).write_bytes(flipped)
        try:
            found = _read_both(damaged, layout, after)
        except ForeseeError:
            found = None
        shutil.rmtree(damaged)
        if found is not None:
            return f"byte {at}: {found}"
    return None


def _read_both(folder: Path, layout: Layout, after: dict[int, Rows]) -> str | None:
    store = DiskStore.open(folder)
    try:
        for step in (3, 2):
            store.open_at(step)
            for row in range(36):  # each alone: one that is refused hides what another would be
                right = after[step].values[row].tobytes() if row < 30 else None
                with suppress(ForeseeError):
                    found = read_rows(store, np.array([row]))
                    if found.values.tobytes() != right and (row < 30 or found.versions[0]):
                        return f"step {step} has another row {row}"
    finally:
        store.close()
    return None


def plans() -> str | None:
    """The checker, on random plans of all planners."""
    for seed in range(120):
        case = make_case(seed)
        try:
            records = list(plan(make_planner(case.header, lambda steps, case=case: case.trace[:steps]), case.trace))  # type: ignore[misc]
            check(case.header, case.trace, records, None).require()
        except (PlanViolation, AssertionError, IndexError) as error:
            return f"plan of case {seed}: {error}"
    return None


def additive_plans() -> str | None:
    """The checker of protocols that add at the store, on Herald's plans: an exact one reads nothing stale."""
    trace = skewed_trace(seed=3, num_rows=80, num_steps=20, num_samples=8, num_lookups=3)
    header = Header(
        planner="herald", num_workers=4, capacity_rows=60, num_rows=80, first_step=0,
        num_steps=len(trace), fetch_ahead_steps=1000, stream_digest="test",
    )  # fmt: skip
    verdict = check_additive(header, trace, list(plan(herald(header), trace)), None, exact=True)
    return None if verdict.right and not verdict.stale_reads else f"{verdict.stale_reads} stale reads"


def het_plans() -> str | None:
    """HET's own rule: row by row with room for every row, and a row that is stale by just the bound."""
    trace = skewed_trace(seed=3, num_rows=80, num_steps=20, num_samples=8, num_lookups=3)
    header = Header(
        planner="het", num_workers=4, capacity_rows=80, num_rows=80, first_step=0,
        num_steps=len(trace), fetch_ahead_steps=1000, stream_digest="test",
    )  # fmt: skip
    for bound in (1, 2):
        expected = pulls_and_pushes(trace, 4, bound)
        for record, (_, refreshed, pushed) in zip(plan(het(header, bound), trace), expected, strict=True):
            push, refresh, _ = compared_parts(record)
            if (set(refresh.row.tolist()), set(push.row.tolist())) != (refreshed, pushed):
                return f"step {record.step}, bound {bound}: worker {record.worker} pulls or pushes other rows"
    *_, last = plan(het(replace(header, num_workers=2, capacity_rows=2, num_steps=3), 1), AT_THE_BOUND)
    return "a row stale by the bound is pulled" if len(compared_parts(last)[1]) else None


def sums() -> str | None:
    """Gradients whose sum depends on the order, at every owner."""
    gradients = np.array([[1.0], [1e8], [-1e8]], np.float32)
    layout = Layout(tables=(Table("rows", 1),), width=1, state_width=0, optimizer="sgd")
    arrived = [Payload(it[None], it[None], Rows.empty(0, layout), np.empty(0, np.int64)) for it in gradients]
    for rank in range(3):
        own, places = torch.from_numpy(gradients[[rank]]), [np.zeros(1, np.int64)] * 3
        if (found := protocol.sum_in_worker_order(rank, own, places, arrived).item()) != 0.0:
            return f"owner {rank} adds up to {found}"
    return None


def synced() -> str | None:
    """What the operating system is asked for when a small file is replaced."""
    with TemporaryDirectory() as folder, mock.patch.object(os, "fsync", return_value=None) as asked:
        Files().publish(Path(folder) / "manifest.json", b"{}")
    return None if asked.call_count == 2 else f"it was asked for {asked.call_count} syncs of a file and its folder"


def versions() -> str | None:
    """A store that gives an old row is noticed by the reader itself."""
    layout = Layout(tables=(Table("rows", 4),), width=1, state_width=0, optimizer="sgd")
    staging = Rows.empty(2, layout)
    staging.versions[:] = (3, 2)
    fetch = Fetch(np.array([0, 1]), np.array([0, 1], np.int32), np.array([3, 4], np.int32))
    with suppress(StaleReadError):
        pipeline.check_versions(5, fetch, staging)
        return "a row in an old version was taken"
    return None


def openings() -> str | None:
    """Where a run goes on, by what is left of its manifests and at its parts."""
    cases: list[tuple[list[int], list[set[int]], int | None]] = [
        ([3, 7], [{3}, {3, 7}], 3),
        ([3], [{3, 7}, {3, 7}], 3),
        ([3, 7], [{3, 7}, {7}], 7),
        ([], [{0}, {0, 2}], 0),
        ([4], [{2}], None),
    ]
    for manifests, openable, expected in cases:
        found = commits.step_to_open(manifests, [frozenset(steps) for steps in openable])
        if found != expected:
            return f"with manifests {manifests} and commits {openable}, {found} is opened, not {expected}"
    return None


def planner_session() -> str | None:
    """A planner that has to go back plans the same again, from the run's first step."""
    stream = TraceStream([[[(step * 7 + sample * 3) % 11] for sample in range(2)] for step in range(90)], num_rows=11)
    header = replace(header_of(stream, cache_rows=4, first_step=3), fetch_ahead_steps=0)
    expected = {record.step: record for record in records_of(stream, header)}
    far = 3 + kept_steps(header) + 20
    with PlanSession(stream, header) as session:
        for step in (far, 5):
            batches = session.records(0, step, deadline=time.monotonic() + 60.0)
            if _content(record_of(batches[0], header, step, 0)) != _content(expected[step]):
                return f"the record of step {step}, asked for after step {far}, is another"
    return None


def _content(record: Record) -> tuple[object, ...]:
    fetch, evict = record.fetch, record.evict
    return (
        fetch.row.tolist(), fetch.slot.tolist(), evict.row.tolist(), evict.slot.tolist(), record.unique.tolist(),
        record.not_before,
    )  # fmt: skip
