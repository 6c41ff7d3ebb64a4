"""Temporary folders of a process that was killed go with a later start, and those of one that lives stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from foresee.io.machine import scratch_folder

HOLD = """
import sys
from foresee.io.machine import scratch_folder
with scratch_folder() as folder:
    (folder / "content").write_bytes(b"x")
    print(folder, flush=True)
    sys.stdin.read()
"""


def holder(temporary: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={"TMPDIR": str(temporary), "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_folder_lives_as_long_as_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    unknown = tmp_path / "foresee-of-somebody-else"
    unknown.mkdir()
    (killed, its_folder), (living, other_folder) = holder(tmp_path), holder(tmp_path)
    try:
        end(killed)
        assert (its_folder / "content").exists()
        with scratch_folder() as own:
            assert sorted(tmp_path.iterdir()) == sorted([own, other_folder, unknown])
            with scratch_folder():
                assert own.exists()
        assert sorted(tmp_path.iterdir()) == sorted([other_folder, unknown])
    finally:
        end(living)
    with scratch_folder():
        assert not other_folder.exists()
