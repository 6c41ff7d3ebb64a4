"""Tables as a person opens them: layouts, values by name, and failures that must not go unseen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foresee.data import tiny
from foresee.engine.optimizers import RowwiseAdagrad
from foresee.engine.tables import Tables
from foresee.errors import ConfigError, StoreError
from foresee.run.steps import lookahead
from foresee.store.memory import MemoryStore

OPTIMIZER = RowwiseAdagrad(lr=0.1)


def test_memory_and_disk_start_with_the_same_values(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log", seed=1, num_samples=100)
    memory = Tables.in_memory(log, dim=4, optimizer=OPTIMIZER, seed=7)
    with Tables.on_disk(tmp_path / "tables", log, dim=4, optimizer=OPTIMIZER, seed=7) as disk:
        assert log.tables
        for table in log.tables:
            assert np.array_equal(memory.values(table.name), disk.values(table.name))
            assert memory.values(table.name).shape == (table.num_rows, 4)


def test_an_unknown_table_and_a_width_of_zero_are_sentences(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log", seed=1, num_samples=100)
    with pytest.raises(ConfigError, match="there is no table 'nobody'; the tables are"):
        Tables.in_memory(log, dim=4, optimizer=OPTIMIZER).values("nobody")
    with pytest.raises(ConfigError, match="dim is 0"):
        Tables.in_memory(log, dim=0, optimizer=OPTIMIZER)


class FullStore(MemoryStore):
    """A store whose commits fail."""

    def commit(self, step: int) -> None:
        raise StoreError("the disk is full; free some space")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_commit_that_fails_after_break_is_raised_when_the_tables_are_closed(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log", seed=1, num_samples=200)
    layout = Tables.in_memory(log, dim=4, optimizer=OPTIMIZER).layout
    tables = Tables(FullStore(layout), OPTIMIZER)
    for step in lookahead(log, tables, batch_size=20, cache_rows=150):
        step.embeddings.sum().backward()  # type: ignore[no-untyped-call]
        step.update()
        break
    with pytest.raises(StoreError, match="the disk is full"):
        tables.close()
    tables.close()
