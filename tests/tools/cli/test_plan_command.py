"""`foresee plan` as a person types it: the table, the saved plan, the curve, and one sentence for what is wrong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import foresee
from foresee.data import tiny
from foresee.plan.format.file import PlanFile, write_plan
from foresee.plan.record import Evict


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan_command")
    tiny(folder / "log", num_samples=500)
    tiny(folder / "single", num_samples=500, multi_valued=False)
    (folder / "run.yaml").write_text(
        "log: log\nrun: run\nmodel: {name: dlrm, dim: 4}\ncache: {rows: 150}\ntrain: {batch_size: 32}\n"
    )
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert foresee("plan", "run.yaml", "--steps", "5", monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "the first 5 of 12 steps of 32 samples; cache of 150 of 189 rows" in text
    for name in ("lookahead (this run)", "none", "lru", "lfu", "static", "belady"):
        assert f"│ {name} " in text
    assert "window: up to 12 steps beyond the one that is planned, in at most 2,147.5 MB (cache.window_bytes)\n" in text
    assert "memory needed, at most:" in text
    assert "--steps all" in text
    assert not Path("run").exists(), "planning makes no run folder"


def test_figures_in_json_are_the_counters_of_the_plans(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee("plan", "run.yaml", "--json", "--steps", "all", monkeypatch=monkeypatch) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["steps"], figures["of_steps"], figures["cache_rows"]) == (12, 12, 150)
    policies = figures["policies"]
    assert policies["none"]["hit_rate"] == 0
    fewest = policies["belady"]["fetched_per_step"]
    assert all(policy["fetched_per_step"] >= fewest for policy in policies.values())
    row_bytes = 4 * 4 + 4 + 4  # values, row-wise state, version
    moved = policies["lru"]["fetched_per_step"] + policies["lru"]["written_back_per_step"]
    assert policies["lru"]["bytes_per_step"] == pytest.approx(moved * row_bytes)


def test_a_window_that_memory_cuts_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cut = ("plan", "run.yaml", "--steps", "all", "--set", "cache.window_bytes=30000")
    assert foresee(*cut, monkeypatch=monkeypatch) == 0
    assert re.search(
        r"window: up to [1-9] steps .*, in at most 0\.0 MB \(cache\.window_bytes\); memory cuts it: all 12 steps would "
        r"take \d\.\d MB\n", capsys.readouterr().out,
    )  # fmt: skip
    found = {}
    for num_bytes in (1_000, 3_000_000):
        bound = ("--json", "--set", f"cache.window_bytes={num_bytes}", "--set", "cache.rows=120")
        assert foresee(*cut, *bound, monkeypatch=monkeypatch) == 0
        found[num_bytes] = json.loads(capsys.readouterr().out)
    assert [figures["window_is_cut"] for figures in found.values()] == [True, False]
    assert [figures["window_bytes"] for figures in found.values()] == [1_000, 3_000_000]
    short, long = (figures["policies"]["lookahead"]["fetched_per_step"] for figures in found.values())
    assert short > long, "what is announced is what the planner does"


SEVERAL = ("--set", "log=single", "--set", "distributed.workers=2", "--set", "cache.rows=80")


@pytest.mark.parametrize("more", [(), ("--set", "cache.planner=lru"), SEVERAL], ids=["lookahead", "lru", "workers"])
def test_a_runs_plan_is_proved(
    more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee("plan", "check", "run.yaml", *more, monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert f"run.yaml: proved, 12 steps of {'2 workers' if more == SEVERAL else '1 worker'}, planned by " in text
    assert re.search(r"\d+ reads see every earlier update, 0 are stale", text)
    assert ("sent between workers" in text) == (more == SEVERAL)
    assert not Path("run").exists()


def test_a_kept_plan_is_proved_and_a_wrong_one_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee("plan", "run.yaml", "--steps", "1", "--out", "right.arrow", monkeypatch=monkeypatch) == 0
    right = ("plan", "check", "right.arrow", "--run", "run.yaml")
    assert foresee(*right, monkeypatch=monkeypatch) == 0
    assert "right.arrow: proved, 12 steps of 1 worker" in capsys.readouterr().out
    plan = PlanFile.open("right.arrow")
    records = list(plan.records())
    forgotten = replace(records[-1], evict=Evict())
    write_plan("wrong.arrow", plan.header, [*records[:-1], forgotten])
    for arguments, sentence in [
        (("wrong.arrow", "--run", "run.yaml"), "wrong.arrow: the plan is wrong, it breaks"),
        (("wrong.arrow", "--run", "run.yaml"), "never reached the store"),
        (("wrong.arrow",), "give their run: foresee plan check wrong.arrow --run RUN.yaml"),
        (("right.arrow", "--run", "run.yaml", "--set", "train.seed=1"), "was made for another log, seed"),
        (("missing.arrow", "--run", "run.yaml"), "there is no such file"),
    ]:
        assert foresee("plan", "check", *arguments, monkeypatch=monkeypatch) == 2
        assert sentence in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_keep_and_show(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert foresee("plan", "run.yaml", "--steps", "2", "--out", "kept.arrow", monkeypatch=monkeypatch) == 0
    assert "saved the plan of all 12 steps in kept.arrow" in capsys.readouterr().out
    assert PlanFile.open("kept.arrow").counters.num_steps == 12
    assert foresee("plan", "show", "kept.arrow", "--from", "10", monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "│ capacity_rows" in text
    assert "│ 10 " in text
    assert "│ 11 " in text
    assert "│ 9 " not in text.partition("not before")[2]
    assert foresee("plan", "show", "kept.arrow", "--from", "99", monkeypatch=monkeypatch) == 2
    assert "there is no step 99; the plan has steps 0 to 11" in capsys.readouterr().err


def test_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    assert foresee("plan", "run.yaml", "--steps", "6", "--curve", "curve.csv", monkeypatch=monkeypatch) == 0
    head, *lines = Path("curve.csv").read_text().splitlines()
    names = head.split(",")
    assert names == ["cache_rows", "lookahead", "none", "static", "lru", "lfu", "belady"]
    rows = [dict(zip(names, map(int, line.split(",")), strict=True)) for line in lines]
    assert [row["cache_rows"] for row in rows] == sorted({row["cache_rows"] for row in rows})
    assert 150 in [row["cache_rows"] for row in rows], "the run's own size is on the curve"
    assert all(row["belady"] <= row[name] <= row["none"] for row in rows for name in names[1:])
    assert rows[-1]["belady"] == rows[-1]["cache_rows"], "with room for everything each row comes once"
    assert foresee("plan", "run.yaml", "--steps", "6", "--curve", "curve.html", monkeypatch=monkeypatch) == 0
    page = Path("curve.html").read_text("utf-8")
    assert '"displayModeBar": false' in page, "no toolbar, as on all our pages"
    assert "Content-Security-Policy" in page, "the frame of all our pages"
    assert page.startswith("<!doctype html>")
    assert "prefers-color-scheme: dark" in page
    assert "<script src" not in page, "nothing is loaded from elsewhere"
    assert list(Path().glob(".curve*")) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run.yaml", "--set", "cache.rows=10"], "the smallest cache that works for this log is "),
        (["run.yaml", "--set", "cache.planner=oracle"], "there is no planner 'oracle'; choose one of none"),
        (["run.yaml", "--set", "cache.window_steps=9", "--set", "cache.rows=110"], "a window of 9 steps needs"),
        (
            ["run.yaml", "--set", "cache.window_steps=9", "--set", "cache.window_bytes=20000"],
            "step 0: a window of 9 steps takes more than the 20,000 bytes of window_bytes after",
        ),
        (["missing.yaml"], "missing.yaml: there is no such file"),
        (["run.yaml", "--out", "nowhere/plan.arrow"], "the plan cannot be written"),
        (["run.yaml", "--curve", "nowhere/curve.csv", "--steps", "1"], "the curve cannot be written"),
        (["run.yaml", "--curve", "curve.png"], "its name must end in .html or .csv"),
        (["run.yaml", "--steps", "none"], "give a whole number from 1 up, or all"),
        (["show", "run.yaml"], "this is not a plan, or its beginning is damaged"),
        (["show", "missing.arrow"], "there is no such file; make a plan with"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee("plan", *arguments, monkeypatch=monkeypatch) == 2
    assert sentence in " ".join(capsys.readouterr().err.replace("│", " ").split())


MANY = ("--set", "distributed.workers=4")


def test_several_workers_have_their_own_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee("plan", "run.yaml", *MANY, "--steps", "6", monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "from peers" in text
    assert "│ lru" not in text, "nobody trains several workers with it"
    assert "foresee compare log --trainers 4" in text
    assert foresee("plan", "run.yaml", *MANY, "--json", "--steps", "6", monkeypatch=monkeypatch) == 0
    policies = json.loads(capsys.readouterr().out)["policies"]
    assert set(policies) == {"lookahead", "none"}
    assert 0 < policies["lookahead"]["critical_per_step"] < policies["none"]["critical_per_step"]


def test_features_within_a_budget_are_a_line_of_the_run_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    single = (*MANY, "--set", "log=single")
    code = foresee("plan", "features", "run.yaml", *single, "--budget-ms", "1000", monkeypatch=monkeypatch)
    text = capsys.readouterr().out
    assert code == 0
    line = text.splitlines()[-1]
    assert line.startswith("distributed.placement_features: [")
    names = line.partition("[")[2].rstrip("]").split(", ")
    assert all(f"│ {name} " in text for name in names)
    chosen = ("--set", f"distributed.placement_features=[{names[0]}]")
    figures = []
    for more in ((), chosen):
        assert foresee("plan", "run.yaml", *single, *more, "--json", monkeypatch=monkeypatch) == 0
        figures.append(json.loads(capsys.readouterr().out)["policies"]["lookahead"])
    assert figures[0] != figures[1], "the choice reaches the planner"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["placement_features=[nothing]"], "has no feature 'nothing'; choose from"),
        (["placement_features=[]"], "has no feature ''; choose from"),
        (["placement_features=[user]", "placement=herald"], "only location_aware"),
    ],
)
def test_features_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
) -> None:
    words = [word for override in more for word in ("--set", f"distributed.{override}")]
    assert foresee("plan", "run.yaml", *MANY, "--set", "log=single", *words, monkeypatch=monkeypatch) == 2
    assert sentence in capsys.readouterr().err
