"""Encoders against their formulas over the whole graph, and nodes classified from embeddings and from features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graph_runs import config_of, kept_bytes, small_graph, train
from torch import Tensor, nn

from foresee.errors import ConfigError
from foresee.graph.config import EvaluationConfig
from foresee.graph.encoders import ENCODERS, GatLayer, GcnLayer, SageLayer
from foresee.graph.folder import GraphFolder
from foresee.graph.neighbors import Neighbours
from foresee.graph.options import GraphOptions
from foresee.graph.sampling import ALL, Sampler
from foresee.graph.synthetic import Synthetic, synthetic_graph
from foresee.graph.trained import open_trained
from foresee.tools.verify import verify_graph


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nodes with features and classes, some without an edge."""
    path = tmp_path_factory.mktemp("nodes") / "graph"
    source = Synthetic(
        num_nodes=200, num_edges=900, communities=4, num_features=6, labels=True, feature_noise=1.0, label_noise=0.0
    )
    synthetic_graph(source, path, GraphOptions(partitions=8, valid_share=0.2, test_share=0.2, train_nodes_first=True))
    return path


def neighbours_of(near: Neighbours, node: int) -> list[int]:
    """Incoming, then outgoing."""
    return [
        int(it)
        for side in (near.incoming, near.outgoing)
        for it in side.ids[side.offsets[node] : side.offsets[node + 1]]
    ]


def sage_by_hand(layer: Any, values: Tensor, near: list[list[int]]) -> Tensor:
    means = [values[it].mean(0) if it else torch.zeros(values.shape[1]) for it in near]
    return layer.own(values) + layer.near(torch.stack(means))  # type: ignore[no-any-return]


def gcn_by_hand(layer: Any, values: Tensor, near: list[list[int]]) -> Tensor:
    means = [values[[node, *it]].mean(0) for node, it in enumerate(near)]
    return layer.linear(torch.stack(means))  # type: ignore[no-any-return]


def gat_by_hand(layer: Any, values: Tensor, near: list[list[int]]) -> Tensor:
    turned = layer.linear(values).view(len(values), layer._heads, -1)
    out = []
    for node, others in enumerate(near):
        around = turned[[node, *others]]
        logits = (around * layer.to_near).sum(-1) + (turned[node] * layer.to_own).sum(-1)
        weights = nn.functional.leaky_relu(logits, 0.2).softmax(0)
        out.append((weights.unsqueeze(-1) * around).sum(0).mean(0))
    return torch.stack(out) + layer.bias  # type: ignore[no-any-return]


BY_HAND = {SageLayer: sage_by_hand, GcnLayer: gcn_by_hand, GatLayer: gat_by_hand}


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_an_encoder_of_all_neighbours_is_that_of_the_whole_graph(graph: Path, name: str, num_layers: int) -> None:
    near = GraphFolder.open(graph).neighbours()
    everybody = [neighbours_of(near, node) for node in range(200)]
    torch.manual_seed(0)
    encoder: Any = ENCODERS[name](6, 5, num_layers)
    values = torch.randn(200, 6)
    targets = np.array([3, 50, 7, 199, 120])
    sample = Sampler(near, [ALL] * num_layers, direction="both").sample(targets, 0)
    wanted = values
    for number, layer in enumerate(encoder.layers):
        wanted = BY_HAND[type(layer)](layer, wanted.relu() if number else wanted, everybody)
    found = encoder(sample, values[torch.from_numpy(sample.nodes)])
    torch.testing.assert_close(found, wanted[torch.from_numpy(targets)], atol=1e-5, rtol=1e-4)
    found.sum().backward()
    assert all(torch.isfinite(weights.grad).all() for weights in encoder.parameters())


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_nodes_without_neighbours_are_themselves(tmp_path: Path, name: str) -> None:
    lonely = small_graph(tmp_path / "g", num_nodes=300, num_edges=20)
    degrees = [len(neighbours_of(lonely.neighbours(), node)) for node in range(lonely.num_nodes)]
    nobody = np.flatnonzero(np.array(degrees) == 0)[:3]
    sample = Sampler(lonely.neighbours(), [4, 4], direction="both").sample(nobody, 0)
    encoder = ENCODERS[name](6, 5, 2)
    assert torch.isfinite(encoder(sample, torch.randn(len(sample.nodes), 6))).all()


def test_dropout_is_for_training_and_widths_are_checked() -> None:
    encoder: Any = ENCODERS["graph_sage"](6, 5, 2, hidden=[7], dropout=0.5)
    assert [layer.own.out_features for layer in encoder.layers] == [7, 5]
    with pytest.raises(ConfigError, match=r"hidden: found .7, 7.; 2 fanouts need 1 widths"):
        ENCODERS["graph_sage"](6, 5, 2, hidden=[7, 7])
    with pytest.raises(ConfigError, match="dropout: found 1"):
        ENCODERS["gcn"](6, 5, 1, dropout=1.0)


SAGE = {"dim": 6, "encoder": "graph_sage", "fanouts": [3, 2]}


@pytest.mark.parametrize("store", ["memory", "disk", "grpc://127.0.0.1:1,grpc://127.0.0.1:2"])
@pytest.mark.parametrize("unit", ["rows", "partitions"])
@pytest.mark.parametrize(("buffer", "neighbours"), [(2, "graph"), (4, "buffer"), (8, "graph")])
def test_links_with_an_encoder_out_of_core_are_memory_to_the_byte(
    graph: Path, tmp_path: Path, store: str, unit: str, buffer: int, neighbours: str
) -> None:
    """With neighbours of the whole graph a step touches nodes that are not in the buffer: those come by rows."""
    config = config_of(
        graph, tmp_path, model={**SAGE, "neighbours": neighbours}, tables={"store": store},
        cache={"unit": unit, **({"rows": 190} if neighbours == "graph" and unit == "rows" else {})},
        order={"name": "ring", "buffer": buffer}, train={"batch_size": 16}, negatives={"num_chunks": 1, "num_nodes": 6},
    )  # fmt: skip
    if neighbours == "graph" and unit == "partitions":
        config = config.model_copy(update={"cache": config.cache.model_copy(update={"rows": 200})})
    verdict = verify_graph(config, tmp_path / "tables", num_steps=12)
    assert verdict.num_differing == 0, verdict.in_words()


@pytest.mark.parametrize("order", [{}, {"name": "dispersed", "buffer": 4}, {"name": "sequential", "buffer": 6}])
@pytest.mark.parametrize("inputs", ["embeddings", "features"])
def test_nodes_out_of_core_are_memory_to_the_byte(
    graph: Path, tmp_path: Path, inputs: str, order: dict[str, Any]
) -> None:
    model = {**SAGE, "task": "nodes", "inputs": inputs, "neighbours": "buffer" if order else "graph"}
    cache = {} if order else {"rows": 180}
    config = config_of(graph, tmp_path, model=model, order=order, cache=cache, train={"batch_size": 16})
    verdict = verify_graph(config, tmp_path / "tables", num_steps=12)
    assert verdict.num_differing == 0, verdict.in_words()
    assert (verdict.counters.num_evicted == 0) == (inputs == "features")


@pytest.mark.parametrize("name", sorted(ENCODERS))
def test_classes_are_learned_from_features(graph: Path, tmp_path: Path, name: str) -> None:
    config = config_of(
        graph, tmp_path / "run", model={"task": "nodes", "encoder": name, "inputs": "features", "fanouts": [10]},
        train={"batch_size": 32, "epochs": 20, "optimizer": {"lr": 0.05}},
    )  # fmt: skip
    outcome = train(config)
    assert outcome.valid.accuracy > 0.8
    assert outcome.valid.num_nodes > 20


def test_a_run_over_features_is_resumed(graph: Path, tmp_path: Path) -> None:
    model = {"task": "nodes", "encoder": "graph_sage", "inputs": "features", "encoder_options": {"dropout": 0.2}}
    whole, stopped = (config_of(graph, tmp_path / name, model=model) for name in ("whole", "stopped"))
    train(whole)
    train(stopped, stop_after=3)
    assert train(stopped, resume=True).finished
    assert kept_bytes(stopped) == kept_bytes(whole)


def test_the_best_of_a_run_over_features_is_another_step_than_its_last(graph: Path, tmp_path: Path) -> None:
    config = config_of(
        graph, tmp_path / "run", model={"task": "nodes", "encoder": "graph_sage", "inputs": "features", "fanouts": [2]},
        train={"batch_size": 32, "epochs": 6, "evaluate_every_steps": 1, "optimizer": {"lr": 0.05},
               "best": {"metric": "accuracy", "mode": "min"}},
    )  # fmt: skip
    outcome = train(config)
    with open_trained(config.run) as some, open_trained(config.run) as all_of_them:
        all_of_them.config = config.model_copy(update={"evaluation": EvaluationConfig(fanouts=[0])})
        assert (some.vectors.of(np.arange(200)) != all_of_them.vectors.of(np.arange(200))).any()
    with open_trained(config.run, best=True) as best, open_trained(config.run) as last:
        assert best.step == outcome.best.step < last.step == outcome.num_steps
        assert best.evaluate("valid").accuracy < last.evaluate("valid").accuracy == outcome.valid.accuracy


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"encoder": "sage"}, "model.encoder: there is no encoder 'sage'"),
        ({"encoder": "gat", "encoder_options": {"head": 2}}, "model.encoder_options: gat cannot be made with these"),
        ({"encoder": "gcn", "inputs": "features"}, "model.inputs: .* has no features"),
        ({"encoder": "gcn", "task": "nodes"}, "the graph has no nodes for train"),
    ],
)
def test_what_a_graph_does_not_have_is_a_sentence(tmp_path: Path, model: dict[str, Any], sentence: str) -> None:
    small_graph(tmp_path / "plain")
    with pytest.raises(Exception, match=sentence):
        train(config_of(tmp_path / "plain", tmp_path / "run", model=model))
    assert not (tmp_path / "run").exists()


def test_an_encoder_of_ones_own(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "own_encoder.py").write_text(
        "from torch import nn\n"
        "class Mine(nn.Module):\n"
        "    def __init__(self, in_width, out_width, num_layers):\n"
        "        super().__init__()\n"
        "        self.linear = nn.Linear(in_width, out_width)\n"
        "    def forward(self, sample, rows):\n"
        "        return self.linear(rows[-sample.node_offsets[-1] + sample.node_offsets[-2]:])\n"
    )
    model = {"dim": 6, "encoder": "own_encoder:Mine", "folder": str(tmp_path)}
    outcome = train(config_of(graph, tmp_path / "run", model=model, train={"epochs": 1}))
    assert np.isfinite(outcome.steps_done)
