"""A run on a disk that nobody may write to is evaluated and exported, to the digit and byte as elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import foresee
from foresee.data import tiny

READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && '


def in_read_only(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell command while a folder cannot be written, in a file system view of its own."""
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", READ_ONLY + command, "sh", str(folder)],
        capture_output=True, text=True, timeout=240, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {str(it.relative_to(folder)): it.read_bytes() for it in folder.rglob("*") if it.is_file()}


def test_evaluate_and_export_of_a_read_only_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    share = tmp_path / "share"
    share.mkdir()
    if shutil.which("unshare") is None or in_read_only(share, "true").returncode:
        pytest.skip("this test needs `unshare -m` and the right to mount; run it as root outside of a container")
    assert in_read_only(share, 'touch "$1/x"').returncode, "the folder can be written after all"
    run = share / "run"
    tiny(share / "log")
    (share / "run.yaml").write_text(
        "log: log\nrun: run\nmodel: {dim: 4, options: {bottom: [8], top: [8]}}\ncache: {rows: 150}\n"
        "train: {batch_size: 32, num_threads: 1}\n"
    )
    assert foresee("train", share / "run.yaml", monkeypatch=monkeypatch) == 0
    capsys.readouterr()
    assert foresee("evaluate", run, "--json", monkeypatch=monkeypatch) == 0
    expected = json.loads(capsys.readouterr().out)
    assert foresee("export", run, "--out", tmp_path / "expected", monkeypatch=monkeypatch) == 0
    before, program = contents(share), f'"{sys.executable}" -m foresee'
    found = in_read_only(
        share, f'{program} evaluate "$1/run" --json && {program} export "$1/run" --out "{tmp_path / "out"}" >&2'
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == expected
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")
    assert contents(share) == before
    into_itself = in_read_only(share, f'{program} export "$1/run" --out "$1/out"')
    assert into_itself.returncode == 2
    assert "Read-only file system; nothing was kept" in into_itself.stderr
