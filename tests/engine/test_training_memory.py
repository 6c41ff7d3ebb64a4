"""The memory that is announced before training is enough for what the run then takes, and not absurdly more."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from training_runs import small_run

from foresee.data import ClickLog, synthetic
from foresee.engine.loop import Run
from foresee.engine.memory import Memory, in_words, memory_needed, window_steps
from foresee.engine.parts import make_run, open_tables, plan_header, table_layout, train_stream

SHUFFLE_SAMPLES = 8192


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return synthetic(tmp_path_factory.mktemp("log") / "log", num_samples=60_000, table_scale=0.002)


@pytest.mark.parametrize("planner", ["lookahead", "none"])
def test_what_is_announced_is_enough_and_of_the_right_size(log: ClickLog, tmp_path: Path, planner: str) -> None:
    config = small_run(
        log, tmp_path / "run", model={"dim": 16}, cache={"rows": 20_000, "planner": planner},
        train={"batch_size": 512, "shuffle_samples": SHUFFLE_SAMPLES},
    )  # fmt: skip
    stream = train_stream(config, log)
    with open_tables(config, log) as tables:
        run = make_run(config, log, stream, tables)
        batch = train_stream(config, log).batch(0)
        announced = memory_needed(table_layout(config, log), run.header, batch, SHUFFLE_SAMPLES).total
        tracemalloc.start()
        try:
            _steps(run)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # The slots are torch's memory, which is not traced.
    slots = 20_000 * table_layout(config, log).row_bytes
    assert announced / 4 < peak + slots < announced


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
    assert long.window > 2 * short.window
    assert (long.slots, long.log) == (short.slots, short.log)


def test_in_words() -> None:
    text = in_words(Memory(slots=1_000_000, staging=2_000_000, window=3_000_000, log=4_000_000))
    assert text == (
        "memory needed, at most: 10.0 MB (slots 1.0 MB, staging 2.0 MB, window 3.0 MB, log 4.0 MB) "
        "beside model and torch"
    )
