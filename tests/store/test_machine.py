"""Memory that may still be taken: the smallest of what machine, control groups and process allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from foresee.errors import ConfigError
from foresee.io.machine import MemoryNeed, available_bytes, used_bytes
from foresee.store.layout import Layout, Table
from foresee.store.server import Limits, Share, memory_shard
from foresee.store.server.status import check_footprint, footprint, in_words


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    (tmp_path / "proc/self/statm").write_text("100 50 1 1 0 1 0\n")
    return tmp_path / "proc"


def test_the_machine_alone(proc: Path, tmp_path: Path) -> None:
    assert available_bytes(proc, tmp_path / "none") == 5000 * 1024
    (proc / "meminfo").write_text("garbage\n")
    assert available_bytes(proc, tmp_path / "none") is None


def test_a_control_group_above_counts(proc: Path, tmp_path: Path) -> None:
    (proc / "self/cgroup").write_text("0::/pods/one\n")
    inside = tmp_path / "groups/pods/one"
    inside.mkdir(parents=True)
    (inside / "memory.max").write_text("max\n")
    (inside.parent / "memory.max").write_text("3000000\n")
    (inside.parent / "memory.current").write_text("2500000\n")
    assert available_bytes(proc, tmp_path / "groups") == 500_000
    (inside.parent / "memory.stat").write_text("anon 1\ninactive_file 100000\n")
    assert available_bytes(proc, tmp_path / "groups") == 600_000


def test_the_older_interface(proc: Path, tmp_path: Path) -> None:
    (proc / "self/cgroup").write_text("5:cpu:/x\n4:memory:/x\n")
    inside = tmp_path / "groups/memory/x"
    inside.mkdir(parents=True)
    (inside / "memory.limit_in_bytes").write_text("1000\n")
    (inside / "memory.usage_in_bytes").write_text("4000\n")
    assert available_bytes(proc, tmp_path / "groups") == 0, "never below nothing"


def test_a_server_adds_up_and_refuses() -> None:
    layout = Layout(tables=(Table("t", 1000),), width=15, state_width=0, optimizer="x")
    shard = memory_shard(layout, Share())
    needed = footprint(shard, limits=Limits(bytes_in_flight_max=1 << 20), in_memory=True)
    assert needed["rows"] == 1000 * 64 + 125
    on_disk = footprint(shard, limits=Limits(), in_memory=False)["rows"]
    assert on_disk == 1000 * 8 + 1000 * (64 + 12) + 2 * 64_000, "where each row is, rows written a moment ago, buffers"
    assert needed["process"] >= used_bytes() // 2
    assert in_words(needed).startswith("memory needed, at most: ")
    check_footprint(needed, available=needed.total)
    small = MemoryNeed(process=10**9, rows=1, requests=10**8, arriving=10**8, connections=1)
    check_footprint(small, available=3 * 10**8)
    with pytest.raises(ConfigError, match=r"and 100\.0 MB are available; lower --bytes-in-flight-max"):
        check_footprint(small, available=10**8)
    with pytest.raises(ConfigError, match="keep the rows on disk"):
        check_footprint(MemoryNeed(process=1, rows=10**9, requests=1, arriving=1, connections=1), available=10**8)
