"""What estimators know and how their error is measured."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.cluster.estimators import ErrorRecord, Progress, oracle, reactive, regimes, with_error
from foresee.cluster.job import Job, Regime

TWO_SPEEDS = Job(
    id="j",
    gpus=1,
    regimes=(
        Regime(num_units=10, seconds_per_unit=60.0, batch_size=16),
        Regime(num_units=10, seconds_per_unit=20.0, batch_size=32),
    ),
)


def at(units: float) -> Progress:
    return Progress(units_done=units, seconds_per_unit=TWO_SPEEDS.seconds_per_unit_at(units))


def test_reactive_goes_on_at_the_present_speed() -> None:
    assert reactive(TWO_SPEEDS, at(5)) == 15 * 60.0
    assert reactive(TWO_SPEEDS, at(15)) == 5 * 20.0


def test_oracle_knows_the_description() -> None:
    assert oracle(TWO_SPEEDS, at(0)) == 800.0
    assert oracle(TWO_SPEEDS, at(15)) == 100.0


def test_regimes_by_hand() -> None:
    """20 epochs, two modes: prior 10 and 10; one epoch of the first seen: 11 : 10 of 21, less the one seen."""
    first, second = 20 * 11 / 21 - 1, 20 * 10 / 21
    expected = (first * 60 + second * 20) * 20 / max(int(first + second) + 1, 20)
    assert regimes(TWO_SPEEDS, at(0)) == pytest.approx(expected)


def test_regimes_ignores_progress_within_an_epoch_and_ends_at_a_second() -> None:
    assert regimes(TWO_SPEEDS, at(3.0)) == regimes(TWO_SPEEDS, at(3.9))
    assert regimes(TWO_SPEEDS, at(20.0)) == 1.0


@given(units=st.floats(0, 19.5))
def test_a_job_of_one_speed_has_no_uncertainty_beyond_the_unit_in_progress(units: float) -> None:
    job = Job(id="j", gpus=1, regimes=(Regime(num_units=20, seconds_per_unit=30.0),))
    progress = Progress(units_done=units, seconds_per_unit=30.0)
    assert abs(regimes(job, progress) - oracle(job, progress)) <= 2 * 30.0


def test_errors_last_and_depend_on_the_job_alone() -> None:
    wrong = with_error(oracle, sigma=0.5, seed=1)
    again = with_error(oracle, sigma=0.5, seed=1)
    factor = wrong(TWO_SPEEDS, at(0)) / oracle(TWO_SPEEDS, at(0))
    assert factor != pytest.approx(1.0)
    assert wrong(TWO_SPEEDS, at(12)) / oracle(TWO_SPEEDS, at(12)) == pytest.approx(factor)
    assert again(TWO_SPEEDS, at(0)) == wrong(TWO_SPEEDS, at(0))
    assert with_error(oracle, sigma=0.5, seed=2)(TWO_SPEEDS, at(0)) != wrong(TWO_SPEEDS, at(0))


def test_the_record_learns_the_spread_it_is_shown() -> None:
    record = ErrorRecord(0.05)
    assert record.spread == pytest.approx(0.05)
    estimate = with_error(oracle, sigma=0.4, seed=3)
    for index in range(2000):
        job = Job(id=str(index), gpus=1, regimes=(Regime(num_units=100, seconds_per_unit=1000.0),))
        progress = Progress(units_done=0, seconds_per_unit=1000.0)
        record.add(estimate(job, progress), oracle(job, progress))
    assert record.spread == pytest.approx(0.4, rel=0.1)


def test_a_few_wild_jobs_do_not_rule_the_spread() -> None:
    record = ErrorRecord(0.05)
    for ratio in [1.05] * 40 + [50.0] * 3:
        record.add(100.0, 100.0 * ratio)
    assert record.spread < 2 * math.log(1.05)
