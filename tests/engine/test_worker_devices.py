"""Which device a worker takes, and what is refused before anybody begins. No GPU is needed, nor touched."""

from __future__ import annotations

import pytest
import torch

from foresee.engine.exchange.dense import check_device, dense_group, worker_device
from foresee.errors import ConfigError


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)


def nobody(device: int) -> None:
    raise AssertionError(f"nobody asked for GPU {device}")


def test_the_cpu_is_there_for_all() -> None:
    check_device("cpu", 1000, count=lambda: 0)
    assert worker_device("cpu", 3, count=lambda: 0, choose=nobody) == torch.device("cpu")
    assert dense_group(torch.device("cpu")) is None


def test_each_worker_takes_a_gpu_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    assert worker_device("cuda", 1, count=lambda: 2, choose=chosen.append) == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "0")  # the sixth worker, and the first of its machine
    assert worker_device("cuda", 5, count=lambda: 2, choose=chosen.append) == torch.device("cuda", 0)
    assert chosen == [1, 0]


@pytest.mark.parametrize("name", ["cuda:1", "mps", "CUDA", ""])
def test_other_devices_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="several workers train on cpu, or on cuda with a GPU for each"):
        check_device(name, 2, count=lambda: 8)


def test_too_few_gpus_are_refused_by_launcher_and_worker() -> None:
    with pytest.raises(ConfigError, match="4 workers on this machine need as many GPUs, torch finds 2"):
        check_device("cuda", 4, count=lambda: 2)
    with pytest.raises(ConfigError, match="3 workers on this machine need as many GPUs, torch finds 2"):
        worker_device("cuda", 2, count=lambda: 2, choose=nobody)
