"""Several trainers in a person's own loop, under the real torchrun: the bytes of a run without a cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from ports import free_port

import foresee
from foresee.data import tiny
from foresee.errors import DataError, UsageError

SCRIPT = Path(__file__).with_name("own_trainers.py")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_trainers_end_with_the_same_bytes_however_rows_move(tmp_path: Path) -> None:
    tiny(tmp_path / "log", multi_valued=False, num_samples=500)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    script = [str(SCRIPT), str(tmp_path / "log"), str(tmp_path), str(free_port()), str(free_port())]
    with subprocess.Popen([sys.executable, *script, "--plan"], stdout=subprocess.DEVNULL) as planner:
        try:
            done = subprocess.run(
                [*launch, *script], capture_output=True, text=True, timeout=380, check=False,
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            )  # fmt: skip
        finally:
            planner.kill()
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    found, num_steps = told["found"], told["num_steps"]
    assert {it.split()[0] for it in found.values()} == {str(num_steps)}
    assert found["contiguous"] == found["no cache"], "placed alike, rows come and go otherwise"
    assert found["log"] == found["batches"] == found["service"] == found["disk"] == found["interrupted"]
    assert found["widths"] == found["widths, no cache"], "three widths, stopped and gone on, on disk"
    assert found["widths"] == found["widths, service"]
    log = foresee.ClickLog.open(tmp_path / "log")
    with foresee.Tables.on_disk(tmp_path / "tables", log, dim=4, optimizer=foresee.RowwiseAdagrad(lr=0.05)) as tables:
        assert tables.store.committed_step == num_steps, "one process can go on with them"


def test_one_trainer_needs_no_torchrun_and_mistakes_are_sentences(tmp_path: Path) -> None:
    bags = foresee.EmbeddingBags(
        [foresee.EmbeddingBagConfig(name="films", num_embeddings=30, embedding_dim=4, feature_names=["film"])]
    )
    items = [{"film": torch.arange(6) * 5 % 7 + step} for step in range(5)]

    def train(steps: Iterable[foresee.Step]) -> None:
        for step in steps:
            (step.embeddings**2).sum().backward()  # type: ignore[no-untyped-call]
            step.update()

    alone = foresee.Tables.in_memory(bags, dim=4, optimizer=foresee.SGD(lr=0.1))
    train(foresee.steps(foresee.Batches(bags, items * 2), alone, cache_rows=30))
    with foresee.Trainers(tmp_path / "tables", bags, dim=4, optimizer=foresee.SGD(lr=0.1)) as trainers:
        with pytest.raises(UsageError, match="say how many there are"):
            train(trainers.steps(foresee.Batches(bags, lambda epoch: iter(items)), cache_rows=30))
        with pytest.raises(UsageError, match="there is no loop yet"):
            trainers.commit()
        train(trainers.steps(foresee.Batches(bags, items), cache_rows=30))
        with pytest.raises(DataError, match="these batches are not the ones"):
            train(trainers.steps(foresee.Batches(bags, items[::-1]), cache_rows=30))
        train(trainers.steps(foresee.Batches(bags, items), cache_rows=30, first_step=0))
        assert trainers.steps_done == 10
        assert np.array_equal(trainers.tables.values("films"), alone.values("films"))


class Noted:
    """Batches that note which threads read them."""

    def __init__(self) -> None:
        self.read_by: list[int] = []

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        self.read_by.append(threading.get_ident())
        yield from ({"film": torch.arange(6) * 5 % 7 + step} for step in range(len(self)))


def test_a_loader_is_read_once_per_epoch_by_the_thread_of_the_loop_that_also_plans() -> None:
    bags = foresee.EmbeddingBags(
        [foresee.EmbeddingBagConfig(name="films", num_embeddings=30, embedding_dim=4, feature_names=["film"])]
    )
    source = Noted()
    with foresee.Trainers(None, bags, dim=4, optimizer=foresee.SGD(lr=0.1)) as trainers:
        for step in trainers.steps(foresee.Batches(bags, source, epochs=3, read_ahead_steps=2), cache_rows=30):
            (step.embeddings**2).sum().backward()  # type: ignore[no-untyped-call]
            step.update()
        assert trainers.steps_done == 18
    assert source.read_by == [threading.get_ident()] * 3
