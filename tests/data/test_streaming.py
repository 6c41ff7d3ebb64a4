"""A log is streamed: memory follows the options and never the length of the log."""

import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.arrays import Int64
from foresee.data import ClickLog, log_folder, tiny
from foresee.data.order import Shares, TimeHistogram, split_at_random, split_by_order, split_by_time
from foresee.data.samples import Ids, Samples, concatenate, fill_empty, offsets_of, select


def peak_bytes(log: ClickLog) -> int:
    """Most memory that streaming an epoch takes, in numpy and in Arrow."""
    pool = pa.default_memory_pool()
    before, most = pool.bytes_allocated(), 0
    tracemalloc.start()
    try:
        for _ in log.batches(batch_size=250, shuffle_samples=512).batches():
            most = max(most, pool.bytes_allocated() - before)
        return most + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_log_ten_times_as_long_takes_no_more_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_folder, "OPEN_FILES_MAX", 1)  # the short log has only one part
    list(tiny(tmp_path / "first").batches(batch_size=250).batches())  # the first epoch also compiles
    short = peak_bytes(tiny(tmp_path / "short", num_samples=2_500))
    long = tiny(tmp_path / "long", num_samples=25_000)
    stored = sum(samples.num_samples * 4 * (1 + long.num_dense + long.num_features) for samples in long.samples())
    assert peak_bytes(long) < min(1.5 * short, stored)


def test_two_threads_can_share_a_stream(tmp_path: Path) -> None:
    stream = tiny(tmp_path / "log", num_samples=3000).batches(batch_size=20, shuffle_samples=64)
    expected = [batch.rows.tolist() for batch in stream.batches()]
    seen: dict[int, list[int]] = {}
    failures: list[int] = []

    def follow(first_step: int) -> None:
        seen[first_step] = []
        for batch in stream.batches(first_step):
            seen[first_step].append(batch.step)
            if batch.rows.tolist() != expected[batch.step]:
                failures.append(batch.step)

    threads = [threading.Thread(target=follow, args=(first,)) for first in (0, 7, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen == {first: list(range(first, len(expected))) for first in (0, 7, 60)}
    assert len(expected) > 60


bag_lists = st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=12)


def bags_of(ids: Ids) -> list[list[int]]:
    assert ids.offsets is not None
    return [ids.values[ids.offsets[i] : ids.offsets[i + 1]].tolist() for i in range(ids.num_samples)]


def samples_of(bags: list[list[int]]) -> Samples:
    values = np.array([value for bag in bags for value in bag], np.int32)
    ids = Ids(values, offsets_of(np.array([len(bag) for bag in bags], np.int64)))
    single = Ids(np.arange(len(bags), dtype=np.int32))
    return Samples(np.zeros(len(bags), np.float32), (), (ids, single))


@given(bag_lists, st.data())
def test_bags_survive_cutting_and_joining(bags: list[list[int]], data: st.DataObject) -> None:
    samples = samples_of(bags)
    cut = data.draw(st.integers(0, len(bags)))
    joined = concatenate([samples.slice(0, cut), samples.slice(cut, len(bags))])
    assert bags_of(joined.ids[0]) == bags
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(bags), max_size=len(bags))))
    chosen = select(samples, mask)
    assert bags_of(chosen.ids[0]) == [bag for bag, keep in zip(bags, mask, strict=True) if keep]
    assert chosen.ids[1].values.tolist() == np.flatnonzero(mask).tolist()
    assert bags_of(fill_empty(samples.ids[0], 7)) == [bag or [7] for bag in bags]


shares_strategy = st.tuples(st.floats(0, 0.4), st.floats(0, 0.4)).map(lambda it: Shares(valid=it[0], test=it[1]))


@given(st.integers(1, 400), shares_strategy, st.integers(1, 50))
def test_splits_do_not_depend_on_chunks(total: int, shares: Shares, chunk: int) -> None:
    starts = range(0, total, chunk)
    for whole, pieces in (
        (split_at_random(0, total, shares, 3), [split_at_random(s, min(chunk, total - s), shares, 3) for s in starts]),
        (
            split_by_order(0, total, total, shares),
            [split_by_order(s, min(chunk, total - s), total, shares) for s in starts],
        ),
    ):
        assert np.array_equal(whole, np.concatenate(pieces))
        assert set(whole.tolist()) <= {0, 1, 2}
    order = split_by_order(0, total, total, shares)
    assert (np.diff(order) >= 0).all()
    assert (order == 2).sum() == round(total * shares.test)
    assert (order == 1).sum() == round(total * shares.valid)


@pytest.mark.parametrize("buckets_max", [64, 1 << 20])
def test_time_bounds_come_close_in_bounded_memory(buckets_max: int) -> None:
    rng = np.random.default_rng(0)
    times = rng.normal(1.7e9, 1e6, 20_000)
    histogram = TimeHistogram(buckets_max)
    for piece in np.array_split(times, 37):
        histogram.add(piece)
        assert len(histogram._starts) <= buckets_max
    codes: Int64 = np.bincount(split_by_time(times, histogram.bounds(Shares(valid=0.2, test=0.1))), minlength=3)
    assert codes / len(times) == pytest.approx([0.7, 0.2, 0.1], abs=0.05 if buckets_max == 64 else 1e-4)
