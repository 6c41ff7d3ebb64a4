"""The benchmark without its data says so in one sentence."""

import os
import subprocess
import sys
from pathlib import Path


def test_absent_data_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "cluster.py"
    environment = {**os.environ, "FORESEE_DATA": str(tmp_path / "nothing")}
    result = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "set FORESEE_DATA" in result.stderr
