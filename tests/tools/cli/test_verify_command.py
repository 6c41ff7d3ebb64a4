"""`foresee verify` as a person types it: 0 differing bytes and exit 0, a difference and exit 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import foresee
from foresee.data import tiny
from foresee.tools import verify
from foresee.tools.verify import Verification

RUN = "log: log\nrun: run\nmodel: {name: dlrm, dim: 4}\ncache: {rows: 150}\ntrain: {batch_size: 32, num_threads: 1}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(tmp_path / "log", num_samples=300)
    (tmp_path / "run.yaml").write_text(RUN)
    monkeypatch.chdir(tmp_path)


def test_no_byte_differs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert foresee("verify", "run.yaml", "--steps", "4", "--set", "cache.planner=lru", monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert text.startswith("0 differing bytes after 4 steps: ")
    assert "rows and the dense weights compared" in text
    assert not Path("run").exists()


def test_a_run_of_several_workers_is_verified_in_one_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    several = ("--set", "distributed.workers=2")
    assert foresee("verify", "run.yaml", "--steps", "4", *several, monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert text.startswith("0 differing bytes after 4 steps: ")
    assert "the run's 2 workers were not started" in text
    assert foresee("plan", "run.yaml", "--out", "plan.arrow", *several, monkeypatch=monkeypatch) == 0
    kept = ("--set", "cache.plan_file=plan.arrow")
    assert foresee("verify", "run.yaml", "--steps", "4", *kept, monkeypatch=monkeypatch) == 2
    assert (
        "is a plan for 2 workers; train with --workers 2, plan this run again, or leave cache.plan_file out"
        in capsys.readouterr().err
    )


def test_a_difference_is_told_and_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def different(*_: object, **__: object) -> Verification:
        return Verification(num_steps=4, num_rows=9, num_bytes=100, num_differing=2, first_difference="values of row 7")

    monkeypatch.setattr(verify, "verify", different)
    assert foresee("verify", "run.yaml", monkeypatch=monkeypatch) == 1
    text = capsys.readouterr().out
    assert "2 differing bytes after 4 steps: 9 rows" in text
    assert "the first difference: values of row 7" in text


def test_a_cache_too_small_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert foresee("verify", "run.yaml", "--set", "cache.rows=5", monkeypatch=monkeypatch) == 2
    assert "but the cache holds 5; the smallest cache that works for this log is" in capsys.readouterr().err
