"""What `pip install foresee` does not bring is missed with a sentence, before any work, and only where it is needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from command_line import foresee
from foresee.cluster.job import Cluster
from foresee.cluster.policies import POLICIES
from foresee.data import tiny
from foresee.errors import ConfigError
from foresee.io.optional import EXTRAS, OptionalModule


class Hidden:
    """A finder that finds nothing of these packages, and lets nobody else look."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


@pytest.fixture
def without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [it for it in sys.modules if it.partition(".")[0] in EXTRAS]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Hidden(), *sys.meta_path])


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    tiny(tmp_path / "log", num_samples=200)
    file = tmp_path / "run.yaml"
    file.write_text(
        "log: log\nrun: run\nmodel: {dim: 4, options: {bottom: [8], top: [8]}}\n"
        "cache: {rows: 150}\ntrain: {batch_size: 32, num_threads: 1}\n"
    )
    return file


@pytest.mark.usefixtures("without_extras")
def test_pages_are_refused_with_the_pip_line_and_the_rest_works(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = run_file.parent, run_file.parent / "page.html"
    assert foresee("train", run_file, "--stop-after", 3, monkeypatch=monkeypatch) == 0
    asked = (
        ("report", folder / "run"),
        ("plan", run_file, "--curve", page),
        ("compare", folder / "log", "--page", page),
        ("simulate", folder / "log", "--page", page),
        ("cluster", "plan", run_file, "--page", page),
    )
    for words in asked:
        capsys.readouterr()
        assert foresee(*words, monkeypatch=monkeypatch) == 2, words
        captured = capsys.readouterr()
        assert captured.err.startswith("foresee: plotly is not installed, and HTML pages need it; run: pip install ")
        assert "'foresee[report]'" in captured.err
        assert captured.out == ""
        assert not list(folder.glob("*.html"))
    table = folder / "compared.csv"
    options = ("--batch-size", 32, "--trainers", 1, "--cache", 150, "--csv", table)
    assert foresee("compare", folder / "log", *options, monkeypatch=monkeypatch) == 0
    assert "lookahead" in table.read_text()
    assert foresee("plan", run_file, "--curve", folder / "curve.csv", monkeypatch=monkeypatch) == 0


@pytest.mark.usefixtures("without_extras")
def test_policies_that_need_scipy_say_so() -> None:
    cluster = Cluster(gpus=2)
    assert POLICIES["fifo"](cluster)(0.0, []) == []
    with pytest.raises(ConfigError, match=r"scipy is not installed.*pip install 'foresee\[cluster\]'"):
        OptionalModule("scipy.optimize").linear_sum_assignment([[1.0]])


def test_with_them_a_module_is_the_module() -> None:
    import scipy.optimize

    assert OptionalModule("scipy.optimize").milp is scipy.optimize.milp


def test_no_module_of_ours_imports_an_extra_at_once() -> None:
    """Anything else would make `pip install foresee` too small for a command that draws nothing."""
    source = Path(sys.modules["foresee"].__file__ or "").parent
    lines = [
        f"{path.name}: {line}"
        for path in source.rglob("*.py")
        for line in path.read_text().splitlines()
        if line.startswith(tuple(f"{word} {name}" for word in ("import", "from") for name in EXTRAS))
    ]
    assert lines == []
