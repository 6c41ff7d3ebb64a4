"""The comparison: its numbers are those of `foresee plan` and the traffic benchmark; what is missing has a reason."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from foresee.data import ClickLog, tiny
from foresee.engine.header import make_header
from foresee.errors import PlanError
from foresee.plan import trainable
from foresee.store.layout import Layout, Table
from foresee.tools.comparison import CacheSize, Outcome, Question, Sample, compare, policies_named, take_sample
from foresee.tools.cost import Speeds
from foresee.tools.forecast import counters_of, same_for

LAYOUT = Layout(tables=(Table("t", 10),), width=4, state_width=1, optimizer="rowwise_adagrad")
NUM_STEPS = 6


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("comparison") / "log", num_samples=900)


def sample_of(log: ClickLog, num_workers: int, batch_size: int = 16) -> Sample:
    return take_sample(log.batches(batch_size=num_workers * batch_size), num_workers, NUM_STEPS)


def question(*names: str, caches: tuple[str, ...] = ("0.1",)) -> Question:
    return Question(
        candidates=policies_named(names, (0, 10)),
        caches=[CacheSize.parse(cache) for cache in caches],
        layout=LAYOUT,
        speeds=lambda num_workers: Speeds(compute_seconds=0.01, trainer_bytes_per_second=1e6, num_servers=num_workers),
    )


def by_name(outcomes: list[Outcome]) -> dict[str, Outcome]:
    return {outcome.candidate.name: outcome for outcome in outcomes}


def test_one_trainer_has_the_counters_of_foresee_plan(log: ClickLog) -> None:
    sample = sample_of(log, 1, batch_size=32)
    found = by_name(list(compare([sample], question())))
    cache_rows = found["lookahead"].cache_rows
    header = make_header(sample.stream, planner="lookahead", cache_rows=cache_rows)
    for planner in trainable():
        figures = found[planner].figures
        assert figures is not None
        expected = counters_of(sample.stream, same_for(header, planner, num_steps=NUM_STEPS))
        assert figures.counters == expected, planner
        assert figures.hit_rate == pytest.approx(expected.hit_rate)
        moved = (expected.num_fetched + expected.num_evicted) / NUM_STEPS
        assert figures.rows.total == pytest.approx(moved)
        assert figures.bytes_moved == pytest.approx(moved * LAYOUT.row_bytes), "as `foresee plan` prints them"


@pytest.fixture(scope="module")
def traffic() -> ModuleType:
    """The benchmark as a module; it is not part of the package."""
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "traffic.py"
    specification = importlib.util.spec_from_file_location("traffic_benchmark", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


def test_eight_trainers_move_what_the_traffic_benchmark_counts(log: ClickLog, traffic: ModuleType) -> None:
    sample = sample_of(log, 8, batch_size=8)
    found = by_name(list(compare([sample], question())))
    trace = traffic.Trace(
        name="test", steps=list(sample.steps), num_rows=sample.num_rows, num_unique=sample.num_unique,
        capacity_rows=found["lookahead"].cache_rows,
    )  # fmt: skip
    for name in ("none", "replicated", "owner", "herald", "het 0", "het 10", "fae", "lookahead"):
        figures = found[name].figures
        assert figures is not None
        assert figures.rows == traffic.moved(name, trace), name


def test_the_bound_is_below_everybody(log: ClickLog) -> None:
    outcomes = list(compare([sample_of(log, 4)], question(caches=("1x", "2x"))))
    for cache in ("1x", "2x"):
        here = by_name([outcome for outcome in outcomes if str(outcome.cache) == cache])
        bound = here["belady"].figures
        assert bound is not None
        assert bound.prediction is None, "nobody can run it"
        fetched = [other.figures.counters.num_fetched for other in here.values() if other.figures is not None]
        assert min(fetched) == bound.counters.num_fetched


def test_only_het_reads_stale_rows(log: ClickLog) -> None:
    stale = {
        outcome.candidate.name: outcome.figures.stale_share
        for outcome in compare([sample_of(log, 4)], question())
        if outcome.figures is not None
    }
    assert stale.pop("het 10") > 0
    assert set(stale.values()) == {0.0}


def test_what_does_not_exist_says_why(log: ClickLog) -> None:
    found = by_name(list(compare([sample_of(log, 1)], question())))
    assert {name for name, outcome in found.items() if outcome.figures is None} == {"owner", "herald"}
    assert found["owner"].reason == "decides between trainers, and there is only one"
    too_small = by_name(list(compare([sample_of(log, 4)], question("lookahead", "replicated", caches=("20",)))))
    assert all(outcome.figures is None for outcome in too_small.values())
    assert "needs a cache of" in str(too_small["lookahead"].reason)
    with pytest.raises(PlanError, match="there is no policy 'oracle'; choose one of none, static"):
        policies_named(["oracle"], ())


def test_cache_sizes_as_a_person_says_them(log: ClickLog) -> None:
    sample = replace(sample_of(log, 2), two_steps_rows=50, num_touched=1000)
    sizes = {word: sample.rows_of(CacheSize.parse(word)) for word in ("0.01", "0.2", "1", "2", "400", "1x", "2.5x")}
    assert sizes == {"0.01": 50, "0.2": 200, "1": 1000, "2": 2, "400": 400, "1x": 50, "2.5x": 125}
    for word in ("0", "-1", "0.5x", "many", "nan", "inf"):
        with pytest.raises(ValueError, match=word):
            CacheSize.parse(word)


def test_every_step_of_every_plan_advances(log: ClickLog) -> None:
    advanced = []
    list(compare([sample_of(log, 2)], question("lookahead", "lru"), lambda: advanced.append(1)))
    assert len(advanced) == 2 * NUM_STEPS
