"""A loop that ends early commits the state after its last updated step, neither one step less nor one more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from foresee import SGD, ClickLog, Step, Tables, lookahead
from foresee.data import tiny
from foresee.errors import UsageError


@pytest.fixture
def log(tmp_path: Path) -> ClickLog:
    return tiny(tmp_path / "log")


def _tables(log: ClickLog) -> Tables:
    return Tables.in_memory(log, dim=4, optimizer=SGD(lr=0.1))


def _train(step: Step) -> None:
    step.embeddings.square().sum().backward()  # type: ignore[no-untyped-call]
    step.update()


def _bytes(tables: Tables) -> list[NDArray[np.float32]]:
    return [tables.values(table.name) for table in tables.layout.tables]


@pytest.mark.parametrize("stop_after", [1, 5, 11])
def test_a_break_then_a_second_loop_equals_one_loop(log: ClickLog, stop_after: int) -> None:
    whole, halves = _tables(log), _tables(log)
    for step in lookahead(log, whole, batch_size=32, cache_rows=150):
        _train(step)
    for step in lookahead(log, halves, batch_size=32, cache_rows=150):
        _train(step)
        if step.index + 1 == stop_after:
            break
    assert halves.store.committed_step == stop_after
    for step in lookahead(log, halves, batch_size=32, cache_rows=150):
        _train(step)
    assert halves.store.committed_step == whole.store.committed_step == 25
    for ours, theirs in zip(_bytes(halves), _bytes(whole), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_commit_right_after_an_update_contains_it(log: ClickLog) -> None:
    tables = _tables(log)
    run = lookahead(log, tables, batch_size=32, cache_rows=150)
    for step in run:
        _train(step)
        run.commit()
        assert tables.store.committed_step == step.index + 1
    assert tables.store.committed_step > 1


def test_a_break_before_the_update_leaves_the_step_out(log: ClickLog) -> None:
    tables = _tables(log)
    for step in lookahead(log, tables, batch_size=32, cache_rows=150):
        if step.index == 3:
            break
        _train(step)
    assert tables.store.committed_step == 3
    with pytest.raises(UsageError, match="step 3 belongs to a loop that has ended; use its rows"):
        step.embeddings  # noqa: B018 - rows are gathered by whoever asks first


@pytest.mark.parametrize("stop_after", [5, 25])
def test_updates_during_backward_end_with_the_same_bytes(log: ClickLog, stop_after: int) -> None:
    after, during = _tables(log), _tables(log)
    for tables in (after, during):
        weight = torch.ones(4, requires_grad=True)
        for step in lookahead(log, tables, batch_size=32, cache_rows=150):
            if tables is during:
                step.update_during_backward()
            (step.embeddings * weight).square().sum().backward()  # type: ignore[no-untyped-call]
            step.update()
            if step.index + 1 == stop_after:
                break
    assert after.store.committed_step == during.store.committed_step == stop_after
    for ours, theirs in zip(_bytes(during), _bytes(after), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_second_backward_after_the_update_began_is_refused(log: ClickLog) -> None:
    steps = iter(lookahead(log, _tables(log), batch_size=32, cache_rows=150))
    step = next(steps)
    step.update_during_backward()
    step.embeddings.sum().backward()  # type: ignore[no-untyped-call]
    with pytest.raises(UsageError, match=r"step 0: its update began with the first backward\(\)"):
        step.embeddings.sum().backward()  # type: ignore[no-untyped-call]
    steps.close()


def test_an_update_after_the_loop_begins_nothing(log: ClickLog) -> None:
    steps = iter(lookahead(log, _tables(log), batch_size=32, cache_rows=150))
    step = next(steps)
    step.update_during_backward()
    embeddings = step.embeddings
    steps.close()
    with pytest.raises(UsageError, match="step 0 belongs to a loop that has ended"):
        embeddings.sum().backward()  # type: ignore[no-untyped-call]


def test_a_loop_left_between_backward_and_update_commits_no_half_step(log: ClickLog) -> None:
    tables = _tables(log)
    for step in lookahead(log, tables, batch_size=32, cache_rows=150):
        step.update_during_backward()
        step.embeddings.square().sum().backward()  # type: ignore[no-untyped-call]
        if step.index == 3:
            break
        step.update()
    assert step.began
    assert not step.updated
    assert tables.store.committed_step == 0


def test_what_was_left_without_a_commit_is_given_up_by_the_next_loop(log: ClickLog, tmp_path: Path) -> None:
    whole = _tables(log)
    for step in lookahead(log, whole, batch_size=32, cache_rows=150):
        _train(step)
    with Tables.on_disk(tmp_path / "tables", log, dim=4, optimizer=SGD(lr=0.1)) as tables:
        run = lookahead(log, tables, batch_size=32, cache_rows=150)
        run.commit_at_end = False
        for step in run:
            _train(step)
            if step.index == 6:
                break
        before = _bytes(tables)
        for step in lookahead(log, tables, batch_size=32, cache_rows=150):
            _train(step)
        assert [it.tobytes() for it in _bytes(tables)] == [it.tobytes() for it in _bytes(whole)]
        assert [it.tobytes() for it in before] != [it.tobytes() for it in _bytes(whole)]
