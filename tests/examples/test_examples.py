"""Every example runs as a person would start it, in a process of its own, and says what its documentation promises."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
BENCH_PYTHON = ROOT / ".venv-bench" / "bin" / "python"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def run(script: str, *options: str, python: str = sys.executable, strict_warnings: bool = True) -> str:
    """What the script printed. Warnings are errors there too, except those of TorchRec and PyTorch Geometric."""
    strict = ["-W", "error"] if strict_warnings and python == sys.executable else []
    done = subprocess.run(
        [python, *strict, str(EXAMPLES / script), *options],
        capture_output=True, text=True, timeout=380, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_own_loop_stops_and_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    whole = run("own_loop.py", "--folder", str(tmp_path / "whole"), "--samples", "12000")
    stopped = run("own_loop.py", "--folder", str(tmp_path / "parts"), "--samples", "12000", "--stop-after", "7")
    onwards = run("own_loop.py", "--folder", str(tmp_path / "parts"))
    assert "step    7 of 42" in stopped
    assert "going on after step 7" in onwards
    assert onwards.splitlines()[-2:] == whole.splitlines()[-2:], "AUC and rows"
    assert stopped.splitlines()[-1] != whole.splitlines()[-1]
    assert float(re.findall(r"AUC on the valid split (\d\.\d+)", whole)[0]) > 0.55


def test_own_data_from_csv_to_scores(tmp_path: Path) -> None:
    told = run("own_data.py", "--folder", str(tmp_path / "made"), "--visits", "8000")
    assert re.findall(r"^(\d)\. ", told, re.MULTILINE) == list("1234555")
    assert float(re.findall(r"AUC on the valid split (\d\.\d+)", told)[0]) > 0.65
    cheap, dear, stranger = (float(share) for share in re.findall(r"scored: ([\d.]+)%", told))
    assert cheap > dear, "the dear one is bought less"
    assert 0 < stranger < 100


def test_several_trainers_learn_what_one_does(tmp_path: Path) -> None:
    told = run("several_trainers.py", "--folder", str(tmp_path / "made"), "--samples", "10000")
    together, alone, best = (float(auc) for auc in re.findall(r": +AUC (\d\.\d+)", told))
    assert together == pytest.approx(alone, abs=2e-3)
    assert 0.55 < alone < best


def test_several_trainers_in_ones_own_loop(tmp_path: Path) -> None:
    """With one trainer; `tests/launch/test_trainers.py` has two, under torchrun."""
    told = run("several_trainers_loop.py", "--folder", str(tmp_path / "tables"))
    assert told.startswith("158 steps by 1 trainers")
    assert float(re.findall(r"AUC on the valid split (\d\.\d+)", told)[0]) > 0.75


@pytest.mark.parametrize("options", [[], ["--encoder"]])
def test_graph_models_of_ones_own(tmp_path: Path, options: list[str]) -> None:
    if options and importlib.util.find_spec("torch_geometric") is None:
        pytest.skip("torch_geometric is not installed: pip install it")
    told = run("graphs/train.py", "--folder", str(tmp_path), "--epochs", "2", *options, strict_warnings=not options)
    disk, memory = (float(mrr) for mrr in re.findall(r"MRR (\d\.\d+)", told))
    assert disk == memory > 0.01
    assert told.splitlines()[-1] == "0 of 64,000 values of the nodes' vectors differ"


def test_torchrecs_script_before_and_after() -> None:
    if not BENCH_PYTHON.exists():
        pytest.skip("TorchRec is not installed: `make bench-env` makes the environment that has it.")
    before, after = (run(f"from_torchrec/{name}.py", python=str(BENCH_PYTHON)) for name in ("before", "after"))
    assert before.startswith("60 steps, first loss 0.69")
    numbers = [[float(it) for it in re.findall(r"\d+\.\d+", told)] for told in (before, after)]
    assert numbers[0] == pytest.approx(numbers[1], abs=2e-5)


@pytest.mark.parametrize(
    ("script", "package"), [("with_lightning", "pytorch_lightning"), ("with_accelerate", "accelerate")]
)
def test_loops_of_others_train_too(script: str, package: str) -> None:
    told = run(f"{script}.py", "--samples", "20000", python=python_with(package))
    assert "35 steps, loss 0." in told
    assert float(re.findall(r"AUC on the valid split (\d\.\d+)", told)[0]) > 0.6


def python_with(package: str) -> str:
    """This one, or that of the benchmarks; else skips."""
    if importlib.util.find_spec(package) is not None:
        return sys.executable
    found = BENCH_PYTHON.exists() and list(BENCH_PYTHON.parents[1].glob(f"lib/python*/site-packages/{package}"))
    if not found:
        pytest.skip(f"{package} is not installed: `make bench-env` makes the environment that has it.")
    return str(BENCH_PYTHON)


@pytest.mark.parametrize("script", [path.relative_to(EXAMPLES) for path in sorted(EXAMPLES.rglob("*.py"))], ids=str)
def test_the_page_of_examples_names_every_one(script: Path) -> None:
    text = (EXAMPLES / "README.md").read_text("utf-8")
    named = script if len(script.parts) == 1 else script.parent
    assert str(named) in text
