"""Runs over graphs: disk as memory to the byte, resumed as never stopped, refusals that leave nothing behind.

Every cell trains the same batches twice, plainly in memory and as configured, and compares every byte of rows, states,
versions and weights.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from graph_runs import config_of, kept_bytes, small_graph, train

import foresee
from foresee.errors import ConfigError, ForeseeError
from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.graph.evaluation import StoredVectors, evaluate_links
from foresee.run.config_file import dump_run, load
from foresee.run.folder import RunFolder
from foresee.tools.verify import verify_graph

STORES = ("memory", "disk", "grpc://127.0.0.1:1,grpc://127.0.0.1:2")
"""Servers: `verify` starts as many of its own."""
UNITS = ("rows", "partitions")
ORDERS = ("ring", "comet", "beta")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "small"
    small_graph(path, partitions=16)
    return path


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("buffer", [2, 4, 8])
@pytest.mark.parametrize("order", ORDERS)
def test_out_of_core_is_memory_to_the_byte(
    graph: Path, tmp_path: Path, store: str, unit: str, buffer: int, order: str
) -> None:
    config = config_of(
        graph, tmp_path, tables={"store": store}, cache={"unit": unit}, order={"name": order, "buffer": buffer}
    )
    verdict = verify_graph(config, tmp_path / "tables", num_steps=30)
    assert verdict.num_differing == 0, verdict.in_words()
    assert verdict.num_bytes > 100 * (2 * 8 + 1) * 4
    assert verdict.counters.num_fetched > 100, "the buffer was larger than the table"


@pytest.mark.parametrize("unit", UNITS)
def test_values_of_two_bytes_are_the_same_from_disk_and_memory(graph: Path, tmp_path: Path, unit: str) -> None:
    config = config_of(
        graph, tmp_path, tables={"dtype": "bfloat16", "optimizer": {"name": "sgd", "lr": 0.1}}, cache={"unit": unit},
        order={"name": "ring", "buffer": 4},
    )  # fmt: skip
    verdict = verify_graph(config, tmp_path / "verified", num_steps=30)
    assert verdict.num_differing == 0, verdict.in_words()
    with build.node_tables(config, build.open_graph(config)) as tables:
        assert tables.layout.row_bytes == 2 * 8 + 4
        vectors = StoredVectors(tables.store).of(np.arange(3))
        assert vectors.dtype == torch.float32
        assert vectors.shape == (3, 8)
        assert torch.equal(vectors, vectors.bfloat16().float())


@pytest.mark.parametrize("store", STORES[:2])
@pytest.mark.parametrize("decoder", ["complex", "transe", "rotate", "dot"])
def test_random_order_in_a_small_cache_is_memory_to_the_byte(
    graph: Path, tmp_path: Path, store: str, decoder: str
) -> None:
    config = config_of(
        graph, tmp_path, tables={"store": store}, cache={"rows": 85}, model={"dim": 8, "decoder": decoder},
        negatives={"num_chunks": 2, "num_nodes": 8, "degree_share": 0.5, "filtered": True, "source": "pool"},
        train={"batch_size": 16},
    )  # fmt: skip
    verdict = verify_graph(config, tmp_path / "tables", num_steps=20)
    assert verdict.num_differing == 0, verdict.in_words()
    assert verdict.counters.num_evicted > 0


def test_a_difference_would_be_seen(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other weights for the second run: nearly everything differs, and the plain run, repeated, does not."""
    config, made = config_of(graph, tmp_path), build.build_model
    seeds = iter([0, 1, 0])

    def other_weights(config: GraphConfig, graph: Any) -> Any:
        model = made(config, graph)
        next(model.parameters()).data += next(seeds)
        return model

    monkeypatch.setattr(build, "build_model", other_weights)
    verdict = verify_graph(config, tmp_path / "tables", num_steps=3)
    assert verdict.num_differing > 100
    assert "bytes differ, the first in values of row 0" in verdict.in_words()
    assert verdict.is_deterministic
    assert "not deterministic" not in verdict.in_words()


def test_a_run_trains_keeps_and_evaluates(graph: Path, tmp_path: Path) -> None:
    config = config_of(
        graph, tmp_path / "run", order={"buffer": 4},
        train={"epochs": 12, "evaluate_every_steps": 150, "best": {"metric": "mrr"}},
    )  # fmt: skip
    outcome = train(config)
    assert outcome.finished
    lines = [json.loads(line) for line in RunFolder(config.run).metrics_file.read_text().splitlines()]
    valid = [line["mrr"] for line in lines if line["kind"] == "valid"]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < losses[0]
    assert valid[-1] == outcome.valid.mrr
    assert outcome.best.value == max(valid)
    folder = build.open_graph(config)
    model = build.build_model(config, folder)
    from foresee.run import checkpoint

    with build.node_tables(config, folder) as tables:
        checkpoint.load_weights(RunFolder(config.run).checkpoints, tables.store.committed_step, model)
        options = config.evaluation.options(both_sides=True, seed=0)
        assert evaluate_links(model, StoredVectors(tables.store), folder, "valid", options) == outcome.valid


@pytest.mark.parametrize("order", [{"buffer": 4}, {}])
def test_a_resumed_run_ends_with_the_same_bytes(graph: Path, tmp_path: Path, order: dict[str, Any]) -> None:
    whole = config_of(graph, tmp_path / "whole", order=order)
    stopped = config_of(graph, tmp_path / "stopped", order=order)
    train(whole)
    outcome = train(stopped, stop_after=7)
    assert (outcome.steps_done, outcome.finished) == (7, False)
    assert train(stopped, resume=True).finished
    assert kept_bytes(stopped) == kept_bytes(whole)


def test_more_epochs_go_on_where_fewer_ended(graph: Path, tmp_path: Path) -> None:
    whole = config_of(graph, tmp_path / "whole", order={"buffer": 4}, train={"epochs": 3})
    train(whole)
    train(config_of(graph, tmp_path / "longer", order={"buffer": 4}, train={"epochs": 1}))
    longer = config_of(graph, tmp_path / "longer", order={"buffer": 4}, train={"epochs": 3})
    train(longer, resume=True)
    assert kept_bytes(longer) == kept_bytes(whole)


def test_a_killed_run_goes_on_to_the_same_bytes(graph: Path, tmp_path: Path) -> None:
    sections: dict[str, Any] = {"order": {"buffer": 4}, "train": {"epochs": 1, "commit_every_steps": 20}}
    whole, killed = (config_of(graph, tmp_path / name, **sections) for name in ("whole", "killed"))
    train(whole)
    run_file = tmp_path / "killed.yaml"
    run_file.write_text(dump_run(killed, tmp_path))
    program = (
        "import os, signal, sys\n"
        "from foresee.graph.config import GraphConfig\n"
        "from foresee.graph.task import train\n"
        "from foresee.run.config_file import load\n"
        "class Kill:\n"
        "    def after(self, done):\n"
        "        if done.steps_done == 33: os.kill(os.getpid(), signal.SIGKILL)\n"
        "train(load(GraphConfig, sys.argv[1]), callbacks=[Kill()])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(foresee.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program, str(run_file)], env=environment, timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL
    outcome = train(killed, resume=True)
    assert outcome.counters.num_steps == outcome.num_steps - 20
    assert kept_bytes(killed) == kept_bytes(whole)


def test_other_values_of_keys_that_count_are_refused(graph: Path, tmp_path: Path) -> None:
    train(config_of(graph, tmp_path / "run"), stop_after=2)
    for sections in ({"order": {"buffer": 4}}, {"negatives": {"num_nodes": 9}}, {"model": {"decoder": "dot"}}):
        with pytest.raises(ConfigError, match=r"was started with .*, and the result depends on it"):
            train(config_of(graph, tmp_path / "run", **sections), resume=True)


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"model": {"decoder": "distmul"}}, "model.decoder: there is no decoder 'distmul'; choose one of complex"),
        ({"model": {"loss": "hinge"}}, "model.loss: there is no loss 'hinge'"),
        ({"model": {"decoder": "complex", "dim": 9}}, "model.dim: complex has complex numbers"),
        ({"order": {"name": "zigzag"}}, "order.name: there is no order 'zigzag'"),
        ({"order": {"name": "dispersed", "buffer": 4}}, "order.name: dispersed is for nodes"),
        ({"order": {"buffer": 4, "memory_bytes": 5}}, "order: give either memory_bytes, or partitions and buffer"),
        ({"order": {"memory_bytes": 5}}, "memory"),
        ({"cache": {"rows": 5, "share": 0.5}}, "cache: give the size of the cache either as rows or as a share"),
        (
            {"cache": {"share": 0.05}},
            r"step 0 touches .* rows, but the cache holds 5; the smallest cache that works for this graph is \d+ rows "
            r"\(a share of 0\.\d+\): raise cache.rows or cache.share",
        ),
        ({"cache": {"planner": "oracle"}}, "cache.planner: there is no planner 'oracle'"),
        ({"model": {"task": "nodes"}}, "model.encoder is missing"),
        ({"model": {"decoder": "transe", "decoder_options": {"norms": 1}}}, "model.decoder_options: transe cannot"),
        ({"train": {"batchsize": 3}}, "train.batchsize: unknown key; did you mean train.batch_size"),
        ({"graph": "nowhere"}, "nowhere: there is no prepared graph"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_leaves_nothing(
    graph: Path, tmp_path: Path, sections: dict[str, Any], sentence: str
) -> None:
    without = {name: section for name, section in sections.items() if name != "graph"}
    with pytest.raises(ForeseeError, match=sentence) as caught:
        train(config_of(Path(sections.get("graph", graph)), tmp_path / "run", **without))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_the_tuner_chooses_for_a_memory(graph: Path, tmp_path: Path) -> None:
    config = config_of(graph, tmp_path / "run", order={"memory_bytes": 1 << 30})
    folder = build.open_graph(config)
    assert build.choose_order(config, folder).order.name == "random"
    assert "in memory" in build.choose_order(config, folder).words


def test_a_run_file_reads_as_it_was_written(graph: Path, tmp_path: Path) -> None:
    config = config_of(graph, tmp_path / "run", order={"buffer": 4})
    (tmp_path / "run.yaml").write_text(dump_run(config, tmp_path))
    assert load(GraphConfig, tmp_path / "run.yaml") == config
    other = load(GraphConfig, tmp_path / "run.yaml", ["train.epochs=7", "model.loss_options.margin=3"])
    assert (other.train.epochs, other.model.loss_options) == (7, {"margin": 3})
    assert "order" in yaml.safe_load((tmp_path / "run.yaml").read_text())
    with pytest.raises(ConfigError, match=r"unknown key; did you mean order.buffer"):
        load(GraphConfig, tmp_path / "run.yaml", ["order.bufer=3"])


def test_a_decoder_of_ones_own(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "own_decoder.py").write_text(
        "from torch import nn\n"
        "class Mine(nn.Module):\n"
        "    def __init__(self, dim, num_relations, *, inverse, scale=1.0):\n"
        "        super().__init__()\n"
        "        self.turn, self.scale = nn.Linear(dim, dim), scale\n"
        "    def query(self, known, relations, *, heads):\n"
        "        return self.turn(known) * self.scale\n"
        "    def compare(self, queries, candidates):\n"
        "        return queries @ candidates.transpose(-1, -2)\n"
        "class Half(nn.Module):\n"
        "    def __init__(self, dim, num_relations, *, inverse): super().__init__()\n"
    )
    model = {"decoder": "own_decoder:Mine", "decoder_options": {"scale": 2.0}, "folder": str(tmp_path)}
    outcome = train(config_of(graph, tmp_path / "run", model=model, train={"epochs": 1}))
    assert np.isfinite(outcome.valid.mrr)
    with pytest.raises(ConfigError, match="own_decoder:Half lacks query, compare"):
        train(config_of(graph, tmp_path / "other", model={"decoder": "own_decoder:Half", "folder": str(tmp_path)}))


@pytest.mark.parametrize(
    ("store", "unit", "order"),
    [("disk", "rows", {"buffer": 4}), ("disk", "partitions", {"buffer": 4}), ("memory", "rows", {})],
)
def test_batches_in_flight_are_those_of_memory_to_the_byte(
    graph: Path, tmp_path: Path, store: str, unit: str, order: dict[str, Any]
) -> None:
    config = config_of(
        graph, tmp_path, tables={"store": store}, cache={"unit": unit}, order=order,
        train={"batch_size": 8, "staleness_bound": 4},
    )  # fmt: skip
    verdict = verify_graph(config, tmp_path / "tables", num_steps=40)
    assert verdict.num_differing == 0, verdict.in_words()


def test_batches_in_flight_are_kept_by_a_commit(graph: Path, tmp_path: Path) -> None:
    """Stopped inside a state, with batches that have read what is no more; and bound 1 is another result."""
    order, train_of = {"buffer": 8}, {"batch_size": 8, "epochs": 1, "staleness_bound": 4}
    whole, stopped = (config_of(graph, tmp_path / it, order=order, train=train_of) for it in ("whole", "stopped"))
    train(whole)
    folder = build.open_graph(stopped)
    stream = build.train_stream(stopped, folder, build.choose_order(stopped, folder))
    inside = next(step for step in range(9, 60) if stream.state_of(step + 2) == stream.state_of(step - 2))
    train(stopped, stop_after=inside)
    kept = RunFolder(stopped.run).checkpoints / f"step-{inside:09d}" / "state.json"
    assert len(json.loads(kept.read_text())["others"]["in_flight"]) in (2, 3)
    train(stopped, resume=True)
    assert kept_bytes(stopped) == kept_bytes(whole)
    synchronous = config_of(graph, tmp_path / "synchronous", order=order, train={**train_of, "staleness_bound": 1})
    train(synchronous)
    assert kept_bytes(synchronous) != kept_bytes(whole)
    with pytest.raises(ConfigError, match=r"train.staleness_bound is 1, but the run"):
        train(config_of(graph, tmp_path / "whole", order=order, train={**train_of, "staleness_bound": 1}), resume=True)
