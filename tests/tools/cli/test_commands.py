"""The commands as a person meets them: exit codes, sentences on the error stream, and a frozen command line."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import foresee
from foresee import __version__
from foresee.data import ClickLog, tiny
from foresee.errors import InputError
from foresee.run.serving.exported import load_exported
from foresee.tools.cli import main
from foresee.tools.cli.commands import COMMANDS, load
from foresee.tools.report.page import write_page

GOLDEN = Path(__file__).with_name("commands.golden.txt")
OURS = ("demo", "init", "train", "evaluate", "export", "score")


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    tiny(tmp_path / "log")
    file = tmp_path / "run.yaml"
    file.write_text(
        "log: log\nrun: run\nmodel: {dim: 4, options: {bottom: [8], top: [8]}}\n"
        "cache: {rows: 150}\ntrain: {batch_size: 32, num_threads: 1}\n"
    )
    return file


def test_train_evaluate_export(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = run_file.parent / "run", run_file.parent / "out"
    assert foresee("train", run_file, "--stop-after", 5, monkeypatch=monkeypatch) == 0
    assert "stopped after 5 of 25 steps" in capsys.readouterr().out
    assert foresee("train", run_file, "--resume", monkeypatch=monkeypatch) == 0
    assert "done: 25 steps" in capsys.readouterr().out
    assert foresee("evaluate", run, "--split", "test", "--json", monkeypatch=monkeypatch) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["step"], figures["split"], figures["num_samples"]) == (25, "test", 100)
    assert foresee("evaluate", run, monkeypatch=monkeypatch) == 0
    assert "AUC" in capsys.readouterr().out
    assert foresee("export", run, "--out", out, monkeypatch=monkeypatch) == 0
    assert "4 tables with 189 rows" in capsys.readouterr().out.replace("\n", " ")
    assert (out / "README.md").is_file()


def test_the_best_and_a_model_beside_the_run_file(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: Any
) -> None:
    (run_file.parent / "model_beside_the_run_file.py").write_text(
        "from torch import nn\n\n\nclass Own(nn.Module):\n    def __init__(self, shape, dim):\n"
        "        super().__init__()\n        self.layer = nn.Linear(dim, 1)\n\n"
        "    def forward(self, dense, embeddings):\n        return self.layer(embeddings.sum(1)).squeeze(1)\n"
    )
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    settings = ("model={name: model_beside_the_run_file:Own, dim: 4}", "train.best.metric=log_loss",
                "train.evaluate_every_steps=10", "train.ranking.group=user", "train.schedule.name=exponential",
                "train.schedule.options.gamma=0.9")  # fmt: skip
    options = [word for it in settings for word in ("--set", it)]
    run = run_file.parent / "run"
    assert foresee("train", run_file, *options, monkeypatch=monkeypatch) == 0
    assert "the best so far, kept" in capsys.readouterr().out
    sys.path[:] = [it for it in sys.path if it != str(run_file.parent)]
    del sys.modules["model_beside_the_run_file"]
    assert foresee("evaluate", run, "--best", "--at", 2, "--at", 3, monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("GAUC", "NDCG@2", "recall@3", "values of user"))
    assert foresee("export", run, "--best", "--out", run_file.parent / "out", monkeypatch=monkeypatch) == 0
    assert foresee("check", run, monkeypatch=monkeypatch) == 0
    assert "best/tables/" in capsys.readouterr().out.replace("\n", "")
    assert foresee("verify", run_file, *options, "--set", "run=unused", "--steps", 12, monkeypatch=monkeypatch) == 0


def test_score_says_which_line_and_column_cannot_be_right(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, raw, scores = (run_file.parent / name for name in ("out", "raw.csv", "scores.csv"))
    assert foresee("train", run_file, "--stop-after", 5, monkeypatch=monkeypatch) == 0
    assert foresee("export", run_file.parent / "run", "--out", out, monkeypatch=monkeypatch) == 0
    names = load_exported(out).columns
    good = ",".join("0" for _ in names)
    outside = ",".join("9999" if name == "user" else "0" for name in names)
    capsys.readouterr()
    for last, sentence in (
        (outside, "raw.csv:3, column 'user': '9999' is no id of table 'user'"),
        (good + ",0", "raw.csv:3: expected"),
    ):
        raw.write_text("\n".join([",".join(names), good, last]))
        assert foresee("score", out, raw, "--out", scores, monkeypatch=monkeypatch) == 2
        captured = capsys.readouterr()
        assert sentence in captured.err
        assert captured.out == ""
        assert not list(run_file.parent.glob("*scores*"))
    raw.write_text("\n".join([good, good]))
    columns = ",".join(names)
    assert foresee("score", out, raw, "--no-header", "--column-names", columns, monkeypatch=monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "probability"
    assert lines[1] == lines[2]
    assert foresee("score", out, run_file.parent / "none.csv", monkeypatch=monkeypatch) == 2
    assert "none.csv: there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "none.yaml"], "none.yaml: there is no such file"),
        (["train", "RUN", "--set", "cache.rowz=3"], "did you mean cache.rows?"),
        (["train", "RUN", "--set", "cache.rows=20"], "the smallest cache that works for this log is"),
        (["train", "RUN", "--set", "log=elsewhere"], "elsewhere: no prepared log is here"),
        (["train", "RUN", "--resume"], "holds no run"),
        (["evaluate", "none"], "none holds no run"),
        (["export", "none", "--out", "out"], "none holds no run"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    assert foresee(*(run_file if it == "RUN" else it for it in arguments), monkeypatch=monkeypatch) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("foresee: ")
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert not (run_file.parent / "run").exists()


def test_a_bad_option_is_exit_code_2(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee("train", run_file, "--resume", "--replace", monkeypatch=monkeypatch) == 2
    assert "give one of them" in capsys.readouterr().err
    assert foresee("train", run_file, "--stop-after", "0", monkeypatch=monkeypatch) == 2


def test_an_error_of_ours_keeps_its_traceback(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("foresee.run.session.open_log", broken)
    monkeypatch.setattr(sys, "argv", ["foresee", "train", str(run_file)])
    with pytest.raises(ZeroDivisionError):
        main()


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.EROFS, "give a place that can be written"), (errno.ENOSPC, "free some space"), (errno.EIO, "the disk")],
)
def test_a_disk_that_cannot_be_used_is_one_sentence_and_leaves_no_run(
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    remedy: str,
) -> None:
    def refused(*arguments: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number), "somewhere/on/a/disk")

    monkeypatch.setattr("foresee.run.session._restore", refused)
    assert foresee("train", run_file, monkeypatch=monkeypatch) == 2
    told = capsys.readouterr().err
    assert f"foresee: somewhere/on/a/disk cannot be used ({os.strerror(number)}); " in told
    assert remedy in told
    assert not (run_file.parent / "run").exists()
    monkeypatch.setattr("foresee.tools.cli.report._write_run", refused)
    assert foresee("report", run_file.parent, monkeypatch=monkeypatch) == 2
    assert "somewhere/on/a/disk cannot be used" in capsys.readouterr().err


def test_what_a_full_disk_leaves_before_the_first_commit_is_not_to_be_resumed(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("foresee.run.folder.METRICS_FILE", "no/such/folder/metrics.jsonl")
    assert foresee("train", run_file, monkeypatch=monkeypatch) == 2
    assert "nothing was committed yet: free some space, then start anew" in capsys.readouterr().err
    assert not (run_file.parent / "run").exists()


def test_a_page_that_a_read_only_disk_refuses_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a disk refuses to remove what is not there, too."""

    def refused(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "replace", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(InputError, match=r"report.html: the page cannot be written \(Read-only file system\)"):
        write_page(tmp_path / "report.html", "A page", [])


@pytest.mark.slow
def test_ctrl_c_ends_the_command_with_130_and_a_commit(run_file: Path) -> None:
    command = [sys.executable, "-m", "foresee", "train", str(run_file), "--set", "train.epochs=10000"]
    command += ["--set", "train.log_every_steps=1", "--set", "train.commit_every_seconds=1000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    metrics = run_file.parent / "run" / "metrics.jsonl"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        end = time.monotonic() + 90
        while not (metrics.exists() and metrics.read_text().count("\n") > 3) and time.monotonic() < end:
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err == ""
    assert "go on with --resume" in out
    assert json.loads(metrics.read_text().splitlines()[-1])["kind"] == "commit"


def test_the_demo_makes_a_log_once_trains_and_says_what_came_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    folder = tmp_path / "demo"
    assert foresee("demo", "--folder", folder, "--samples", 20_000, monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    for words in ("best reachable AUC", "gap", "rows in the cache", "hit rate", "waited for rows", "foresee verify"):
        assert words in out
    best = ClickLog.open(folder / "log").best_auc["valid"]
    assert f"{best:.4f}" in out
    run_file = folder / "run.yaml"
    run_file.write_text(run_file.read_text().replace("dim: 16", "dim: 2"))
    assert foresee("demo", "--folder", folder, "--samples", 20_000, monkeypatch=monkeypatch) == 0
    assert "is there already" in capsys.readouterr().out
    assert "dim: 2" in (folder / "run" / "config.yaml").read_text()


def test_every_command_is_there_in_the_order_of_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee("--help", monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    names = ("demo", "prepare", "init", "plan", "train", "evaluate", "verify", "export", "cluster")
    places = [out.index(f"\n  {name} ") for name in names]
    assert places == sorted(places)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_in_the_help_is_its_own(name: str) -> None:
    """`foresee --help` imports no command, so it has their lines in a table."""
    said = inspect.cleandoc(load(name).help).split("\n\n")[0]
    assert " ".join(said.split()) == COMMANDS[name]


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_load_nothing_heavy(argument: str) -> None:
    code = (
        "import sys, foresee.tools.cli; sys.argv = ['foresee', sys.argv[1]]\n"
        "try: foresee.tools.cli.main()\n"
        "except SystemExit as end: assert not end.code\n"
        "heavy = {'torch', 'numba', 'numpy', 'pyarrow', 'scipy', 'plotly', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code, argument], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "foresee" in done.stdout


def test_the_version_is_the_package_s(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert foresee("--version", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out == f"foresee {__version__}\n"


def _all_commands() -> Iterator[list[str]]:
    for name in COMMANDS:
        below = getattr(load(name), "commands", {})
        yield from ([name, inner] for inner in below) if below else [[name]]


@pytest.mark.parametrize("words", list(_all_commands()), ids=" ".join)
def test_help_shows_the_whole_syntax_at_80_columns(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert foresee(*words, "--help", monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    assert "<" not in out.replace("<=", "")
    assert not re.search(r"\w…", out), out
    command = load(words[0])
    for parameter in (command.commands[words[1]] if len(words) > 1 else command).params:
        if not getattr(parameter, "hidden", False) and parameter.param_type_name == "option":
            assert all(name in out for name in parameter.opts), parameter.name


def test_ctrl_c_while_a_command_is_imported_is_a_word_and_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("foresee.tools.cli.commands.load", interrupted)
    assert foresee("train", "run.yaml", monkeypatch=monkeypatch) == 130
    assert capsys.readouterr().err == "foresee: interrupted\n"


def test_a_signal_in_the_middle_of_an_import_ends_the_process_with_a_word(tmp_path: Path) -> None:
    """Here torch is a module that is interrupted while it is imported, and swallows exceptions, as some do."""
    (tmp_path / "torch.py").write_text(
        "import os, signal\n"
        "try: os.kill(os.getpid(), signal.SIGINT)\n"
        "except BaseException: raise RecursionError('a half-imported module')\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", "foresee", "evaluate", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "foresee: interrupted\n")


def test_a_signal_while_a_command_works_is_a_word_and_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("foresee.tools.fsck.check", lambda path: os.kill(os.getpid(), signal.SIGINT))
    assert foresee("check", "somewhere", monkeypatch=monkeypatch) == 130
    assert capsys.readouterr().err == "foresee: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_before_anything_is_imported_is_a_word_and_130() -> None:
    """Typer itself is interrupted here, before there is a command that could catch it."""
    code = (
        "import sys, foresee.tools.cli\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt()); foresee.tools.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "foresee: interrupted\n")


def test_the_command_line_is_frozen() -> None:
    """Scripts depend on it. If a change is meant, write the new lines into the golden file and the changelog."""
    assert list(_command_line()) == GOLDEN.read_text("utf-8").splitlines()


def _command_line() -> Iterator[str]:
    for name in OURS:
        for parameter in load(name).params:
            options = "/".join([*parameter.opts, *parameter.secondary_opts])
            yield f"{name} {options} required={parameter.required} default={parameter.default} help={parameter.help}"
