"""Ranges are copied once each, by one thread or by many."""

from __future__ import annotations

import threading

import pytest

from foresee.store.disk import chunks
from foresee.store.disk.chunks import ParallelCopy


def copied_ranges(num_rows: int, num_threads: int) -> tuple[list[int], int]:
    """Which rows were copied, sorted, and by how many different threads."""
    rows: list[int] = []
    threads: set[str] = set()

    def copy(begin: int, end: int) -> None:
        rows.extend(range(begin, end))
        threads.add(threading.current_thread().name)

    runner = ParallelCopy(num_threads)
    runner.run(copy, num_rows)
    runner.close()
    return sorted(rows), len(threads)


@pytest.mark.parametrize("num_rows", [0, 1, 63, 64, 65, 1000, 20_011])
@pytest.mark.parametrize("waits_per_look", [0, 1000])
def test_every_row_once(num_rows: int, waits_per_look: int, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter(range(0, 10**9, waits_per_look)) if waits_per_look else None
    monkeypatch.setattr(chunks, "_num_disk_waits", lambda: next(waits) if waits else 0)
    rows, _ = copied_ranges(num_rows, 4)
    assert rows == list(range(num_rows))


def test_warm_requests_stay_on_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_num_disk_waits", lambda: 0)
    assert copied_ranges(20_000, 8)[1] == 1
    waits = iter(range(0, 10**9, 50))
    monkeypatch.setattr(chunks, "_num_disk_waits", lambda: next(waits))
    assert copied_ranges(20_000, 8)[1] > 1


def test_a_failure_in_a_thread_is_raised() -> None:
    def copy(begin: int, end: int) -> None:
        raise OSError(f"rows {begin} to {end}")

    runner = ParallelCopy(4)
    with pytest.raises(OSError, match="rows 0 to"):
        runner.run_threads(copy, 0, 10_000)
    runner.close()
