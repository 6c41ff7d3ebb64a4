"""Placements: balanced, repeatable, the published greedy list for list, and ours no dearer than where it starts."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.plan import plan
from foresee.plan.baselines.herald import herald
from foresee.plan.placement import NO_OWNER, PLACEMENTS, LocationAware, Scene, affordable, rank_positions, rounds_for
from foresee.plan.placement import herald as owner_greedy
from foresee.plan.record import Accesses, Header, compared_parts


def published_herald(
    trace: list[list[list[int]]], num_workers: int, capacity: int
) -> tuple[list[list[list[int]]], list[list[set[int]]]]:
    """Herald's scheduler from its description: for each batch and worker the samples it gets and the rows it pushes."""
    snapshots: list[OrderedDict[int, bool]] = [OrderedDict() for _ in range(num_workers)]
    placed, planned = [], []
    for number, samples in enumerate(trace):
        mine: list[list[int]] = [[] for _ in range(num_workers)]
        for sample, keys in enumerate(samples):
            order = [(number + turn) % num_workers for turn in range(num_workers)]
            open_to = [worker for worker in order if len(mine[worker]) * num_workers < len(samples)]
            mine[max(open_to, key=lambda w: sum(snapshots[w].get(key, False) for key in keys))].append(sample)
        pushed = []
        for worker, cache in enumerate(snapshots):
            elsewhere = {key for i, keys in enumerate(samples) if i not in mine[worker] for key in keys}
            pushed.append({key for key in elsewhere if cache.get(key, False)})
        for worker, cache in enumerate(snapshots):
            cache.update(dict.fromkeys(pushed[worker], False))
            for key in sorted({key for i in mine[worker] for key in samples[i]}):
                if key not in cache and len(cache) == capacity:
                    cache.popitem(last=False)
                cache[key] = True
                cache.move_to_end(key)
        placed.append(mine)
        planned.append(pushed)
    return placed, planned


@pytest.mark.parametrize("seed", range(12))
def test_herald_is_the_published_scheduler_list_for_list(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_workers, per_worker, num_columns = int(rng.integers(1, 9)), int(rng.integers(1, 7)), int(rng.integers(1, 6))
    num_rows, batch = int(rng.integers(10, 400)), num_workers * per_worker
    ids = (num_rows * rng.random((25, batch, num_columns)) ** 3).astype(np.int64)
    capacity = per_worker * num_columns + int(rng.integers(0, 30))
    placed, pushed = published_herald(ids.tolist(), num_workers, capacity)
    offsets = np.arange(0, batch * num_columns + 1, num_columns, dtype=np.int32)
    header = Header(
        planner="herald", num_workers=num_workers, capacity_rows=capacity, num_rows=num_rows,
        first_step=0, num_steps=25, fetch_ahead_steps=100, stream_digest="test",
    )  # fmt: skip
    records = list(plan(herald(header), [Accesses(step.reshape(-1), offsets) for step in ids]))
    assert len(records) == 25 * num_workers
    for record in records:
        assert record.samples.tolist() == placed[record.step][record.worker]
        needed = pushed[record.step + 1][record.worker] if record.step < 24 else set()
        assert set(compared_parts(record)[0].row.tolist()) == needed


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    num_workers, num_rows = draw(st.integers(1, 5)), draw(st.integers(1, 10))
    num_samples = draw(st.integers(num_workers, 4 * num_workers))
    sample = st.lists(st.integers(0, num_rows - 1), max_size=4)
    samples = draw(st.lists(sample, min_size=num_samples, max_size=num_samples))
    each_row = st.lists(st.integers(-1, 5), min_size=num_rows, max_size=num_rows)
    owner = np.minimum(np.array(draw(each_row), np.int32), num_workers - 1)
    return Scene(
        step=6,
        num_workers=num_workers,
        sample_offsets=np.concatenate([[0], np.cumsum([len(rows) for rows in samples])]).astype(np.int32),
        inverse=np.array([row for rows in samples for row in rows], np.int32),
        owner=owner,
        last_touch=np.where(owner == NO_OWNER, -1, np.array(draw(each_row), np.int32)).astype(np.int32),
        next_touch=np.where(np.array(draw(each_row)) > 2, 7, -1).astype(np.int32),
    )


@pytest.mark.parametrize("name", sorted(PLACEMENTS))
@given(scene=scenes())
def test_every_worker_gets_the_same_number_or_one_more_and_the_same_again(name: str, scene: Scene) -> None:
    placed = PLACEMENTS[name](scene)
    share, remainder = divmod(scene.num_samples, scene.num_workers)
    assert sorted(np.bincount(placed, minlength=scene.num_workers).tolist()) == (
        [share] * (scene.num_workers - remainder) + [share + 1] * remainder
    )
    assert np.array_equal(placed, PLACEMENTS[name](scene))


def cost_of(scene: Scene, placed: np.ndarray[tuple[int], np.dtype[np.int32]]) -> int:
    """What the step costs, counted row by row: moves, copies and gradients, critical ones four times."""
    cost = 0
    for row in range(len(scene.owner)):
        users = {
            int(placed[sample])
            for sample in range(scene.num_samples)
            if row in scene.inverse[scene.sample_offsets[sample] : scene.sample_offsets[sample + 1]]
        }
        owner = int(scene.owner[row])
        arrives = 4 if scene.last_touch[row] == scene.step - 1 else 1
        leaves = 4 if scene.next_touch[row] == scene.step + 1 else 1
        if not users:
            continue
        elsewhere = len(users - {owner})
        cost += arrives * elsewhere if owner != NO_OWNER else len(users) - 1
        cost += leaves * (len(users) - 1)
    return cost


@given(scene=scenes())
def test_ours_costs_no_more_than_the_greedy_it_starts_from(scene: Scene) -> None:
    assert cost_of(scene, PLACEMENTS["location_aware"](scene)) <= cost_of(scene, owner_greedy(scene))


def test_few_workers_get_more_of_the_planners_time() -> None:
    assert [rounds_for(workers) for workers in (2, 3, 4, 8, 64)] == [16, 10, 8, 4, 4]


def test_ours_finds_the_exchange_that_the_greedy_misses() -> None:
    """Two pairs of samples share a row each; the greedy, which looks at owners only, takes them apart."""
    scene = Scene(
        step=0, num_workers=2, sample_offsets=np.arange(5, dtype=np.int32), inverse=np.array([0, 1, 1, 0], np.int32),
        owner=np.full(2, NO_OWNER, np.int32), last_touch=np.full(2, -1, np.int32), next_touch=np.full(2, -1, np.int32),
    )  # fmt: skip
    assert cost_of(scene, owner_greedy(scene)) == 4
    assert cost_of(scene, PLACEMENTS["location_aware"](scene)) == 0


def two_features() -> Scene:
    """Feature 0 is the same for all samples and in the store; feature 1 has a row for each sample, owned in turn."""
    num_samples = 8
    inverse = np.stack([np.zeros(num_samples), np.arange(1, num_samples + 1)], axis=1).reshape(-1)
    return Scene(
        step=3,
        num_workers=2,
        sample_offsets=np.arange(0, 2 * num_samples + 1, 2, dtype=np.int32),
        inverse=inverse.astype(np.int32),
        owner=np.array([NO_OWNER, *([0, 1] * (num_samples // 2))], np.int32),
        last_touch=np.array([-1, *([2] * num_samples)], np.int32),
        next_touch=np.full(num_samples + 1, -1, np.int32),
    )


def test_features_where_routing_saves_something_come_first() -> None:
    scene = two_features()
    ranked = rank_positions([scene, scene])
    assert ranked == [(1, 8 * 4.0), (0, 0.0)]
    assert affordable(ranked, seconds_per_position=1.0, budget_seconds=2.5) == (1,)
    assert affordable(ranked, seconds_per_position=1.0, budget_seconds=0.5) == ()


def test_chosen_features_place_as_if_there_were_no_others() -> None:
    scene = two_features()
    owners = [0, 1] * 4
    assert LocationAware(positions=(1,))(scene).tolist() == owners
    blind = LocationAware(positions=(0,))(scene)
    assert np.bincount(blind).tolist() == [4, 4]
    assert cost_of(scene, blind) > cost_of(scene, np.array(owners, np.int32))


@given(scene=scenes())
def test_all_positions_are_the_same_as_no_choice(scene: Scene) -> None:
    assert np.array_equal(LocationAware(positions=(0, 1, 2, 3))(scene), LocationAware()(scene))
