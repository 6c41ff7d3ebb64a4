"""The folders of several embedding servers as one store, in one process, while no server has them open.

In: a folder with `shard-0`, `shard-1`, … as `foresee serve --folder` made them. Out: the contract of a store, with
commits in two phases. So a run that was trained with servers can be evaluated, exported and inspected without starting
them again, or go on in one process.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from foresee.store.commits import Part
from foresee.store.contract import Int64, Layout, Rows
from foresee.store.part_store import open_part, prepare_part, settle_part
from foresee.store.remote.shards import scatter, split
from foresee.store.server.shard import Shard, Share, disk_shard, read_shard


def shard_folders(folder: Path) -> list[Path]:
    """Folders of shards, in their order."""
    found = [path for path in folder.glob("shard-*") if path.name.removeprefix("shard-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("shard-")))


def shard_folder(folder: Path, shard: int) -> Path:
    return folder / f"shard-{shard}"


class LocalShards:
    """Row r is on shard r modulo the number of shards, as with servers."""

    def __init__(self, shards: list[Shard]) -> None:
        self._shards = shards

    @classmethod
    def open(cls, folder: Path, layout: Layout, *, for_reading: bool = False) -> LocalShards:
        """All shards as they are; where a commit was interrupted between them, `open_at` brings them to one step."""
        open_shard = read_shard if for_reading else disk_shard
        num_shards = len(shard_folders(folder))
        shards: list[Shard] = []
        try:
            for shard in range(num_shards):
                shards.append(open_shard(shard_folder(folder, shard), layout, Share(shard, num_shards)))
        except BaseException:
            for opened in shards:
                opened.close()
            raise
        return cls(shards)

    @property
    def layout(self) -> Layout:
        return self._shards[0].layout

    @property
    def committed_step(self) -> int:
        return self._shards[0].committed_step

    def read(self, rows: Int64, out: Rows) -> None:
        parts = split(rows, len(self._shards))
        for number, shard in enumerate(self._shards):
            positions = parts.of(number)
            part = Rows.empty(len(positions), self.layout)
            shard.read(rows[positions], part)
            scatter(part, positions, out)

    def write(self, rows: Int64, source: Rows) -> None:
        parts = split(rows, len(self._shards))
        for number, shard in enumerate(self._shards):
            at = parts.of(number)
            shard.write(rows[at], Rows(source.values[at], source.state[at], source.versions[at]))

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(shard.parts[0] for shard in self._shards)

    def commit(self, step: int) -> None:
        self.prepare(step)
        self.settle(step)

    def prepare(self, step: int) -> None:
        for shard in self._shards:
            prepare_part(shard, step)

    def settle(self, step: int) -> None:
        for shard in self._shards:
            settle_part(shard, step)

    def open_at(self, step: int) -> None:
        for shard in self._shards:
            open_part(shard, step)

    def written(self, begin: int, end: int) -> Int64:
        """The rows from `begin` to `end` that somebody has written, ascending; for shards opened for reading."""
        return np.sort(np.concatenate([shard.written(begin, end) for shard in self._shards]))

    def close(self) -> None:
        for shard in self._shards:
            shard.close()
