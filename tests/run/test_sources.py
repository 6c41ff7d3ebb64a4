"""Tables know what they were trained on: other batches are refused, or trained whole because somebody says so.

Twelve batches, then twelve others with first_step=0, end with the bytes of all twenty-four in one loop; a loop that
stops in the middle of the others goes on there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import foresee
from foresee.data import tiny
from foresee.engine.history import Trained, newest, parse, written_down
from foresee.errors import DataError, StoreError, UsageError
from foresee.store.contract import Rows, Store

STEPS, SAMPLES = 12, 16
BAGS = foresee.EmbeddingBags(
    [foresee.EmbeddingBagConfig(name="film", num_embeddings=90, embedding_dim=4, feature_names=["a", "b"])]
)
Open = Callable[[], foresee.Tables]


def day(seed: int, num: int = STEPS) -> list[NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 90, (SAMPLES, 2)) for _ in range(num)]


@pytest.fixture(params=["memory", "disk"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Tables as the next process finds them; those in memory stay in this one."""
    optimizer = foresee.Adagrad(lr=0.1)
    if request.param == "disk":
        return lambda: foresee.Tables.on_disk(tmp_path / "tables", BAGS, dim=4, optimizer=optimizer)
    tables = foresee.Tables.in_memory(BAGS, dim=4, optimizer=optimizer)
    tables.close = lambda: None  # type: ignore[method-assign]
    return lambda: tables


def train(opened: Open, source: Any, stop_after: int | None = None, *, name: str | None = None, **options: Any) -> int:
    """Steps that were trained."""
    trained = 0
    with opened() as tables:
        for step in foresee.lookahead(foresee.Batches(BAGS, source, name=name), tables, cache_rows=60, **options):
            step.embeddings.square().sum().backward()  # type: ignore[no-untyped-call]
            step.update()
            trained += 1
            if trained == stop_after:
                break
    return trained


def contents(store: Store) -> list[bytes]:
    rows = Rows.empty(store.layout.num_rows, store.layout)
    store.read(np.arange(store.layout.num_rows), rows)
    return [rows.values.tobytes(), rows.state.tobytes(), rows.versions.tobytes()]


def in_one_loop(batches: list[NDArray[np.int64]]) -> list[bytes]:
    tables = foresee.Tables.in_memory(BAGS, dim=4, optimizer=foresee.Adagrad(lr=0.1))
    assert train(lambda: _never_closed(tables), batches) == len(batches)
    return contents(tables.store)


def _never_closed(tables: foresee.Tables) -> foresee.Tables:
    tables.close = lambda: None  # type: ignore[method-assign]
    return tables


@pytest.mark.parametrize("num_others", [5, STEPS, 30])
def test_other_batches_are_refused_with_the_ways_on(opened: Open, num_others: int) -> None:
    assert train(opened, day(0)) == STEPS
    with pytest.raises(DataError, match=r"not the ones that the tables were trained on since step 0.* first_step=0"):
        train(opened, day(1, num_others))
    assert train(opened, day(0)) == 0, "nothing was changed, and these are done"
    assert train(opened, [*day(0), *day(1)]) == STEPS, "more of the same go on"


def test_all_of_another_day_is_trained_when_asked_for(opened: Open) -> None:
    assert train(opened, day(0)) == STEPS
    assert train(opened, iter(day(1)), first_step=0) == STEPS, "also batches that can be read only once"
    with opened() as tables:
        assert tables.store.committed_step == 2 * STEPS
        assert contents(tables.store) == in_one_loop([*day(0), *day(1)])


def test_a_day_that_was_interrupted_goes_on(opened: Open) -> None:
    assert train(opened, day(0)) == STEPS
    assert train(opened, day(1), stop_after=5, first_step=0) == 5
    with pytest.raises(DataError, match="trained on since step 12"):
        train(opened, day(0))
    assert train(opened, day(1)) == STEPS - 5
    assert train(opened, day(2), first_step=3) == STEPS - 3
    with opened() as tables:
        assert contents(tables.store) == in_one_loop([*day(0), *day(1), *day(2)[3:]])


def test_names_tell_batches_apart_that_come_out_differently(opened: Open) -> None:
    assert train(opened, day(0), stop_after=4, name="monday") == 4
    assert train(opened, day(1), name="monday") == STEPS - 4
    with pytest.raises(DataError, match=r"which are named 'monday': they are named 'tuesday'"):
        train(opened, day(0), name="tuesday")
    with pytest.raises(DataError, match=r"which are named 'monday': they are batches without a name"):
        train(opened, day(0))


def test_labels_tell_batches_apart(opened: Open) -> None:
    ones = [(None, ids, np.ones(SAMPLES)) for ids in day(0)]
    assert train(opened, day(0)) == STEPS
    with pytest.raises(DataError, match="batch 0 has other ids or labels"):
        train(opened, ones)


def test_nothing_is_read_twice(opened: Open) -> None:
    read: list[int] = []

    def noted(epoch: int) -> Iterator[NDArray[np.int64]]:
        for number, ids in enumerate(day(0)):
            read.append(number)
            yield ids

    assert train(opened, noted, stop_after=10) == 10
    read.clear()
    assert train(opened, noted) == STEPS - 10
    assert read == list(range(STEPS))


def test_a_first_step_before_the_first_is_refused(opened: Open) -> None:
    with pytest.raises(UsageError, match="first_step=-1 is before the first batch"):
        train(opened, day(0), first_step=-1)


def test_tables_without_a_note_go_on_as_before(tmp_path: Path) -> None:
    def opened() -> foresee.Tables:
        return foresee.Tables.on_disk(tmp_path / "tables", BAGS, dim=4, optimizer=foresee.SGD(lr=0.1))

    assert train(opened, day(0), stop_after=5) == 5
    note = tmp_path / "tables" / "sources.json"
    note.unlink()
    assert train(opened, day(0)) == STEPS - 5
    assert len(json.loads(note.read_text())["sources"][0]["marks"]) == 8, "from now on it is known"
    note.write_text('{"sources": [{"since": 0}]}')
    with pytest.raises(StoreError, match=r"sources\.json .* is damaged"):
        train(opened, day(0))


def test_logs_are_told_by_content_batch_size_and_seed(tmp_path: Path) -> None:
    log, other = tiny(tmp_path / "log"), tiny(tmp_path / "other", seed=1)
    tables = foresee.Tables.in_memory(log, dim=4, optimizer=foresee.SGD(lr=0.1))

    def steps(log: foresee.ClickLog, **options: Any) -> int:
        run = foresee.lookahead(log, tables, **{"batch_size": 32, "cache_rows": 150, **options})
        for step in run:
            step.embeddings.square().sum().backward()  # type: ignore[no-untyped-call]
            step.update()
        return run.counters.num_steps

    assert steps(log) == 25
    for wrong, options in ((other, {}), (log, {"batch_size": 16}), (log, {"seed": 1})):
        with pytest.raises(DataError, match=r"trained on since step 0, which are of a log .* first_step=0"):
            steps(wrong, **options)
    assert steps(log, epochs=2) == 25, "another epoch of the same log"
    assert steps(other, first_step=0) == 25
    assert tables.store.committed_step == 75


def test_what_was_never_committed_counts_for_nothing() -> None:
    first = Trained(since=0, first_batch=0, kind="batches", marks=("a",))
    second = Trained(since=12, first_batch=0, kind="name", marks=("b",))
    third = Trained(since=12, first_batch=0, kind="name", marks=("c",))
    history = written_down(written_down(None, first, 0), second, 12)
    assert newest(parse(history), 12) == first
    assert newest(parse(history), 13) == second
    assert written_down(history, second, 13) is None
    assert parse(written_down(history, third, 12)) == [first, third]


def test_a_loop_that_resumes_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A script that is run again looks like a new run, and its model is untrained."""

    def opened() -> foresee.Tables:
        return foresee.Tables.on_disk(tmp_path / "tables", BAGS, dim=4, optimizer=foresee.Adagrad(lr=0.1))

    assert train(opened, day(0), stop_after=5) == 5
    assert not caplog.messages
    train(opened, day(0))
    assert "opened after step 5, and this loop begins with step 5; load the model" in caplog.text
    caplog.clear()
    assert train(opened, day(0)) == 0
    assert f"opened after step {STEPS}, and this loop has no step left" in caplog.text
    caplog.clear()
    with opened() as tables:
        assert train(lambda: _never_closed(tables), day(1), first_step=0) == STEPS
        assert train(lambda: _never_closed(tables), day(1)) == 0
        tables.store.close()
    assert not caplog.messages, "who gives first_step knows, and a second loop of the same process has its model"
