"""The memory that is announced before training is enough for what the run then takes, and not absurdly more."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training_runs import small_run, train_quietly

from foresee.data import ClickLog, synthetic
from foresee.engine.cache import SlotCache
from foresee.engine.kernels import ONE_THREAD
from foresee.engine.optimizers import SGD
from foresee.engine.run import Run
from foresee.errors import ConfigError
from foresee.io.machine import MemoryNeed
from foresee.run import memory
from foresee.run.build import make_run, open_tables, plan_header, row_optimizer, table_layout, train_stream
from foresee.run.folder import RunFolder, plan_origin
from foresee.run.memory import (
    AT_START,
    check_memory,
    in_words,
    launched_memory,
    memory_needed,
    planner_memory,
    slots_of,
    uses_in_words,
    window_steps,
)
from foresee.store.layout import Layout, Table
from foresee.store.registry import DISK, MEMORY, STORES, StoreKind

SHUFFLE_SAMPLES = 8192


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return synthetic(tmp_path_factory.mktemp("log") / "log", num_samples=60_000, table_scale=0.002)


@pytest.mark.parametrize(("planner", "ahead"), [("lookahead", 0), ("none", 0), ("lookahead", 16_384)])
def test_what_is_announced_is_enough_and_of_the_right_size(
    log: ClickLog, tmp_path: Path, planner: str, ahead: int
) -> None:
    config = small_run(
        log, tmp_path / "run", model={"dim": 16},
        cache={"rows": 20_000, "planner": planner, "uses_ahead_steps": ahead},
        train={"batch_size": 512, "shuffle_samples": SHUFFLE_SAMPLES},
    )  # fmt: skip
    stream = train_stream(config, log)
    with open_tables(config, log) as tables:
        run = make_run(config, log, stream, tables, plan_header(config, log, stream))
        batch = train_stream(config, log).batch(0)
        announced = memory_needed(table_layout(config, log), run.header, batch, SHUFFLE_SAMPLES).total
        tracemalloc.start()
        try:
            _steps(run)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert announced / 4 < peak < announced


def test_commits_stay_within_what_is_announced(log: ClickLog, tmp_path: Path) -> None:
    """Most rows of the cache have changed at each commit; a copy of all of them would exceed the bound."""
    config = small_run(
        log, tmp_path / "run", model={"dim": 512}, cache={"rows": 40_000},
        tables={"store": "disk", "optimizer": {"name": "adagrad"}},
        train={"batch_size": 64, "shuffle_samples": 512},
    )  # fmt: skip
    stream = train_stream(config, log)
    tracemalloc.start()
    try:
        with open_tables(config, log) as tables:
            run = make_run(config, log, stream, tables, plan_header(config, log, stream))
            announced = memory_needed(tables.layout, run.header, stream.batch(0), 512, kind=DISK)
            for step in run:
                step.embeddings.sum().backward()  # type: ignore[no-untyped-call]
                step.update()
                if step.index % 100 == 99:
                    run.commit()
                if step.index == 399:
                    break
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert announced.total / 4 < peak < announced.total


def test_a_commit_copies_no_more_than_is_announced() -> None:
    """All rows of a cache have changed; the bytes of a copy of all of them are several times what is announced."""
    num_rows = 50_000
    optimizer = SGD(lr=0.1)
    layout = Layout(tables=(Table("rows", num_rows),), width=512, state_width=0, optimizer=optimizer.name)
    cache = SlotCache(layout, optimizer, capacity_rows=num_rows, threads=ONE_THREAD)
    cache.table.row[:], cache.table.stored_version[:] = np.arange(num_rows), -1
    cache.copy(np.zeros(1, np.int32))  # compiles
    tracemalloc.start()
    try:
        seen = [rows.copy() for rows, _ in cache.changed()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.array_equal(np.concatenate(seen), np.arange(num_rows))
    assert peak <= memory._commit_bytes(layout, num_rows) + 8 * num_rows < layout.num_bytes / 2


WIDTHS = {"one width": 24, "three widths": {"C1": 4, "C2": 8, "default": 32}}


@pytest.mark.parametrize("dim", WIDTHS.values(), ids=list(WIDTHS))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("store", "kind"), [("memory", MEMORY), ("disk", DISK)])
def test_what_is_announced_from_the_start_is_allocated_to_5_percent(
    log: ClickLog, tmp_path: Path, dim: object, dtype: str, store: str, kind: StoreKind
) -> None:
    """Bytes of arrays that cache and store make before the first step, as tracemalloc counts them."""
    config = small_run(
        log, tmp_path / "run", model={"dim": dim}, cache={"rows": 20_000}, tables={"store": store, "dtype": dtype}
    )
    stream = train_stream(config, log)
    header, layout = plan_header(config, log, stream), table_layout(config, log)
    announced = memory_needed(layout, header, stream.batch(0), SHUFFLE_SAMPLES, kind=kind)
    tracemalloc.start()
    try:
        with open_tables(config, log):
            caches = [
                SlotCache(group, row_optimizer(config.tables.optimizer), capacity_rows=slots, threads=ONE_THREAD)
                for group, slots in slots_of(layout, header)
            ]
            arrays = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/foresee/*")])
        del caches
    finally:
        tracemalloc.stop()
    allocated = sum(found.size for found in arrays.statistics("filename"))
    assert abs(announced.of(*AT_START) / allocated - 1) <= 0.05
    two = launched_memory(
        layout, replace(header, num_workers=2), stream.batch(0), SHUFFLE_SAMPLES, num_servers=1, kind=kind
    )  # fmt: skip
    assert two.of(*AT_START) == announced.of(*AT_START) + announced["slots"] + two["programs"], (
        "a cache for each worker"
    )


@pytest.mark.parametrize(
    ("takes", "asked", "steps"),
    [(True, None, 16_384), (True, 0, None), (True, 9, 9), (False, None, None), (False, 9, 9)],
)
def test_next_uses_are_looked_for_where_the_store_makes_something_of_them(
    log: ClickLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: bool, asked: int | None, steps: int | None
) -> None:
    monkeypatch.setattr(STORES, "_known", {"disk": replace(DISK, takes_next_use=takes)})
    config = small_run(log, tmp_path / "run", cache={"rows": 20_000, "uses_ahead_steps": asked})
    stream = train_stream(config, log)
    header, batch = plan_header(config, log, stream), stream.batch(0)
    assert header.options.uses_ahead_steps == steps
    needed = memory_needed(table_layout(config, log), header, batch, SHUFFLE_SAMPLES)
    assert (needed["next_uses"] > 0) == bool(steps)
    assert ("next_uses" in in_words(needed)) == bool(steps)
    words = uses_in_words(header, batch)
    assert ("temporary files of up to" in words) == bool(steps)
    assert ("inside the window only" in words) == (not steps)


def test_looking_ahead_begins_no_plan_anew(log: ClickLog, tmp_path: Path) -> None:
    """What a plan follows from is written down; how far next uses are looked for is none of it."""
    config = small_run(log, tmp_path / "run", cache={"rows": 20_000}, distributed={"workers": 2})
    header = plan_header(config, log, train_stream(config, log))
    (tmp_path / "run").mkdir()
    assert plan_origin(RunFolder(tmp_path / "run"), header) == 0
    later = replace(header, first_step=7, options=replace(header.options, uses_ahead_steps=99))
    assert plan_origin(RunFolder(tmp_path / "run"), later) == 0


def _steps(run: Run) -> None:
    for step in run:
        step.embeddings.sum().backward()  # type: ignore[no-untyped-call]
        step.update()


def test_the_window_is_what_the_planner_looks_at(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run", cache={"rows": 20_000, "window_steps": 10}, train={"batch_size": 512})
    stream = train_stream(config, log)
    header, batch = plan_header(config, log, stream), stream.batch(0)
    assert window_steps(header, batch) == 11
    layout = table_layout(config, log)
    short = memory_needed(layout, header, batch, SHUFFLE_SAMPLES)
    longer = plan_header(small_run(log, tmp_path, cache={"rows": 20_000, "window_steps": 100}), log, stream)
    long = memory_needed(layout, longer, batch, SHUFFLE_SAMPLES)
    assert long["window"] > 2 * short["window"]
    assert (long["slots"], long["log"]) == (short["slots"], short["log"])


def test_in_words() -> None:
    text = in_words(MemoryNeed(slots=1_000_000, staging=2_000_000, window=3_000_000, log=4_000_000))
    assert text == (
        "memory needed, at most: 10.0 MB (slots 1.0 MB, staging 2.0 MB, window 3.0 MB, log 4.0 MB) "
        "beside model and torch; 1.0 MB of it from the start"
    )


def test_what_the_machine_lacks_is_refused_before_anything_is_made(
    log: ClickLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_run(log, tmp_path / "run", cache={"rows": 20_000}, train={"batch_size": 512})
    monkeypatch.setattr(memory, "available_bytes", lambda: 1_000_000)
    with pytest.raises(ConfigError, match=r"needs up to .* and 1\.0 MB are available; lower train\.shuffle_samples"):
        train_quietly(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("purpose", ["slots", "staging", "window", "log", "rows", "index", "programs"])
def test_the_sentence_names_what_to_lower(purpose: str) -> None:
    sizes = {"slots": 1, "staging": 1, "window": 1, "log": 1, "rows": 1, "index": 1, "programs": 1, purpose: 10**9}
    with pytest.raises(ConfigError, match=f"most of it for {purpose} .*; lower {memory.LOWER[purpose][:8]}"):
        check_memory(MemoryNeed(**sizes), available=10**8)
    check_memory(MemoryNeed(**sizes), available=2 * 10**9)


def test_a_launched_run_counts_all_its_processes(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run", cache={"rows": 20_000}, train={"batch_size": 512})
    stream = train_stream(config, log)
    header, batch, layout = plan_header(config, log, stream), stream.batch(0), table_layout(config, log)
    one = memory_needed(layout, header, batch, SHUFFLE_SAMPLES, kind=MEMORY)
    all_of_them = launched_memory(layout, header, batch, SHUFFLE_SAMPLES, num_servers=2, kind=MEMORY)
    assert all_of_them["programs"] == 4 * memory.PROGRAM_BYTES
    assert all_of_them["rows"] == one["rows"] >= layout.num_rows * layout.row_bytes
    assert all_of_them.total > one.total
    on_disk = launched_memory(layout, header, batch, SHUFFLE_SAMPLES, num_servers=2, kind=DISK)
    assert on_disk["rows"] == 0
    assert on_disk["index"] >= 8 * layout.num_rows, "where each row is"
    planner = planner_memory(layout, header, batch, SHUFFLE_SAMPLES)
    assert (planner["slots"], planner["window"]) == (0, one["window"])
