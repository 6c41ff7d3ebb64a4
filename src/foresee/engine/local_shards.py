"""The folders of several embedding servers as one store, in one process, while no server has them open.

In: a folder with `shard-0`, `shard-1`, … as `foresee serve --folder` made them. Out: the contract of a store. So a run
that was trained with servers can be evaluated, exported and inspected without starting them again.
"""

from __future__ import annotations

from pathlib import Path

from foresee.errors import StoreError
from foresee.store.contract import Int64, Layout, Rows
from foresee.store.remote.shards import scatter, split
from foresee.store.server.shard import Shard, Share, disk_shard


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
    def open(cls, folder: Path, layout: Layout) -> LocalShards:
        """Refuses shards that were committed at different steps: together they are the state of no step."""
        num_shards = len(shard_folders(folder))
        shards: list[Shard] = []
        try:
            for shard in range(num_shards):
                shards.append(disk_shard(shard_folder(folder, shard), layout, Share(shard, num_shards)))
            steps = [shard.committed_step for shard in shards]
            if len(set(steps)) > 1:
                raise StoreError(
                    f"the shards in {folder} have committed different steps ({', '.join(map(str, steps))}): a commit "
                    "was interrupted between them; restore their folders to one step"
                )
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

    def commit(self, step: int) -> None:
        for shard in self._shards:
            shard.commit(step)

    def close(self) -> None:
        for shard in self._shards:
            shard.close()
