"""Commits of tables on a real S3 server are never half visible, whatever the network does."""

from __future__ import annotations

from pathlib import Path

from foresee.io.storage import Storage
from foresee.store.disk import DiskStore
from foresee.store.disk.backed_up import CopiedStore
from foresee.store.disk.backup import FolderCopies
from foresee.testing.commit_suites import ALL_ROWS, rows_after, rows_of_step
from foresee.testing.store_suite import SUITE_LAYOUT, assert_same, read_rows
from s3_server import Network, url_of


def test_commits_are_whole_at_every_moment(s3_port: int, network: Network, tmp_path: Path) -> None:
    """Whoever looks while they are copied over a slow, broken network finds commits that can be loaded."""
    direct, seen = Storage.open(url_of(s3_port, "tables")), set[int]()
    store = CopiedStore(tmp_path / "tables", SUITE_LAYOUT, Storage.open(url_of(network.port, "tables")))

    def look() -> None:
        copies = FolderCopies(direct, tmp_path / "looked")
        for step in copies.steps - seen:
            copies.load(step, SUITE_LAYOUT)
            other = DiskStore.open(copies.folder)
            assert_same(read_rows(other, ALL_ROWS), rows_after(step))
            other.close()
            seen.add(step)

    for step in range(1, 5):
        network.bytes_per_second = 300_000.0
        network.cuts_at_bytes = [3_000 * step]
        rows, source = rows_of_step(step)
        store.write(rows, source)
        store.commit(step)
        while not store._uploads.wait(0.01):
            look()
        look()
    assert seen == {1, 2, 3, 4}
    assert network.cut == 4
    store.close()
