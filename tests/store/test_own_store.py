"""A store from outside the package passes the suites, trains from a run file, and serves a shard."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from training_runs import everything, small_run, train_quietly

import foresee
from foresee.data.synthetic import tiny
from foresee.errors import ConfigError
from foresee.run.serving.export import export
from foresee.store.contract import Rows, Store
from foresee.store.layout import Layout
from foresee.store.registry import DISK, MEMORY, STORES
from foresee.store.remote import RemoteStore
from foresee.store.server import EmbeddingServer, Share
from foresee.store.server.shard import open_shard
from foresee.testing import TwoPhaseStoreSuite
from foresee.testing.store_suite import SUITE_LAYOUT, assert_same, ids, initial_rows, random_rows, read_rows
from toy_package import VAULT, VaultStore, install, open_vault


@pytest.fixture(autouse=True)
def _only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adds is gone after it."""
    monkeypatch.setattr(STORES, "_known", {kind.name: kind for kind in (DISK, MEMORY)})


class TestVault(TwoPhaseStoreSuite):
    durable = True

    def make_store(self, folder: Path, layout: Layout) -> Store:
        return open_vault(folder, layout)

    def reopen(self, store: Store, folder: Path, layout: Layout) -> Store:
        return open_vault(folder, layout)


@pytest.mark.parametrize("how", ["call", "entry point"])
def test_a_run_file_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Interrupted, resumed and exported, it ends with the bytes of the store on disk."""
    log = tiny(tmp_path / "log", num_samples=1000)
    if how == "call":
        foresee.register_store(VAULT)
    else:
        install(tmp_path, monkeypatch)
    on_disk = small_run(log, tmp_path / "disk")
    train_quietly(on_disk)
    config = small_run(log, tmp_path / "vault", tables={"store": "vault"})
    _, said = train_quietly(config, stop_after=9)
    assert "go on with --resume" in said
    train_quietly(config, resume=True)
    store = open_vault(config.tables_folder, Layout(tables=(), width=0, state_width=0, optimizer=""))
    found = Rows.empty(store.layout.num_rows, store.layout)
    store.read(np.arange(store.layout.num_rows), found)
    assert {name: getattr(found, name).tobytes() for name in ("values", "state", "versions")}.items() <= (
        everything(on_disk).items()
    )
    export(config.run, tmp_path / "exported")
    export(on_disk.run, tmp_path / "expected")
    tables = sorted(file for file in (tmp_path / "expected").iterdir() if file.suffix not in (".json", ".md"))
    assert len(tables) > 3
    for file in tables:
        assert (tmp_path / "exported" / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_shard_of_it_is_served() -> None:
    server = EmbeddingServer(open_shard(VAULT, Path("shard"), SUITE_LAYOUT, Share()))
    store = RemoteStore([server.address])
    source = random_rows(np.random.default_rng(1), 2, SUITE_LAYOUT, 1)
    store.write(ids(3, 900), source)
    store.commit(1)
    assert_same(read_rows(store, ids(3, 900)), source)
    assert_same(read_rows(store, ids(4)), initial_rows(SUITE_LAYOUT, ids(4)))
    store.close()
    assert server.stop(10.0)
    server.shutdown()
    kept = open_vault(Path("shard"), SUITE_LAYOUT)
    assert isinstance(kept, VaultStore)
    assert_same(read_rows(kept, ids(3, 900)), source)


def test_a_store_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    config = small_run(tiny(tmp_path / "log", num_samples=200), tmp_path / "run", tables={"store": "vault"})
    with pytest.raises(ConfigError, match=r"tables\.store: there is no store 'vault'; choose one of disk, memory"):
        train_quietly(config)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match=r"'' is .*; give a foresee.StoreKind"):
        foresee.register_store(open_vault)  # type: ignore[arg-type]
