"""Decoders and encoders of a person's own: found beside the run file, and equal from run to run with two threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from graph_runs import config_of, content_of, small_graph, train

from foresee.errors import ConfigError
from foresee.graph.config import GraphConfig
from foresee.run.config_file import load
from foresee.tools.verify import verify_graph

NUM_RUNS = 10
DIM = 50
BATCH_SIZE = 1000
"""Torch adds 32,768 values and more with several threads."""

MODULE = """
import itertools

import torch
from torch import nn

CALLS = itertools.count()


class Indexing(nn.Module):
    def __init__(self, dim, num_relations, *, inverse=True):
        super().__init__()
        self.r = nn.Parameter(torch.ones(2, max(1, num_relations), dim))

    def query(self, known, relations, *, heads):
        return known * self.r[int(heads)][relations]

    def compare(self, queries, candidates):
        return torch.matmul(queries, candidates.transpose(-1, -2))


class Counting(Indexing):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        with torch.no_grad():
            self.r += next(CALLS)


class Mean(nn.Module):
    def __init__(self, in_width, out_width, num_layers):
        super().__init__()
        self.linear = nn.Linear(in_width, out_width)

    def forward(self, sample, rows):
        for _ in range(sample.num_hops):
            rows, sample = rows[sample.first :], sample.inner()
        return self.linear(rows)
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "graph"
    small_graph(path, num_nodes=500, num_edges=4000, num_relations=10)
    return path


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module in it, which is neither the current one nor on the search path."""
    (tmp_path / "own_graph_models.py").write_text(MODULE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_graph_models", None)


def own(graph: Path, beside: Path, name: str, **train: Any) -> GraphConfig:
    return config_of(
        graph, beside / "run", model={"dim": DIM, "decoder": f"own_graph_models:{name}", "folder": str(beside)},
        train={"batch_size": BATCH_SIZE, **train}, cache={"share": 0.95},
    )  # fmt: skip


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_decoder_that_indexes_its_weights_is_verified(num_threads: int, graph: Path, beside: Path) -> None:
    config = own(graph, beside, "Indexing", num_threads=num_threads)
    for number in range(NUM_RUNS):
        verdict = verify_graph(config, beside / f"tables-{number}", num_steps=4)
        assert verdict.num_differing == 0, verdict.in_words()


def test_a_decoder_that_differs_by_itself_is_told_from_a_wrong_plan(graph: Path, beside: Path) -> None:
    verdict = verify_graph(own(graph, beside, "Counting"), beside / "tables", num_steps=2)
    assert not verdict.is_deterministic
    assert "two in-memory runs of this model differ: the model's own arithmetic is not" in verdict.in_words()


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"decoder": "own_graph_models:Indexing"}},
        {"model": {"encoder": "own_graph_models:Mean"}},
    ],
)
def test_a_module_beside_the_run_file_is_found(sections: dict[str, Any], graph: Path, beside: Path) -> None:
    (beside / "run.yaml").write_text(yaml.safe_dump(content_of(graph, beside / "run", **sections)))
    assert train(load(GraphConfig, beside / "run.yaml"), stop_after=2).steps_done == 2
    again = load(GraphConfig, beside / "run" / "config.yaml")
    assert again.model.folder is not None
    assert again.model.folder.resolve() == beside.resolve()


def test_a_module_that_is_nowhere_is_named(graph: Path, beside: Path) -> None:
    (beside / "run.yaml").write_text(yaml.safe_dump(content_of(graph, beside / "run", model={"decoder": "nowhere:It"})))
    with pytest.raises(ConfigError, match="module 'nowhere' cannot be imported"):
        train(load(GraphConfig, beside / "run.yaml"))
