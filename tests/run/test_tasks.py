"""Several labels in one run: losses and rows as plain PyTorch has them, figures of each task, scores of each task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelled_logs import DEVICES, labelled_log, write_csv
from torch.nn import functional
from training_runs import everything, small_run, train_quietly
from typer.testing import CliRunner

from foresee.data import Categorical, ClickLog, Columns, Csv, PrepareOptions, prepare, tiny
from foresee.errors import ConfigError
from foresee.models import MODELS, LogShape
from foresee.run.build import build_model, table_layout
from foresee.run.config_file import make_run
from foresee.run.evaluation import evaluate
from foresee.run.serving.export import export, trained, trained_model
from foresee.run.serving.exported import load_exported
from foresee.run.session import train
from foresee.run.task_metrics import ClassAccumulator, NumberAccumulator
from foresee.run.tasks import tasks_of
from foresee.store.kernels import initial_values
from foresee.tools.cli.columns import parse_label
from foresee.tools.cli.commands import app

TASKS: list[dict[str, Any]] = [
    {"label": "click"},
    {"name": "stars", "label": "rating", "loss": "huber", "weight": 0.5, "delta": 0.7},
    {"label": "device", "weight": 0.25},
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return labelled_log(tmp_path_factory.mktemp("labels"))


def config_of(log: ClickLog, run: Path, tasks: list[dict[str, Any]] | None = None, **sections: Any) -> Any:
    config = small_run(log, run, **{"cache": {"rows": 90}, **sections})
    return make_run({**config.model_dump(mode="json"), "tasks": TASKS if tasks is None else tasks}, where="test")


def test_rows_and_weights_are_those_of_plain_pytorch(log: ClickLog, tmp_path: Path) -> None:
    """Losses, their weights and those of samples, written out by hand over one table of parameters."""
    sgd = {"tables": {"optimizer": {"name": "sgd", "lr": 0.5}}, "train": {"optimizer": {"name": "sgd", "lr": 0.1}}}
    train_part = {"batch_size": 48, "num_threads": 1, **sgd["train"]}
    config = config_of(log, tmp_path / "run", tables=sgd["tables"], train=train_part)
    outcome, _ = train_quietly(config)
    assert outcome.finished
    model, layout = build_model(config, log), table_layout(config, log)
    rows = torch.nn.Parameter(torch.from_numpy(initial_values(layout, np.arange(log.num_rows))))
    plain = torch.optim.SGD([{"params": model.parameters(), "lr": 0.1}, {"params": [rows], "lr": 0.5}])
    for batch in log.batches(batch_size=48, seed=0).batches():
        embeddings = rows[torch.from_numpy(batch.rows)].view(48, 2, -1)
        out = model(torch.from_numpy(batch.dense), embeddings)
        click, rating, _, device = torch.from_numpy(batch.labels).T
        assert batch.sample_weights is not None
        weights = torch.from_numpy(batch.sample_weights)
        loss = functional.binary_cross_entropy_with_logits(out[:, 0], click, weight=weights)
        loss = loss + 0.5 * (functional.huber_loss(out[:, 1], rating, reduction="none", delta=0.7) * weights).mean()
        loss = loss + 0.25 * (functional.cross_entropy(out[:, 2:], device.long(), reduction="none") * weights).mean()
        plain.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        plain.step()
    with trained(config, log) as tables:
        ours = np.concatenate([tables.values(table.name) for table in log.tables])
        kept = trained_model(config, log, tables).state_dict()
    np.testing.assert_allclose(ours, rows.detach().numpy(), rtol=2e-4, atol=2e-6)
    assert np.abs(ours - initial_values(layout, np.arange(log.num_rows))).max() > 0.001
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(kept[name], weight, rtol=2e-4, atol=2e-6)


def test_no_cache_and_no_stop_changes_a_bit(log: ClickLog, tmp_path: Path) -> None:
    whole = config_of(log, tmp_path / "whole")
    small = config_of(log, tmp_path / "small", cache={"rows": 60, "planner": "lru"})
    train_quietly(whole)
    train_quietly(small, stop_after=7)
    train_quietly(small, resume=True)
    assert everything(small) == everything(whole)


def test_every_task_has_its_figures_and_its_scores(log: ClickLog, tmp_path: Path) -> None:
    best = {"metric": "stars.rmse", "patience": 50}
    often = {"evaluate_every_steps": 10, "epochs": 6, "optimizer": {"name": "adam", "lr": 0.02}}
    config = config_of(log, tmp_path / "run", train={**often, "best": best})
    outcome, said = train_quietly(config)
    valid = outcome.valid.as_dict()
    assert valid["click.auc"] > 0.6
    assert 0 < valid["stars.rmse"] < 1.6
    assert valid["device.accuracy"] > 0.4
    assert "click: AUC" in said
    assert "stars: RMSE" in said
    assert "click AUC" in said
    lines = [json.loads(line) for line in (config.run / "metrics.jsonl").read_text().splitlines()]
    seen = [line["stars.rmse"] for line in lines if line["kind"] == "valid"]
    assert outcome.best.value == pytest.approx(min(seen))
    assert {"click.auc", "stars.rmse", "device.accuracy"} <= {*next(it for it in lines if it["kind"] == "train")}

    export(config.run, tmp_path / "out")
    model = load_exported(tmp_path / "out")
    samples = [{"user": "u3", "film": "f7", "age": 22}, {"user": "never seen", "film": "f1", "age": 30}]
    scores = model.score(samples)
    assert [*scores] == ["click", "stars", "device"]
    outputs = torch.from_numpy(model.logits(samples))
    np.testing.assert_allclose(scores["click"], torch.sigmoid(outputs[:, 0]), rtol=1e-6)
    np.testing.assert_array_equal(scores["stars"], outputs[:, 1])
    np.testing.assert_allclose(scores["device"], torch.softmax(outputs[:, 2:], 1), rtol=1e-6)
    (tmp_path / "new.csv").write_text("user,film,age\nu3,f7,22\nu4,f1,30\n")
    printed = CliRunner().invoke(app, ["score", str(tmp_path / "out"), str(tmp_path / "new.csv")]).stdout.splitlines()
    assert printed[0] == ",".join(["click", "stars", *(f"device:{it}" for it in DEVICES)])
    assert [float(cell) for cell in printed[1].split(",")] == pytest.approx(
        [scores["click"][0], scores["stars"][0], *scores["device"][0]]
    )
    told = CliRunner().invoke(app, ["evaluate", str(config.run)]).stdout
    assert "RMSE" in told
    assert "AUC" in told
    assert "accuracy" in told


def test_one_number_alone_is_a_regression(tmp_path: Path) -> None:
    from foresee.data import Label

    log = labelled_log(tmp_path, (Label(name="rating", kind="number"),), None)
    config = config_of(log, tmp_path / "run", [], train={"epochs": 8, "best": {"metric": "rmse"}})
    outcome, said = train_quietly(config)
    assert outcome.valid.rmse < outcome.valid.mean_label / 2
    assert "RMSE" in said
    with trained(config, log) as tables:
        model = trained_model(config, log, tables)
        errors = evaluate(model, tables.store, log).rmse
    assert errors == pytest.approx(outcome.valid.rmse)


def test_a_label_that_is_known_of_some_samples_only(tmp_path: Path) -> None:
    """An empty cell: its task learns nothing from the sample and is not judged by it; the other tasks are."""
    raw = write_csv(tmp_path / "raw.csv", 400).read_text().splitlines()
    cells = [line.split(",") for line in raw]
    for at, line in enumerate(cells[1:]):
        line[4] = "" if at % 3 else line[4]  # rating
        line[5] = "" if at % 2 else line[5]  # device
    (tmp_path / "raw.csv").write_text("\n".join(map(",".join, cells)) + "\n")
    labels = ("click", "rating:number:optional", f"device:classes={'|'.join(DEVICES)}:optional")
    columns = Columns(
        labels=tuple(map(parse_label, labels)), categorical=(Categorical(name="user"), Categorical(name="film"))
    )
    source = Csv(files=(tmp_path / "raw.csv",), columns=columns)
    log = prepare(source, tmp_path / "log", PrepareOptions(split="random", valid_share=0.2)).log
    assert [it.optional for it in ClickLog.open(tmp_path / "log").labels] == [False, True, True]
    tasks = tasks_of([], log)
    batch = next(iter(log.batches(batch_size=60, seed=0).batches()))
    wanted, out = torch.from_numpy(batch.labels), torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    rated, used = ~wanted[:, 1].isnan(), ~wanted[:, 2].isnan()
    assert 0 < int(rated.sum()) < int(used.sum()) < 60
    expected = functional.binary_cross_entropy_with_logits(out[:, 0], wanted[:, 0])
    expected += functional.mse_loss(out[rated, 1], wanted[rated, 1], reduction="sum") / 60
    expected += functional.cross_entropy(out[used, 2:], wanted[used, 2].long(), reduction="sum") / 60
    assert torch.allclose(tasks.loss(out, wanted, None), expected)
    config = config_of(log, tmp_path / "run", [])
    outcome, _ = train_quietly(config)
    assert outcome.finished
    with trained(config, log) as tables:
        figures = evaluate(trained_model(config, log, tables), tables.store, log, tasks=tasks).as_dict()
    counted = [figures[f"{name}.num_samples"] for name in ("click", "rating", "device")]
    assert counted[0] > counted[2] > counted[1] > 0
    assert figures["rating.rmse"] is not None


def test_what_cannot_be_learned_is_refused(log: ClickLog, tmp_path: Path) -> None:
    wrong = [
        ([{"label": "clck"}], "tasks.0.label: .* has no label 'clck'; choose from click, rating, liked, device"),
        ([{"label": "click"}, {"label": "device", "loss": "mse"}], "tasks.1.loss: mse cannot learn the label 'device'"),
        ([{"label": "click"}, {"name": "click", "label": "liked"}], "tasks.1.name: 'click' is there already"),
        ([{"name": "x"}], "has no label 'x'"),
    ]
    for tasks, sentence in wrong:
        with pytest.raises(ConfigError, match=sentence):
            train(config_of(log, tmp_path / "run", tasks))
    with pytest.raises(ConfigError, match=r"tasks\.1\.lable: unknown key; did you mean tasks\.1\.label\?"):
        config_of(log, tmp_path / "run", [{"label": "click"}, {"lable": "liked"}])
    with pytest.raises(ConfigError, match=r"best.metric: there is no 'auc'; choose one of click.auc"):
        train(config_of(log, tmp_path / "run", train={"best": {"metric": "auc"}}))
    own: dict[str, Any] = {"model": {"name": "test_tasks:OneNumber", "dim": 4, "options": {}}}
    with pytest.raises(ConfigError, match="gives one number a sample, and the tasks need 5"):
        train(config_of(log, tmp_path / "run", **own))
    assert not (tmp_path / "run").exists()


class OneNumber(torch.nn.Module):
    def __init__(self, shape: LogShape, dim: int) -> None:
        super().__init__()


def test_a_log_of_clicks_learns_what_it_did(tmp_path: Path) -> None:
    """One task, called like the only label; a task of another name and weight learns the same but for the weight."""
    clicks = tiny(tmp_path / "log")
    assert tasks_of([], clicks).figures == ["auc", "log_loss", "normalised_entropy"]
    plain, named = small_run(clicks, tmp_path / "plain"), config_of(clicks, tmp_path / "named", [{"name": "bought"}])
    named = make_run({**named.model_dump(mode="json"), "cache": {"rows": 150}}, where="test")
    train_quietly(plain)
    train_quietly(named)
    assert everything(named) == everything(plain)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_as_many_outputs_as_asked(name: str) -> None:
    shape = LogShape(num_dense=2, num_features=3)
    torch.manual_seed(1)
    model: Any = MODELS[name](shape, 4, num_outputs=3)
    dense, rows = torch.randn(5, 2), torch.randn(5, 3, model.row_width(4), requires_grad=True)
    out = model(dense, rows)
    assert out.shape == (5, 3)
    for task in range(3):  # no output is a copy of another, and each moves the rows
        (gradient,) = torch.autograd.grad(out[:, task].sum(), rows, retain_graph=True)
        assert gradient.abs().sum() > 0
    assert (out[:, 0] - out[:, 1]).abs().max() > 1e-4
    with pytest.raises(ValueError, match="num_outputs is 0"):
        MODELS[name](shape, 4, num_outputs=0)


def test_figures_of_numbers_and_classes() -> None:
    rng = np.random.default_rng(0)
    given, wanted = rng.normal(size=500).astype(np.float32), rng.normal(size=500).astype(np.float32)
    numbers = NumberAccumulator()
    for part in np.split(np.arange(500), [0, 130, 131]):
        numbers.add(given[part], wanted[part])
    found = numbers.result()
    assert found.rmse == pytest.approx(np.sqrt(((given - wanted) ** 2).mean()))
    assert found.mae == pytest.approx(np.abs(given - wanted).mean())
    assert found.r2 == pytest.approx(
        1 - ((given - wanted) ** 2).sum() / ((wanted - wanted.mean()) ** 2).sum(), rel=1e-5
    )
    logits, classes = rng.normal(size=(500, 4)).astype(np.float32), rng.integers(0, 4, 500)
    many = ClassAccumulator(4)
    many.add(logits[:200], classes[:200].astype(np.float32))
    many.add(logits[200:], classes[200:].astype(np.float32))
    result = many.result()
    expected = functional.cross_entropy(torch.from_numpy(logits).double(), torch.from_numpy(classes))
    assert result.log_loss == pytest.approx(float(expected))
    assert result.accuracy == pytest.approx((logits.argmax(1) == classes).mean())
    numbers.add(np.array([np.nan], np.float32), np.zeros(1, np.float32))
    assert numbers.result().rmse is None
    assert "not finite" in str(numbers.result().reason)
    assert NumberAccumulator().result().reason == "there are no samples"
    same = NumberAccumulator()
    same.add(np.ones(3, np.float32), np.full(3, 0.1, np.float32))
    assert same.result().r2 is None
