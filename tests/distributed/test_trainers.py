"""Several trainers in a person's own loop, under the real torchrun: the bytes of a run without a cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import foresee
from foresee.data import tiny

SCRIPT = Path(__file__).with_name("own_trainers.py")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_trainers_end_with_the_same_bytes_however_rows_move(tmp_path: Path) -> None:
    tiny(tmp_path / "log", multi_valued=False, num_samples=500)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*launch, str(SCRIPT), str(tmp_path / "log"), str(tmp_path)], capture_output=True, text=True, timeout=380,
        check=False, env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    found, num_steps = told["found"], told["num_steps"]
    assert {it.split()[0] for it in found.values()} == {str(num_steps)}
    assert found["contiguous"] == found["no cache"], "placed alike, rows come and go otherwise"
    assert found["log"] == found["batches"] == found["disk"] == found["interrupted"]
    log = foresee.ClickLog.open(tmp_path / "log")
    with foresee.Tables.on_disk(tmp_path / "tables", log, dim=4, optimizer=foresee.RowwiseAdagrad(lr=0.05)) as tables:
        assert tables.store.committed_step == num_steps, "one process can go on with them"
