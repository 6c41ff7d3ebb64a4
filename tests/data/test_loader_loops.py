"""A loop over a user's loader: the draws, losses, errors and processes of the same loop in plain PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import foresee
from foresee.engine.header import FETCH_AHEAD_STEPS
from foresee.plan import trainable
from foresee.run.shared_memory import private

SCRIPT = Path(__file__).with_name("loader_script.py")
BAGS = foresee.EmbeddingBags(
    [foresee.EmbeddingBagConfig(name="films", num_embeddings=90, embedding_dim=4, feature_names=["film"])]
)


def script(ways: str, *options: str, open_files: int | None = None) -> Any:
    """The output of the script in a process of its own, of each way."""
    limit = [] if open_files is None else ["prlimit", f"--nofile={open_files}"]
    command = [*limit, sys.executable, str(SCRIPT), ways, "3", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def assert_same(ours: Any, plain: Any) -> None:
    assert ours["losses"] == pytest.approx(plain["losses"], abs=1e-6)
    assert ours["drawn"] == plain["drawn"], "the generator stands where plain PyTorch leaves it"
    assert len(ours["loaded_by"]) == len(plain["loaded_by"]), "as many worker processes"


@pytest.mark.timeout(600)
def test_a_seeded_script_has_the_losses_of_plain_pytorch_each_time() -> None:
    (plain,), *runs = (script(way) for way in ("plain", "ours", "ours", "ours"))
    for (run,) in runs:
        assert_same(run, plain)
        assert run["losses"] == runs[0][0]["losses"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("option", ["own_generator=1", "num_workers=0"])
def test_so_it_has_with_a_generator_of_its_own_and_without_workers(option: str) -> None:
    plain, ours = script("plain,ours", option)
    assert_same(ours, plain)


@pytest.mark.timeout(300)
def test_batches_read_ahead_hold_no_files_open() -> None:
    """14 tensors per batch, 1,024 open files: in shared memory, 73 batches would exceed the limit."""
    (ours,) = script("ours", "tensors=10", open_files=1024)
    assert len(ours["losses"]) == 300


def batches(num: int, first: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(first)
    return [torch.randint(0, 90, (8, 1), generator=generator) for _ in range(num)]


class Loader:
    """Can be iterated again and again, as a `DataLoader`; notes who does so, when, and how far it was read."""

    def __init__(self, items: list[Tensor], fails_at: int | None = None) -> None:
        self.items, self.fails_at = items, fails_at
        self.opened, self.pulled = 0, 0
        self.threads: set[int] = set()

    def __iter__(self) -> Iterator[Tensor]:
        self.opened += 1
        self.threads.add(threading.get_ident())
        return self._read()

    def _read(self) -> Iterator[Tensor]:
        for number, item in enumerate(self.items):
            self.threads.add(threading.get_ident())
            if number == self.fails_at:
                raise ValueError(f"batch {number} is damaged")
            self.pulled += 1
            yield item


def tables() -> foresee.Tables:
    return foresee.Tables.in_memory(BAGS, dim=4, optimizer=foresee.Adagrad(lr=0.1))


def train(source: foresee.Batches, into: foresee.Tables, note: Any = lambda step: None, **options: Any) -> bytes:
    for step in foresee.lookahead(source, into, **{"cache_rows": 60, **options}):
        note(step)
        (step.embeddings - 1).square().sum().backward()  # type: ignore[no-untyped-call]
        step.update()
    return into.values("films").tobytes()


def test_a_loader_is_opened_once_per_epoch_by_the_thread_of_the_loop() -> None:
    loader = Loader(batches(20))
    seen: list[tuple[int, int]] = []
    train(foresee.Batches(BAGS, loader, epochs=3), tables(), lambda step: seen.append((loader.opened, loader.pulled)))
    assert loader.threads == {threading.get_ident()}
    assert loader.opened == 3
    for step, (opened, pulled) in enumerate(seen):
        assert opened == step // 20 + 1, "an epoch is opened when the one before is trained"
        assert pulled <= 20 * opened


@pytest.mark.parametrize(
    "make", [lambda items: items, lambda items: lambda epoch: iter(items)], ids=["list", "function"]
)
def test_the_order_of_lists_and_functions_is_known_and_read_on(make: Any) -> None:
    items = batches(12)
    ahead = []
    train(foresee.Batches(BAGS, make(items), epochs=2), tables(), lambda step: ahead.append(step._work))
    assert ahead[5].looked_ahead_steps > 6


@pytest.mark.parametrize("planner", trainable())
@pytest.mark.parametrize("read_ahead_steps", [1, 7, 100])
def test_no_planner_waits_for_batches_that_are_not_pulled(planner: str, read_ahead_steps: int) -> None:
    items, counts = batches(25), []
    for _ in range(2):
        loader, seen = Loader(items), list[int]()
        source = foresee.Batches(BAGS, loader, epochs=2, read_ahead_steps=read_ahead_steps)
        trained = train(source, tables(), lambda step: seen.append(loader.pulled), planner=planner)  # noqa: B023
        assert trained == train(foresee.Batches(BAGS, items * 2), tables())
        counts.append(seen)
    assert counts[0] == counts[1], "how many are pulled at a step depends on no timing"


def test_a_fixed_window_longer_than_what_is_read_ahead() -> None:
    items = batches(30)
    source = foresee.Batches(BAGS, Loader(items), read_ahead_steps=2)
    assert train(source, tables(), cache_rows=90, window_steps=12) == train(foresee.Batches(BAGS, items), tables())


def test_reading_begins_with_few_batches_and_ends_with_no_more_than_asked_for() -> None:
    loader, ahead = Loader(batches(200)), list[int]()
    train(
        foresee.Batches(BAGS, loader, read_ahead_steps=40),
        tables(),
        lambda step: ahead.append(loader.pulled - step.index),
    )
    assert ahead[0] <= 2 * FETCH_AHEAD_STEPS + 4
    assert max(ahead) <= 40 + FETCH_AHEAD_STEPS + 4
    assert ahead[100] > 40


@pytest.mark.parametrize("fails_at", [0, 1, 7, 19])
def test_an_error_of_the_loader_is_raised_at_its_own_batch(fails_at: int) -> None:
    items, seen, found = batches(20), list[int](), tables()
    with pytest.raises(ValueError, match=f"^batch {fails_at} is damaged$"):
        train(foresee.Batches(BAGS, Loader(items, fails_at)), found, lambda step: seen.append(step.index))
    assert seen == list(range(fails_at))
    assert found.store.committed_step == fails_at
    if fails_at:
        assert found.values("films").tobytes() == train(foresee.Batches(BAGS, items[:fails_at]), tables())


def test_an_item_that_cannot_be_used_is_an_error_at_its_own_step() -> None:
    seen: list[int] = []
    with pytest.raises(foresee.errors.DataError, match="step 3, sample 0"):
        train(
            foresee.Batches(BAGS, [*batches(3), torch.full((8, 1), 90)]), tables(), lambda step: seen.append(step.index)
        )
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("stop_after", [3, 10, 13, 20])
def test_a_loop_over_a_loader_resumes_in_any_epoch(stop_after: int, tmp_path: Path) -> None:
    def opened() -> foresee.Tables:
        return foresee.Tables.on_disk(tmp_path / "tables", BAGS, dim=4, optimizer=foresee.Adagrad(lr=0.1))

    def source() -> foresee.Batches:
        generator = torch.Generator().manual_seed(3)
        loader = DataLoader(batches(10), batch_size=None, shuffle=True, generator=generator)  # type: ignore[arg-type, var-annotated]
        return foresee.Batches(BAGS, loader, epochs=3)

    with opened() as first:
        for step in foresee.lookahead(source(), first, cache_rows=60):
            (step.embeddings - 1).square().sum().backward()  # type: ignore[no-untyped-call]
            step.update()
            if step.index + 1 == stop_after:
                break
    with opened() as second:
        assert second.store.committed_step == stop_after
        assert train(source(), second) == train(source(), tables())
        assert second.store.committed_step == 30


Pair = namedtuple("Pair", "ids labels")


@dataclass(frozen=True, slots=True)
class Frozen:
    ids: Tensor


def shared() -> Tensor:
    values = torch.arange(4)
    values.share_memory_()  # type: ignore[no-untyped-call]
    return values


@pytest.mark.parametrize(
    "item",
    [
        shared(), [shared(), 3], (None, shared()), Pair(shared(), "a"), {"ids": [{"a": (shared(),)}], "n": 1},
        Frozen(shared()), SimpleNamespace(values=shared(), inside=SimpleNamespace(lengths=shared())),
    ],
    ids=lambda item: type(item).__name__,
)  # fmt: skip
def test_tensors_leave_shared_memory_and_the_item_given_stays(item: Any) -> None:
    moved = private(item)
    assert type(moved) is type(item)
    before, after = list(tensors(item)), list(tensors(moved))
    assert before
    for old, new in zip(before, after, strict=True):
        assert old.is_shared()  # type: ignore[no-untyped-call]
        assert not new.is_shared()  # type: ignore[no-untyped-call]
        assert torch.equal(old, new)
    assert private(moved) is moved, "nothing is copied without need"


def tensors(item: Any) -> Iterator[Tensor]:
    if isinstance(item, Tensor):
        yield item
    elif isinstance(item, dict):
        for value in item.values():
            yield from tensors(value)
    elif isinstance(item, list | tuple):
        for value in item:
            yield from tensors(value)
    elif isinstance(item, Frozen):
        yield item.ids
    elif isinstance(item, SimpleNamespace):
        yield from tensors(vars(item))


def test_items_without_shared_tensors_and_with_circles_are_left_alone() -> None:
    circle: dict[str, Any] = {"ids": np.arange(3), "more": torch.ones(2)}
    circle["self"] = [circle]
    assert private(circle) is circle
    numbers = list(range(5))
    assert private(numbers) is numbers
