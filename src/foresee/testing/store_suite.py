"""The contract of a store as executable tests: subclass `StoreSuite`, say how a store is made, and run pytest.

    class TestMyStore(StoreSuite):
        def make_store(self, folder, layout):
            return MyStore(folder, layout)

A durable store also sets `durable = True` and gives `reopen`, which gets a store that was not closed and must return
one that sees what a new process would see. `store_machine` makes a hypothesis state machine of the same two functions:
any order of reads, writes, retries, late writes, commits, and crashes, against a dictionary. Nothing here looks inside.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from foresee.arrays import Int64
from foresee.errors import StoreError, UsageError
from foresee.store.contract import Rows, Store
from foresee.store.kernels import initial_values
from foresee.store.layout import Layout, Table

MakeStore = Callable[[Path, Layout], Store]
Reopen = Callable[[Store, Path, Layout], Store]

SUITE_LAYOUT = Layout(
    tables=(Table("user", 1000), Table("item", 7)), width=5, state_width=2, optimizer="adagrad", seed=11, init_scale=0.5
)


def ids(*rows: int) -> Int64:
    return np.array(rows, np.int64)


def random_rows(rng: np.random.Generator, num_rows: int, layout: Layout, version: int) -> Rows:
    """Rows as an optimiser might leave them, all of one version."""
    return Rows(
        rng.standard_normal((num_rows, layout.value_words)).astype(np.float32),
        rng.random((num_rows, layout.state_width)).astype(np.float32),
        np.full(num_rows, version, np.int32),
    )


def read_rows(store: Store, rows: Int64) -> Rows:
    """Reads into buffers full of rubbish, so that what a store forgets to fill is seen."""
    out = Rows.empty(len(rows), store.layout)
    out.values.fill(np.nan)
    out.state.fill(np.nan)
    out.versions.fill(-7)
    store.read(rows, out)
    return out


def assert_same(found: Rows, expected: Rows) -> None:
    """Equal to the last bit."""
    assert found.versions.tolist() == expected.versions.tolist()
    assert found.values.tobytes() == expected.values.tobytes()
    assert found.state.tobytes() == expected.state.tobytes()


def initial_rows(layout: Layout, rows: Int64) -> Rows:
    state = np.zeros((len(rows), layout.state_width), np.float32)
    return Rows(initial_values(layout, rows), state, np.zeros(len(rows), np.int32))


class StoreSuite:
    """What every store must do. pytest collects the subclasses that are called Test…"""

    durable = False

    def make_store(self, folder: Path, layout: Layout) -> Store:
        raise NotImplementedError("a store's tests say how it is made: def make_store(self, folder, layout)")

    def reopen(self, store: Store, folder: Path, layout: Layout) -> Store:
        """What a new process sees after this one was killed. Durable stores only."""
        raise NotImplementedError("a durable store's tests say how it is opened: def reopen(self, store, …)")

    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        store = self.make_store(tmp_path / "tables", SUITE_LAYOUT)
        yield store
        store.close()

    def test_fresh_store_has_layout_and_no_steps(self, store: Store) -> None:
        assert store.layout == SUITE_LAYOUT
        assert store.committed_step == 0

    def test_unwritten_rows_have_initial_values(self, store: Store) -> None:
        rows = ids(1006, 0, 999, 1000, 3)
        assert_same(read_rows(store, rows), initial_rows(SUITE_LAYOUT, rows))

    def test_written_rows_are_read_in_the_order_asked(self, store: Store) -> None:
        source = random_rows(np.random.default_rng(1), 3, SUITE_LAYOUT, 4)
        store.write(ids(900, 5, 1006), source)
        found = read_rows(store, ids(5, 6, 1006, 900))
        order = [1, 2, 0]
        assert_same(
            Rows(found.values[[0, 2, 3]], found.state[[0, 2, 3]], found.versions[[0, 2, 3]]),
            Rows(source.values[order], source.state[order], source.versions[order]),
        )
        assert_same(read_rows(store, ids(6)), initial_rows(SUITE_LAYOUT, ids(6)))

    def test_write_does_not_keep_the_buffers(self, store: Store) -> None:
        source = random_rows(np.random.default_rng(2), 2, SUITE_LAYOUT, 1)
        kept = Rows(source.values.copy(), source.state.copy(), source.versions.copy())
        store.write(ids(1, 2), source)
        source.values.fill(9.0)
        source.versions.fill(9)
        assert_same(read_rows(store, ids(1, 2)), kept)

    def test_bits_survive(self, store: Store) -> None:
        """Infinities, signed zero, denormals and not-a-numbers are values like any other."""
        source = random_rows(np.random.default_rng(3), 1, SUITE_LAYOUT, 1)
        source.values[0] = np.array([np.inf, -0.0, 1e-45, np.nan, 3.4e38], np.float32)
        store.write(ids(17), source)
        assert_same(read_rows(store, ids(17)), source)

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_values_of_two_bytes_are_words_like_any_other(self, tmp_path: Path, dtype: str) -> None:
        layout = replace(SUITE_LAYOUT, dtype=dtype)
        store = self.make_store(tmp_path / "halves", layout)
        source = random_rows(np.random.default_rng(5), 2, layout, 3)
        assert source.values.shape == (2, 3)
        store.write(ids(3, 1006), source)
        assert_same(read_rows(store, ids(3, 1006)), source)
        assert_same(read_rows(store, ids(4, 0)), initial_rows(layout, ids(4, 0)))
        store.close()

    def test_equal_version_is_written_again(self, store: Store) -> None:
        rng = np.random.default_rng(4)
        store.write(ids(8), random_rows(rng, 1, SUITE_LAYOUT, 3))
        again = random_rows(rng, 1, SUITE_LAYOUT, 3)
        store.write(ids(8), again)
        assert_same(read_rows(store, ids(8)), again)

    @pytest.mark.parametrize("commit_between", [False, True])
    def test_lower_version_is_refused_row_by_row(self, store: Store, commit_between: bool) -> None:
        rng = np.random.default_rng(5)
        newer = random_rows(rng, 1, SUITE_LAYOUT, 5)
        store.write(ids(1), newer)
        if commit_between:
            store.commit(5)
        late = random_rows(rng, 2, SUITE_LAYOUT, 4)
        store.write(ids(1, 2), late)
        assert_same(read_rows(store, ids(1)), newer)
        assert_same(read_rows(store, ids(2)), Rows(late.values[1:], late.state[1:], late.versions[1:]))

    def test_version_zero_can_be_written(self, store: Store) -> None:
        source = random_rows(np.random.default_rng(6), 1, SUITE_LAYOUT, 0)
        store.write(ids(4), source)
        assert_same(read_rows(store, ids(4)), source)

    def test_negative_version_is_refused(self, store: Store) -> None:
        store.write(ids(4), random_rows(np.random.default_rng(6), 1, SUITE_LAYOUT, -1))
        assert_same(read_rows(store, ids(4)), initial_rows(SUITE_LAYOUT, ids(4)))

    @pytest.mark.parametrize("row", [-1, 1007, 2**40])
    def test_row_outside_is_refused_by_name(self, store: Store, row: int) -> None:
        table = "user" if row < 0 else "item"
        with pytest.raises(StoreError, match=rf"row {row} .*'{table}'"):
            read_rows(store, ids(3, row))
        with pytest.raises(StoreError, match=rf"row {row} .*'{table}'"):
            store.write(ids(3, row), random_rows(np.random.default_rng(7), 2, SUITE_LAYOUT, 1))
        assert_same(read_rows(store, ids(3)), initial_rows(SUITE_LAYOUT, ids(3)))

    def test_no_rows_is_a_request_too(self, store: Store) -> None:
        store.write(ids(), Rows.empty(0, SUITE_LAYOUT))
        assert len(read_rows(store, ids())) == 0

    def test_buffers_of_another_shape_are_refused(self, store: Store) -> None:
        with pytest.raises(UsageError, match="shape"):
            store.read(ids(1, 2), Rows.empty(1, SUITE_LAYOUT))

    def test_all_rows_at_once(self, store: Store) -> None:
        rng = np.random.default_rng(8)
        rows = rng.permutation(SUITE_LAYOUT.num_rows).astype(np.int64)
        source = random_rows(rng, len(rows), SUITE_LAYOUT, 1)
        store.write(rows, source)
        store.commit(1)
        assert_same(read_rows(store, rows), source)

    def test_commit_counts_steps_and_does_not_go_back(self, store: Store) -> None:
        store.commit(3)
        store.commit(3)
        assert store.committed_step == 3
        with pytest.raises(UsageError, match="step 2"):
            store.commit(2)

    def test_closed_store_is_refused(self, store: Store) -> None:
        store.close()
        store.close()
        with pytest.raises(UsageError, match="closed"):
            read_rows(store, ids(1))
        with pytest.raises(UsageError, match="closed"):
            store.write(ids(1), random_rows(np.random.default_rng(9), 1, SUITE_LAYOUT, 1))
        with pytest.raises(UsageError, match="closed"):
            store.commit(1)

    def test_state_of_width_zero(self, tmp_path: Path) -> None:
        layout = Layout(tables=(Table("t", 9),), width=1, state_width=0, optimizer="sgd")
        store = self.make_store(tmp_path / "narrow", layout)
        source = random_rows(np.random.default_rng(10), 2, layout, 1)
        store.write(ids(8, 0), source)
        store.commit(1)
        assert_same(read_rows(store, ids(8, 0)), source)
        assert_same(read_rows(store, ids(7)), initial_rows(layout, ids(7)))
        store.close()

    def test_one_reader_and_one_writer_at_once(self, store: Store) -> None:
        """Even rows are read while odd ones are written and committed: the reader sees only what it should."""
        rng = np.random.default_rng(11)
        even = np.arange(0, SUITE_LAYOUT.num_rows, 2, dtype=np.int64)
        odd = even[:-1] + 1
        settled = random_rows(rng, len(even), SUITE_LAYOUT, 1)
        store.write(even, settled)
        failures: list[BaseException] = []
        stop = threading.Event()

        def keep_reading() -> None:
            try:
                while not stop.is_set():
                    assert_same(read_rows(store, even), settled)
            except BaseException as error:
                failures.append(error)

        reader = threading.Thread(target=keep_reading)
        reader.start()
        last = settled
        try:
            for step in range(1, 30):
                last = random_rows(rng, len(odd), SUITE_LAYOUT, step)
                store.write(odd, last)
                if step % 10 == 0:
                    store.commit(step)
        finally:
            stop.set()
            reader.join()
        assert not failures, failures[0]
        assert_same(read_rows(store, odd), last)

    def test_a_crash_leaves_the_last_commit(self, tmp_path: Path) -> None:
        if not self.durable:
            pytest.skip("this store does not outlive its process")
        rng = np.random.default_rng(12)
        folder = tmp_path / "tables"
        store = self.make_store(folder, SUITE_LAYOUT)
        committed = random_rows(rng, 2, SUITE_LAYOUT, 2)
        store.write(ids(1, 2), committed)
        store.commit(2)
        store.write(ids(2, 3), random_rows(rng, 2, SUITE_LAYOUT, 3))
        store = self.reopen(store, folder, SUITE_LAYOUT)
        assert store.committed_step == 2
        assert_same(read_rows(store, ids(1, 2)), committed)
        assert_same(read_rows(store, ids(3)), initial_rows(SUITE_LAYOUT, ids(3)))
        store.close()


_MACHINE_LAYOUT = Layout(tables=(Table("a", 30), Table("b", 11)), width=3, state_width=1, optimizer="rowwise_adagrad")
_some_rows = st.lists(st.integers(0, _MACHINE_LAYOUT.num_rows - 1), max_size=12, unique=True)


def store_machine(make_store: MakeStore, reopen: Reopen | None = None) -> type[RuleBasedStateMachine]:
    """A hypothesis state machine for a store; with `reopen`, one that also crashes. Run its `.TestCase`."""

    class StoreMachine(RuleBasedStateMachine):
        """A store against a dictionary: row -> (version, values, state)."""

        @initialize()
        def start(self) -> None:
            self.folder = Path(tempfile.mkdtemp(prefix="foresee-store-"))
            self.store = make_store(self.folder / "tables", _MACHINE_LAYOUT)
            self.rows: dict[int, tuple[int, bytes, bytes]] = {}
            self.committed: tuple[int, dict[int, tuple[int, bytes, bytes]]] = (0, {})
            self.last_write: tuple[Int64, Rows] | None = None

        def expected(self, row: int) -> tuple[int, bytes, bytes]:
            initial = initial_rows(_MACHINE_LAYOUT, ids(row))
            return self.rows.get(row, (0, initial.values.tobytes(), initial.state.tobytes()))

        def remember(self, rows: Int64, source: Rows) -> None:
            for k, row in enumerate(rows.tolist()):
                version = int(source.versions[k])
                if version >= self.expected(row)[0]:
                    self.rows[row] = (version, source.values[k].tobytes(), source.state[k].tobytes())

        @rule(rows=_some_rows)
        def read(self, rows: list[int]) -> None:
            found = read_rows(self.store, ids(*rows))
            for k, row in enumerate(rows):
                assert self.expected(row) == (
                    int(found.versions[k]), found.values[k].tobytes(), found.state[k].tobytes()
                ), f"row {row}"  # fmt: skip

        @rule(rows=_some_rows, seed=st.integers(0, 2**32 - 1), low=st.integers(0, 9), spread=st.integers(1, 5))
        def write(self, rows: list[int], seed: int, low: int, spread: int) -> None:
            """Versions go up and down, so many of these rows come too late."""
            rng = np.random.default_rng(seed)
            source = random_rows(rng, len(rows), _MACHINE_LAYOUT, 0)
            source.versions[:] = rng.integers(low, low + spread, len(rows))
            self.store.write(ids(*rows), source)
            self.remember(ids(*rows), source)
            self.last_write = (ids(*rows), source)

        @precondition(lambda self: getattr(self, "last_write", None) is not None)
        @rule()
        def retry(self) -> None:
            """The reply got lost, the write is sent again, perhaps after a newer one or a crash."""
            assert self.last_write is not None
            self.store.write(*self.last_write)
            self.remember(*self.last_write)

        @rule(more_steps=st.integers(0, 3))
        def commit(self, more_steps: int) -> None:
            step = self.committed[0] + more_steps
            self.store.commit(step)
            self.committed = (step, dict(self.rows))
            assert self.store.committed_step == step

        @precondition(lambda self: reopen is not None)
        @rule()
        def crash(self) -> None:
            assert reopen is not None
            self.store = reopen(self.store, self.folder / "tables", _MACHINE_LAYOUT)
            step, rows = self.committed
            self.rows = dict(rows)
            assert self.store.committed_step == step

        def teardown(self) -> None:
            if hasattr(self, "store"):
                self.read(list(range(_MACHINE_LAYOUT.num_rows)))
                self.store.close()
                shutil.rmtree(self.folder)

    return StoreMachine
