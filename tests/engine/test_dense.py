"""The dense half that several workers share: what goes round before a forward, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from types import FunctionType

import pytest
import torch
import torch.distributed as dist
from torch import nn

from foresee.engine.exchange import dense
from foresee.engine.exchange.dense import SENDS_BUFFERS, Sums, shared
from foresee.engine.exchange.mesh import collective
from foresee.errors import PeerLostError
from foresee.models import DLRM, LogShape


@pytest.fixture
def one_worker(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_worker")
def test_only_buffers_that_training_changes_go_round() -> None:
    """Ours have indices alone; the running means of a batch norm are worker 0's."""
    ours = DLRM(LogShape(num_dense=2, num_features=3), 4, bottom=(4,), top=(4,))
    assert list(ours.buffers()), "else this shows nothing"
    assert not getattr(shared(ours), SENDS_BUFFERS)
    assert getattr(shared(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))), SENDS_BUFFERS)


@pytest.mark.usefixtures("one_worker")
def test_gradients_are_those_of_the_model() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Linear(3, 1), torch.randn(5, 3)
    model(inputs).sum().backward()
    alone = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    shared(model)(inputs).sum().backward()
    for one, weight in zip(alone, model.parameters(), strict=True):
        assert weight.grad is not None
        assert torch.equal(one, weight.grad)


def later_gradients(rank: int, num_workers: int, folder: Path) -> None:
    """Keep the gradients of four equal steps, as worker 0. Runs in a process of its own."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=num_workers)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    together, inputs = shared(model), torch.randn(16, 13, generator=torch.Generator().manual_seed(rank))
    found = []
    for _ in range(4):
        together(inputs).square().mean().backward()
        found.append(torch.cat([it.grad.flatten().clone() for it in model.parameters() if it.grad is not None]))
        model.zero_grad()
    if rank == 0:
        torch.save(found, folder / "found.pt")
    dist.destroy_process_group()


SCRIPT = "import sys; from test_dense import *; later_gradients(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))"


@pytest.mark.slow
def test_the_first_step_after_a_start_has_the_bits_of_any_other(tmp_path: Path) -> None:
    """DDP lays its buckets out anew after its first backward; a run that resumes begins with the first layout."""
    command = [sys.executable, "-c", SCRIPT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    workers = [subprocess.Popen([*command, str(rank), "3", str(tmp_path)], env=environment) for rank in range(3)]
    assert [worker.wait() for worker in workers] == [0, 0, 0]
    first, *later = torch.load(tmp_path / "found.pt")
    assert all(torch.equal(first, it) for it in later)


class Watched(Sums):
    def __init__(self) -> None:
        super().__init__()
        self.begun = 0

    def begin(self) -> None:
        super().begin()
        self.begun += 1
        assert self.under_way


@pytest.mark.usefixtures("one_worker")
def test_sums_are_under_way_until_backward_has_them() -> None:
    sums = Watched()
    model = shared(nn.Linear(3, 1), sums)
    assert not sums.under_way
    model(torch.randn(5, 3)).sum().backward()
    assert sums.begun
    assert not sums.under_way


def test_who_waits_for_sums_waits_for_all_of_them_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    sums, passed = Sums(), Event()
    sums.wait()
    sums.begin()
    sums.begin()

    def go() -> None:
        sums.wait()
        passed.set()

    thread = Thread(target=go)
    thread.start()
    sums.end()
    assert not passed.wait(0.05)
    sums.end()
    assert passed.wait(10)
    thread.join(10)
    monkeypatch.setattr(dense, "PATIENCE_SECONDS", 0.01)
    sums.begin()
    sums.wait()


def never_summed(gradients: torch.Tensor, **options: object) -> object:
    """As torch.distributed when a peer is gone: what was begun ends with a bare RuntimeError."""

    class Work:
        def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
            begun: torch.futures.Future[None] = torch.futures.Future()
            broken = begun.then(lambda _: fails())
            begun.set_result(None)
            return broken  # type: ignore[return-value]

    return Work()


@pytest.mark.usefixtures("one_worker")
def test_a_sum_that_breaks_is_a_lost_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = Sums()
    model = shared(nn.Linear(3, 1), sums)  # DDP that nobody holds any more averages nothing
    monkeypatch.setattr(dist, "all_reduce", never_summed)
    with pytest.raises(PeerLostError), sums:
        model(torch.randn(5, 3)).sum().backward()
    assert not sums.under_way, "whoever waits for the link goes on"


@pytest.mark.usefixtures("one_worker")
def test_an_error_of_the_model_stays_its_own() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), Sums() as sums:
        shared(nn.Linear(3, 1), sums)(torch.randn(5, 4))
    with pytest.raises(RuntimeError, match="requires a gradient"), Sums() as sums:
        shared(nn.ReLU(), sums)


def fails() -> None:
    raise RuntimeError("x")


@pytest.mark.parametrize(
    ("module", "name", "lost"),
    [
        ("torch.distributed.distributed_c10d", "barrier", True),
        ("torch.distributed.utils", "_verify_param_shape_across_processes", True),
        ("torch.nn.parallel.distributed", "_distributed_broadcast_coalesced", True),
        ("torch.nn.parallel.distributed", "_log_and_throw", False),
        ("torch.nn.functional", "linear", False),
    ],
)
def test_where_it_was_raised_decides(module: str, name: str, lost: bool) -> None:
    inside = FunctionType(fails.__code__.replace(co_name=name), {"__name__": module, "RuntimeError": RuntimeError})
    with pytest.raises(PeerLostError if lost else RuntimeError) as caught, Sums():
        inside()
    assert isinstance(caught.value, PeerLostError) == lost


@pytest.mark.usefixtures("one_worker")
def test_a_wait_for_peers_that_breaks_is_a_lost_peer() -> None:
    with pytest.raises(PeerLostError, match="lost another one \\(Connection closed by peer\\)"), collective():
        raise RuntimeError("[pair.cc:553] Connection closed by peer. This is typically caused by a remote worker")
    with pytest.raises(ValueError, match="x"), collective():
        raise ValueError("x")
