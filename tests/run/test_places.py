"""Plans, exports and runs by URL: made here and sent, or brought here, and the same as by path."""

from __future__ import annotations

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from training_runs import everything, small_run, train_quietly

from command_line import foresee
from foresee.data import ClickLog, tiny
from foresee.errors import ConfigError, StoreError
from foresee.io import urls
from foresee.io.storage import Storage
from foresee.io.urls import brought, local_folder, sent
from foresee.run.config_file import dump_run, load_run
from foresee.tools.cli import watch as watch_command
from foresee.tools.report.run_records import read_run
from s3_server import Network, url_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORESEE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "log", seed=3, num_samples=800)


def test_a_folder_is_sent_whole_or_not_at_all_and_brought_when_it_has_changed(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = url_of(network.port, "places/folder")
    with pytest.raises(RuntimeError), sent(url, marker="m.json") as folder:  # noqa: PT012
        folder.mkdir()
        (folder / "a").write_bytes(b"1")
        raise RuntimeError
    assert Storage.open(url).names() == []
    for round_number, names in enumerate((["a", "b"], ["a", "c"])):
        with sent(url, marker="m.json", replace=True) as folder:
            (folder / "below").mkdir(parents=True)
            for name in names:
                (folder / "below" / name).write_text(f"{name} {round_number}")
            (folder / "m.json").write_text("{}")
        here = brought(url, "things", marker="m.json")
        assert {path.name: path.read_text() for path in (here / "below").iterdir()} == {
            name: f"{name} {round_number}" for name in names
        }
    with monkeypatch.context() as patched:
        patched.setattr(urls, "SETTLED_SECONDS", -60.0)
        for num_fetched in (3, 0):  # files this new are fetched again, settled ones are not
            fetched = list[str]()
            patched.setattr(Storage, "fetch", lambda storage, name, target, fetched=fetched: fetched.append(name))
            brought(url, "things", marker="m.json")
            assert len(fetched) == num_fetched
    with pytest.raises(ConfigError, match=r"folder exists; give another target"), sent(url, marker="m.json"):
        pytest.fail("nothing may be made")
    with pytest.raises(ConfigError, match=r"s3://bucket/places/none is not there or has no m.json; check the URL"):
        brought(url_of(network.port, "places/none"), "things", marker="m.json")
    with pytest.raises(StoreError, match="there is no bucket 'nowhere'"):
        brought(url_of(network.port, "x", "nowhere"), "things")


def test_a_run_its_plan_and_its_export_live_at_urls(
    network: Network, log: ClickLog, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Everything by URL, as by path: the log too, and the commands that look at a run afterwards on another machine."""
    log_url, run_url, plan_url, export_url = (
        url_of(network.port, f"whole/{name}") for name in ("log", "run", "plan.arrow", "export")
    )
    with sent(log_url, marker="log.json") as folder:
        shutil.copytree(log.path, folder)
    plain = small_run(log, tmp_path / "plain")
    train_quietly(plain)
    file = tmp_path / "run.yaml"
    file.write_text(dump_run(plain))
    given = ["--set", f"log={log_url}", "--set", f"run={run_url}", "--set", "train.commit_every_steps=8"]

    def call(*words: object) -> str:
        code = foresee(*words, monkeypatch=monkeypatch)
        said = capsys.readouterr()
        assert code == 0, said.err
        return said.out

    assert f"--plan {plan_url}" in call("plan", file, *given, "--out", plan_url, "--steps", "3")
    config = load_run(file, [it for it in given if it != "--set"])
    train_quietly(config.model_copy(update={"cache": config.cache.model_copy(update={"plan_file": plan_url})}))
    assert everything(config) == everything(plain)
    recorded = read_run(config.run)
    expected = json.loads(call("evaluate", plain.run, "--split", "valid", "--json"))
    shutil.rmtree(cache)
    found = json.loads(call("evaluate", run_url, "--split", "valid", "--json"))
    assert found == {**expected, "run": "s3://bucket/whole/run"}
    assert everything(config) == everything(plain)
    shutil.rmtree(cache)
    call("export", run_url, "--out", export_url)
    call("export", plain.run, "--out", tmp_path / "export")
    raw = tmp_path / "raw.csv"
    names = [*log.dense_names, *(feature.name for feature in log.features)]
    raw.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    assert call("score", export_url, raw) == call("score", tmp_path / "export", raw)
    assert "whole" in call("check", run_url, plan_url, export_url, log_url)
    assert local_folder(run_url, "runs").is_dir()
    shutil.rmtree(cache)
    assert "20" in call("watch", run_url, "--once")
    here = read_run(config.run)
    assert (here.metrics, here.workers) == (recorded.metrics, recorded.workers)
    assert here.workers[0].points
    capsys.readouterr()
    assert foresee("evaluate", url_of(network.port, "whole/none"), monkeypatch=monkeypatch) == 2
    assert "s3://bucket/whole/none holds no run (config.yaml is missing)" in capsys.readouterr().err


def test_a_run_at_a_url_is_followed_from_another_machine(
    log: ClickLog, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, file = f"file://{tmp_path}/storage", tmp_path / "run.yaml"
    file.write_text(dump_run(small_run(log, tmp_path / "plain")))
    config = load_run(file, [f"run={url}"])
    train_quietly(config, stop_after=8)
    monkeypatch.setenv("FORESEE_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(watch_command, "LINE_SECONDS", 0.02)
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(foresee, "watch", url, monkeypatch=monkeypatch)
        while not any((tmp_path / "other").rglob("metrics.jsonl")):
            time.sleep(0.01)
        train_quietly(config, resume=True)
        assert watching.result(30) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "8" in lines[0]
    assert "20" in lines[-1]
