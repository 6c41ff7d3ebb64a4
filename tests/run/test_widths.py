"""Runs whose tables have widths of their own: trained, stopped, resumed, verified, exported, checked; their bytes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import everything, small_run, train_quietly

from foresee.data import ClickLog, tiny
from foresee.data.batches import Batches
from foresee.engine.optimizers import Adagrad, RowwiseAdagrad
from foresee.engine.planned_step import planned_records
from foresee.engine.tables import Tables
from foresee.errors import ConfigError, PlanError, StoreError
from foresee.plan.format.file import PlanFile, write_plan
from foresee.run.bags import EmbeddingBagConfig, EmbeddingBags
from foresee.run.build import open_log, open_tables, plan_header, table_layout, train_stream
from foresee.run.checkpoint import open_newest
from foresee.run.config import RunConfig
from foresee.run.evaluation import evaluate, judging, score
from foresee.run.memory import memory_needed
from foresee.run.serving.export import export, trained, trained_model
from foresee.run.serving.exported import load_exported
from foresee.run.steps import steps
from foresee.store.disk import open_table
from foresee.store.layout import read_layout, write_layout
from foresee.store.row_groups import RowGroups, groups_of
from foresee.store.shard_folders import num_shards_in, reshard
from foresee.tools.explain.explain import RunPlan, explain_row, explain_step
from foresee.tools.forecast import proved
from foresee.tools.fsck import check
from foresee.tools.verify import verify

DIMS = {"user": 6, "item": 3, "default": 2}
"""Of a tiny log's four tables; weekday and genre share a width."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "log")


def wide_run(log: ClickLog, run: Path, **sections: Any) -> RunConfig:
    model = {"name": "wide_and_deep", "dim": DIMS, "options": {"deep": [8]}, **sections.pop("model", {})}
    return small_run(log, run, model=model, **sections)


@pytest.fixture(scope="module")
def done(log: ClickLog, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """A run to its end."""
    config = wide_run(log, tmp_path_factory.mktemp("done") / "run", train={"epochs": 2})
    outcome, text = train_quietly(config)
    assert outcome.finished
    assert "rows of 3 widths" in text
    return config


def test_rows_take_their_own_width(log: ClickLog, done: RunConfig) -> None:
    with trained(done, log) as tables:
        # The wide weight is one column more.
        widths = {table.name: tables.values(table.name).shape for table in log.tables}
        assert widths == {t.name: (t.num_rows, DIMS.get(t.name, 2) + 1) for t in log.tables}
        for table in log.tables:
            assert np.array_equal(open_table(done.tables_folder, table.name)["value"].shape, widths[table.name])
    assert sorted(it.name for it in done.tables_folder.iterdir()) == ["width-3", "width-4", "width-7"]
    report = check(done.run)
    assert report.is_whole, report.sentence
    assert len([it for it in report.findings if it.what.endswith("rows.npy")]) == 3


@pytest.mark.parametrize(("optimizer", "planner"), [("rowwise_adagrad", "lookahead"), ("lazy_adam", "lru")])
def test_stopped_resumed_and_planned_before_ends_with_the_same_bytes(
    log: ClickLog, done: RunConfig, tmp_path: Path, optimizer: str, planner: str
) -> None:
    sections: dict[str, Any] = {"tables": {"optimizer": {"name": optimizer}}, "cache": {"planner": planner}}
    whole = wide_run(log, tmp_path / "whole", train={"epochs": 2}, **sections)
    train_quietly(whole)
    parts = wide_run(log, tmp_path / "parts", train={"epochs": 2}, **sections)
    for stop_after in (7, 31):
        train_quietly(parts, resume=stop_after > 7, stop_after=stop_after)
    train_quietly(parts, resume=True)
    assert everything(parts) == everything(whole)
    stream = train_stream(whole, log)
    header = plan_header(whole, log, stream)
    promised = write_plan(tmp_path / "plan.arrow", header, planned_records(stream, header))
    saved = PlanFile.open(tmp_path / "plan.arrow")
    assert saved.header == header
    assert proved(stream, header, saved.records(), promised).right
    kept = wide_run(
        log, tmp_path / "kept", train={"epochs": 2}, tables=sections["tables"],
        cache={"planner": planner, "plan_file": str(tmp_path / "plan.arrow")},
    )  # fmt: skip
    train_quietly(kept)
    assert everything(kept) == everything(whole)


def test_a_run_that_dies_in_a_commit_goes_back_in_all_widths(
    log: ClickLog, done: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = wide_run(log, tmp_path / "run", train={"epochs": 2, "commit_every_steps": 10})

    class Died(BaseException):
        pass

    settle = RowGroups.settle

    def settle_one(self: RowGroups, step: int) -> None:
        if step == 20:
            self.groups[0].settle(step)
            raise Died
        settle(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(RowGroups, "settle", settle_one)
        with pytest.raises(Died):
            train_quietly(config)
    train_quietly(config, resume=True)
    assert everything(config) == everything(done)


def test_verified_evaluated_exported_and_scored(log: ClickLog, done: RunConfig, tmp_path: Path) -> None:
    found = verify(wide_run(log, tmp_path / "never"), num_steps=20)
    assert found.num_differing == 0
    assert found.num_bytes > 0
    description = export(done.run, tmp_path / "out")
    assert {it["name"]: it["width"] for it in description["tables"]} == {
        table.name: DIMS.get(table.name, 2) + 1 for table in log.tables
    }
    with trained(done, log) as tables:
        model = trained_model(done, log, tables)
        metrics = evaluate(model, tables.store, log, split="valid")
        assert metrics.num_samples > 0
    exported = load_exported(tmp_path / "out")
    batch = log.batches(batch_size=8, split="valid", shuffle=False, drop_last=False).batch(0)
    raw = []
    offsets = np.cumsum([0, *(table.num_rows for table in log.tables)])
    assert batch.bag_offsets is not None
    for sample in range(batch.num_samples):
        row: dict[str, Any] = {name: float(batch.dense[sample, i]) for i, name in enumerate(log.dense_names)}
        for place, feature in enumerate(log.features):
            bag = sample * batch.num_features + place
            ids = batch.rows[batch.bag_offsets[bag] : batch.bag_offsets[bag + 1]] - offsets[log.feature_tables[place]]
            row[feature.name] = ids.tolist() if feature.multi_valued else int(ids[0])
        raw.append(row)
    with trained(done, log) as tables, judging(model):
        expected = score(model, tables.store, batch, log.pooling, device=torch.device("cpu"))
    np.testing.assert_array_equal(exported.logits(raw), expected.numpy())


def test_shards_of_several_widths_hold_the_same_bytes(log: ClickLog, tmp_path: Path) -> None:
    config = wide_run(log, tmp_path / "run")
    train_quietly(config)
    before, layout = _rows(config), table_layout(config, log)
    for num_shards in (2, 3, 0):
        reshard(
            config.tables_folder,
            layout,
            num_shards,
            partial(open_newest, folder=config.run / "checkpoints"),
            lambda said: None,
        )
        assert num_shards_in(config.tables_folder) == num_shards
        assert _rows(config) == before
        assert check(config.run).is_whole
    write_layout(tmp_path / "layout.json", layout)
    assert read_layout(tmp_path / "layout.json") == layout


def _rows(config: RunConfig) -> list[bytes]:
    with open_tables(config, open_log(config)) as tables:
        return [tables.values(table.name).tobytes() for table in tables.layout.tables]


def test_what_cannot_be_is_refused_with_a_sentence(log: ClickLog, done: RunConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DLRM's dot products need one width, and features have 2, 3, 6"):
        train_quietly(small_run(log, tmp_path / "dlrm", model={"dim": DIMS, "options": {}}))
    with pytest.raises(ConfigError, match=r"model\.dim: there is no table 'users'"):
        train_quietly(wide_run(log, tmp_path / "users", model={"dim": {"users": 4, "default": 2}}))
    with pytest.raises(ConfigError, match="says nothing of table 'item'"):
        train_quietly(wide_run(log, tmp_path / "item", model={"dim": {"user": 4}}))
    with pytest.raises(PlanError, match="distinct rows of width"):
        train_quietly(wide_run(log, tmp_path / "tight", cache={"rows": 98}))
    with pytest.raises(StoreError, match="have several widths, this run wants one"):
        Tables.on_disk(done.tables_folder, log, dim=4, optimizer=RowwiseAdagrad(lr=0.1))
    outcome, _ = train_quietly(
        small_run(
            log, tmp_path / "projected", model={"dim": DIMS, "options": {"bottom": [8], "top": [8], "project": 4}}
        )
    )
    assert outcome.finished


def test_memory_counts_every_row_at_its_own_width(log: ClickLog, tmp_path: Path) -> None:
    """A slot more of a width costs what a row of that width takes: no padding to the widest."""
    config = wide_run(log, tmp_path / "run", model={"dim": {"user": 64, "item": 8, "default": 2}})
    stream = train_stream(config, log)
    layout, header = table_layout(config, log), plan_header(config, log, stream)
    memory = memory_needed(layout, header, stream.batch(0), 1000)
    rows = sum(g.capacity_rows * (4 * (w + 1 + 1 + 1) + 12) for g, w in zip(header.groups, (64, 8, 2), strict=True))
    assert memory["slots"] == rows
    assert sum(group.capacity_rows for group in header.groups) == header.capacity_rows == 150


def test_own_loops_with_widths_go_on_where_they_were(tmp_path: Path) -> None:
    bags = EmbeddingBags(
        [
            EmbeddingBagConfig(name="user", num_embeddings=40, embedding_dim=8, feature_names=["user"]),
            EmbeddingBagConfig(name="country", num_embeddings=4, embedding_dim=2, feature_names=["country"]),
        ]
    )
    rng = np.random.default_rng(0)
    items = [(rng.integers(0, 40, 6), rng.integers(0, 4, 6), rng.random(6).astype(np.float32)) for _ in range(20)]
    batches = [(None, {"user": user, "country": country}, label) for user, country, label in items]

    def go(folder: Path, stop: int | None) -> dict[str, bytes]:
        with Tables.on_disk(folder, bags, dim=bags.dim, optimizer=Adagrad(lr=0.1)) as tables:
            for step in steps(Batches(bags, batches), tables, cache_rows=20):
                keyed = bags.keyed(step)
                logits = keyed["user"].sum(1) + keyed["country"].sum(1)
                (logits - step.labels).square().mean().backward()
                step.update()
                if step.index + 1 == stop:
                    break
            return {name: value.numpy().tobytes() for name, value in bags.state_dict(tables).items()}

    whole = go(tmp_path / "whole", None)
    go(tmp_path / "parts", 7)
    assert go(tmp_path / "parts", None) == whole
    with Tables.on_disk(tmp_path / "whole", bags, dim=bags.dim, optimizer=Adagrad(lr=0.1)) as tables:
        assert tables.store.committed_step == 20
        groups = groups_of(tables.store)
        assert [group.layout.width for group in groups] == [8, 2]
        groups[0].prepare(25)  # a commit that stopped between the widths: nobody has settled it
    with Tables.on_disk(tmp_path / "whole", bags, dim=bags.dim, optimizer=Adagrad(lr=0.1)) as tables:
        assert tables.store.committed_step == 20
        for group in groups_of(tables.store):
            group.prepare(30)
        groups_of(tables.store)[1].settle(30)  # one has: so all had prepared it, and it stands
    with Tables.on_disk(tmp_path / "whole", bags, dim=bags.dim, optimizer=Adagrad(lr=0.1)) as tables:
        assert {group.committed_step for group in groups_of(tables.store)} == {30}
        assert {name: value.numpy().tobytes() for name, value in bags.state_dict(tables).items()} == whole


def test_bytes_on_disk_are_those_of_the_rows_at_their_own_width(tmp_path: Path) -> None:
    sizes = {"country": (1000, 4), "item": (1000, 64), "user": (8000, 128)}
    bags = EmbeddingBags(
        [
            EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=width, feature_names=[name])
            for name, (rows, width) in sizes.items()
        ]
    )
    with Tables.on_disk(tmp_path / "tables", bags, dim=bags.dim, optimizer=RowwiseAdagrad(lr=0.1)) as tables:
        for name, (rows, width) in sizes.items():
            tables.set_values(name, np.ones((rows, width), np.float32))
        for group in groups_of(tables.store):
            group.fold()
        num_bytes = tables.layout.num_bytes
    assert num_bytes == sum(rows * 4 * (width + 2) for rows, width in sizes.values())
    on_disk = sum(file.stat().st_blocks * 512 for file in (tmp_path / "tables").rglob("*") if file.is_file())
    apparent = sum(file.stat().st_size for file in (tmp_path / "tables").rglob("*.npy"))
    assert apparent / num_bytes <= 1.02
    assert on_disk / num_bytes <= 1.05  # blocks of the file system, of which small files have a few


def test_rows_and_steps_of_several_widths_are_explained(log: ClickLog, done: RunConfig) -> None:
    plan = RunPlan.of(done)
    life = explain_row(plan, "item:3")
    assert life.row == 3 + next(iter(log.tables)).num_rows
    account = explain_step(plan, 5)
    stream = train_stream(done, log)
    assert sum(worker.num_rows for worker in account.workers) == len(np.unique(stream.batch(5).rows))
