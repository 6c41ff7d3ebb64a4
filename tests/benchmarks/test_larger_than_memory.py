"""The benchmark's limit is a real one, counted honestly; small runs of it end with equal bytes on both sides."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import larger_than_memory
from sides import memory_limit
from sides.memory_limit import (
    Cgroup,
    Limit,
    OlderCgroup,
    Warden,
    cached_bytes,
    make_cgroup,
    make_older_cgroup,
    resident_bytes,
)
from sides.process import Process

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MEGABYTE = 1_000_000


class Forgetting:
    """A store that counts how often it was told to forget its pages."""

    def __init__(self) -> None:
        self.num_forgotten, self.closed = 0, False

    def forget_pages(self) -> None:
        self.num_forgotten += 1

    def close(self) -> None:
        self.closed = True


def test_the_page_cache_of_a_file_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_bytes(bytes(4 * MEGABYTE))
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        assert cached_bytes(descriptor) >= 4 * MEGABYTE
    finally:
        os.close(descriptor)


def test_the_warden_sees_files_and_memory_and_acts_before_the_limit(tmp_path: Path) -> None:
    file, store = tmp_path / "rows", Forgetting()
    file.write_bytes(bytes(8 * MEGABYTE))
    with Warden([file], store, limit_bytes=resident_bytes() + 8 * MEGABYTE) as warden:
        warden.look()
    assert warden.peak_bytes >= 8 * MEGABYTE + resident_bytes() // 2
    assert warden.forgotten >= 1
    assert store.num_forgotten == warden.forgotten
    assert store.closed
    unlimited = Warden([], Forgetting(), None)
    unlimited.look()
    assert unlimited.forgotten == 0


def test_a_process_under_the_limit_cannot_allocate_more() -> None:
    code = "import numpy; numpy.ones(40_000_000, numpy.uint8); print('small'); numpy.ones(2_000_000_000, numpy.uint8)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
        preexec_fn=Limit(900 * MEGABYTE).enter,
    )  # fmt: skip
    assert done.stdout.split() == ["small"]
    assert "MemoryError" in done.stderr
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != 900 * MEGABYTE, "only the child is limited"


def test_a_cgroup_is_used_only_where_one_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a cgroup v2, as plain ones: which of them are read and written."""
    assert make_cgroup(None, MEGABYTE) is None
    assert make_cgroup(tmp_path, MEGABYTE) is None, "no cgroup at all"
    (tmp_path / "cgroup.subtree_control").write_text("cpu pids\n")
    assert make_cgroup(tmp_path, MEGABYTE) is None, "memory is not counted there"
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids\n")
    made = make_cgroup(tmp_path, MEGABYTE)
    assert isinstance(made, Cgroup)
    assert (made.path / "memory.max").read_text() == str(MEGABYTE)
    (made.path / "memory.peak").write_text("12345\n")
    assert made.peak_bytes() == 12345
    monkeypatch.setattr("sides.memory_limit.end_early", lambda num_bytes: None)
    made.enter()
    assert (made.path / "cgroup.procs").read_text() == str(os.getpid())


def test_a_cgroup_of_the_older_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_older_cgroup(None, MEGABYTE) is None
    assert make_older_cgroup(tmp_path, MEGABYTE) is None, "memory is not counted there"
    (tmp_path / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    made = make_older_cgroup(tmp_path, MEGABYTE)
    assert isinstance(made, OlderCgroup)
    assert (made.path / "memory.limit_in_bytes").read_text() == str(MEGABYTE)
    (made.path / "memory.max_usage_in_bytes").write_text("12345\n")
    assert made.peak_bytes() == 12345
    monkeypatch.setattr("sides.memory_limit.end_early", lambda num_bytes: None)
    made.enter()
    assert (made.path / "cgroup.procs").read_text() == str(os.getpid())


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("written", [(), ("--written",)], ids=["never-written", "all-written"])
def test_a_small_run_of_the_benchmark(written: tuple[str, ...], tmp_path: Path) -> None:
    options = ["--turns", "1", "--steps", "2", "--table-scale", "0.05", "--cache-rows", "20000", "--limit-mb", "1200"]
    options += [*written, "--no-peers", "--epoch-steps", "4"] if written else []
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "larger_than_memory.py"), *options],
        capture_output=True, text=True, timeout=380, check=False,
        env={**os.environ, "FORESEE_BENCH_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["same_bytes"]
    assert 0 < found["peak_bytes"] <= found["limit_bytes"] == 1200 * MEGABYTE
    assert found["tables_over_limit"] == pytest.approx(found["tables_bytes"] / found["limit_bytes"], abs=0.01)
    assert found["ours_over_in_memory"] > 0
    assert ("first_epoch_over_in_memory" in found) == bool(written)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_too_small_ends_the_run_with_an_error(tmp_path: Path) -> None:
    """Half of what the interpreter and torch need: the side cannot start, and nobody reports figures."""
    options = ["--turns", "1", "--steps", "1", "--table-scale", "0.01", "--limit-mb", "120"]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "larger_than_memory.py"), *options],
        capture_output=True, text=True, timeout=110, check=False,
        env={**os.environ, "FORESEE_BENCH_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode != 0
    assert "tables_over_limit" not in done.stdout
    assert "the side --side ours ended" in done.stderr


def test_a_limit_that_cannot_be_held_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without control groups, as for a user who may not make one."""
    monkeypatch.setattr(memory_limit, "make_cgroup", lambda parent, num_bytes: None)
    monkeypatch.setattr(memory_limit, "make_older_cgroup", lambda parent, num_bytes: None)
    monkeypatch.setenv("FORESEE_BENCH_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["larger_than_memory.py", "--written"])
    with pytest.raises(SystemExit, match=r"may not make a control group, .* or give --limit-mb 1100 or more"):
        larger_than_memory.main()
    assert list(tmp_path.iterdir()) == []


def test_a_side_killed_at_its_limit_says_so() -> None:
    code = "import os, signal, sys; sys.stdin.readline(); os.kill(os.getpid(), signal.SIGKILL)"
    with (
        pytest.raises(SystemExit, match=r"ended before it could train: it was killed, .* a larger --limit-mb"),
        Process([sys.executable, "-c", code]) as side,
    ):
        side.ask("train")


def test_kernels_are_compiled_outside_of_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler takes 110 MB on a machine where the kernels never ran: that is no memory of training."""
    begun: list[tuple[str, bool]] = []

    class Asked:
        def __enter__(self) -> Asked:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def ask(self, question: str) -> dict[str, float]:
            return {}

    def side(arguments: argparse.Namespace, name: str, limit: Limit | None) -> Asked:
        begun.append((name, limit is None))
        return Asked()

    def stop(arguments: argparse.Namespace) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(larger_than_memory, "side", side)
    monkeypatch.setattr(larger_than_memory, "make_log", lambda *_, **__: None)
    monkeypatch.setattr(larger_than_memory, "make", stop)
    monkeypatch.setattr(sys, "argv", ["larger_than_memory.py", "--limit-mb", "2000"])
    monkeypatch.setenv("FORESEE_BENCH_DIR", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        larger_than_memory.main()
    assert begun == [("ours", True)]


def test_the_docstring_says_what_is_printed() -> None:
    text = textwrap.dedent(larger_than_memory.__doc__ or "")
    figures = ("tables_over_limit", "ours_over_in_memory", "first_epoch_over_in_memory", "touched_pages_bytes")
    for word in (*figures, "RLIMIT_DATA", "cgroup v2"):
        assert word in text
