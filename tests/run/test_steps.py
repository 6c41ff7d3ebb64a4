"""`foresee.steps` makes steps with any planner, all with the same bytes; `lookahead` and `lap` are its former words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import foresee
from foresee.data import ClickLog, tiny
from foresee.plan import PLANNERS
from foresee.store.contract import Rows


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "tiny", num_samples=160)


def trained(log: ClickLog, planner: str) -> list[bytes]:
    tables = foresee.Tables.in_memory(log, dim=4, optimizer=foresee.SGD(lr=0.1))
    run = foresee.steps(log, tables, batch_size=16, cache_rows=200, planner=planner)
    assert run.header.planner == planner
    for step in run:
        (step.embeddings**2).sum().backward()  # type: ignore[no-untyped-call]
        step.update()
    rows = Rows.empty(log.num_rows, tables.layout)
    tables.store.read(np.arange(log.num_rows), rows)
    return [rows.values.tobytes(), rows.versions.tobytes()]


def test_any_planner_gives_the_same_rows(log: ClickLog) -> None:
    assert {"lookahead", "none"} <= set(PLANNERS)
    assert trained(log, "none") == trained(log, "lookahead")


def test_lookahead_is_the_same_function() -> None:
    assert foresee.lookahead is foresee.steps


def test_the_former_name_of_a_span_still_counts(log: ClickLog, tmp_path: Path) -> None:
    tables = foresee.Tables.in_memory(log, dim=4, optimizer=foresee.SGD(lr=0.1))
    run = foresee.steps(log, tables, batch_size=16, cache_rows=200, record=tmp_path)
    for step in run:
        (step.embeddings**2).sum().backward()  # type: ignore[no-untyped-call]
        with pytest.warns(DeprecationWarning, match="step.lap is now called step.span"):
            step.lap("former words of a step")
        step.update()
        with pytest.warns(DeprecationWarning, match="run.lap is now called run.span"):
            run.lap("former words of a run")
    written = "".join(path.read_text() for path in tmp_path.rglob("*.jsonl"))
    assert "former words of a step" in written
    assert "former words of a run" in written
