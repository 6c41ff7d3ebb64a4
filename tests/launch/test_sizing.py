"""When a run changes its size, and to what: properties of the decision, without a cluster."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from foresee.launch.decisions import SETTLED_SECONDS, Bounds, Room, Size, Sizing, largest
from foresee.run.config import CacheConfig, DistributedConfig, ElasticConfig, ResourcesConfig, RunConfig

NEEDS = DistributedConfig(
    resources=ResourcesConfig(server={"CPU": 1.0, "memory": 2.0}, planner={"CPU": 1.0}, worker={"CPU": 2.0})
)
NODES = st.lists(st.fixed_dictionaries({"CPU": st.integers(0, 8), "memory": st.integers(0, 4)}), max_size=5)
LEAST = st.builds(Size, st.integers(1, 3), st.integers(1, 3))


def bounds_of(least: Size, more: Size, after: float = 60.0, every: float = 600.0) -> Bounds:
    wanted = Size(least.workers + more.workers, least.servers + more.servers)
    return Bounds(wanted=wanted, least=least, after_seconds=after, every_seconds=every)


BOUNDS = st.builds(bounds_of, LEAST, st.builds(Size, st.integers(0, 3), st.integers(0, 3)))
ROOMS = st.lists(st.tuples(NODES, st.booleans(), st.floats(0.0, 200.0)), max_size=30)


@given(NODES, BOUNDS)
def test_the_largest_size_is_between_the_bounds_and_has_room(nodes: list[dict[str, int]], bounds: Bounds) -> None:
    found = largest(nodes, bounds, NEEDS)
    if found is not None:
        assert bounds.least.workers <= found.workers <= bounds.wanted.workers
        assert bounds.least.servers <= found.servers <= bounds.wanted.servers
        assert 1 + 2 * found.workers + found.servers <= sum(it["CPU"] for it in nodes)
        assert 2 * found.servers <= sum(it["memory"] for it in nodes)
    roomy = [*nodes, {"CPU": 100, "memory": 100}]
    assert largest(roomy, bounds, NEEDS) == bounds.wanted


@given(BOUNDS, ROOMS)
def test_a_run_changes_only_for_a_reason(bounds: Bounds, rooms: list[tuple[list[dict[str, int]], bool, float]]) -> None:
    now, changed, sizing = 0.0, 0.0, Sizing(bounds, NEEDS, 0.0)
    waited = roomy = 0.0
    for nodes, waiting, seconds in rooms:
        before, fits = sizing.size, largest(nodes, bounds, NEEDS)
        found = sizing.decide(Room(nodes=nodes, waiting=waiting), now)
        more = fits is not None and fits.workers >= before.workers and fits.servers >= before.servers
        if found is not None:
            assert found == fits == sizing.size != before
            assert waited >= bounds.after_seconds or roomy >= SETTLED_SECONDS
            assert waiting or (more and now - changed >= bounds.every_seconds)
            changed, waited, roomy = now, 0.0, 0.0
        else:
            assert sizing.size == before
        now += seconds
        waited = waited + seconds if waiting and found is None else 0.0
        roomy = roomy + seconds if more and fits != before and not waiting and found is None else 0.0


@given(BOUNDS, NODES)
def test_it_comes_to_rest(bounds: Bounds, nodes: list[dict[str, int]]) -> None:
    """With the same nodes for long enough there is one change at most, to what fits."""
    sizing, fits, changes = Sizing(bounds, NEEDS, 0.0), largest(nodes, bounds, NEEDS), 0
    for second in range(0, 3000, 3):
        lacks = fits is None or fits.workers < sizing.size.workers or fits.servers < sizing.size.servers
        changes += sizing.decide(Room(nodes=nodes, waiting=lacks), float(second)) is not None
    assert changes <= 1
    assert sizing.size == (fits or bounds.wanted)


def test_bounds_are_those_of_the_run_file() -> None:
    def run(**elastic: int) -> RunConfig:
        sizes = DistributedConfig(workers=4, servers=2, elastic=ElasticConfig(**elastic))
        return RunConfig(log=Path("log"), run=Path("run"), cache=CacheConfig(rows=10), distributed=sizes)

    assert Bounds.of(run()) is None
    found = Bounds.of(run(workers_min=1))
    assert found is not None
    assert (found.wanted, found.least) == (Size(4, 2), Size(1, 2))
    sized = Size(3, 1).of(run(workers_min=1))
    assert (sized.distributed.workers, sized.num_servers) == (3, 1)
