"""Errors travel as kinds over both wires: who is to blame arrives with them, whatever they say."""

from __future__ import annotations

import pytest
from pyarrow import flight

from foresee.engine.planner_service import client
from foresee.errors import (
    ConsistencyError,
    ForeseeError,
    InputError,
    LostWriteError,
    PlanError,
    PlanUnavailableError,
    StaleReadError,
    StoreError,
    StoreUnavailableError,
    UnavailableError,
    UsageError,
)
from foresee.store.rpc.failures import KINDS, BusyError, failure_header, raise_failure

ADDRESS = "grpc://127.0.0.1:1"


class OneServersError(StoreUnavailableError):
    """A class that no other process knows."""


def over_the_store_wire(error: BaseException) -> Exception:
    try:
        raise_failure(failure_header(error), ADDRESS)
    except Exception as raised:
        return raised
    raise AssertionError("nothing was raised")


def over_the_planner_wire(error: BaseException) -> Exception:
    try:
        client.raise_failure(client.flight_error(error))
    except Exception as raised:
        return raised
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_class_arrives_as_it_left(kind: type[ForeseeError]) -> None:
    for raised in (over_the_store_wire(kind("x")), over_the_planner_wire(kind("x"))):
        assert type(raised) is kind
        assert isinstance(raised, ForeseeError)
        assert raised.exit_code == kind.exit_code
    assert str(over_the_store_wire(kind("x"))) == f"server {ADDRESS}: x"
    assert str(over_the_planner_wire(kind("x"))) == "x"


def test_names_on_the_wire_are_those_that_older_versions_know() -> None:
    for kind in (StoreError, UsageError, StaleReadError, LostWriteError, ConsistencyError):
        assert failure_header(kind("x")) == {"error": kind.__name__, "sentence": "x"}
    assert failure_header(BusyError("x")) == {"error": "busy", "sentence": "x"}
    with pytest.raises(BusyError):
        raise_failure({"error": "busy", "sentence": "x"}, ADDRESS)
    raise_failure({"joined": True}, ADDRESS)


def test_a_class_that_nobody_else_knows_arrives_as_the_nearest_one() -> None:
    assert type(over_the_store_wire(OneServersError("x"))) is StoreUnavailableError
    assert type(over_the_planner_wire(OneServersError("x"))) is StoreUnavailableError


def test_a_kind_of_another_version_is_an_error_with_its_sentence() -> None:
    with pytest.raises(StoreError, match=rf"^server {ADDRESS}: it is on fire$"):
        raise_failure({"error": "FireError", "sentence": "it is on fire"}, ADDRESS)
    with pytest.raises(PlanError, match=r"^it is on fire$"):
        client.raise_failure(flight.FlightServerError("", b'{"error": "FireError", "sentence": "it is on fire"}'))


def test_what_is_not_ours_is_named_and_its_inside_stays_at_home() -> None:
    at_store, at_planner = over_the_store_wire(KeyError("secret")), over_the_planner_wire(KeyError("secret"))
    assert type(at_store) is StoreError
    assert "the server failed with KeyError" in str(at_store)
    assert type(at_planner) is PlanError
    assert "the planner failed with KeyError" in str(at_planner)
    assert "secret" not in f"{at_store}{at_planner}"


def test_a_broken_connection_is_no_failure_that_travelled() -> None:
    for error in (flight.FlightUnavailableError("away"), OSError("away"), flight.FlightServerError("x", b"[1]")):
        client.raise_failure(error)


def test_who_is_away_is_caught_as_before_and_is_nobodys_mistake() -> None:
    """Code that catches StoreError and PlanError goes on to; the exit code is that of the other branch."""
    assert issubclass(StoreUnavailableError, StoreError)
    assert issubclass(PlanUnavailableError, PlanError)
    assert {it.exit_code for it in KINDS.values() if issubclass(it, UnavailableError)} == {3}
    blamed = [it for it in KINDS.values() if issubclass(it, InputError) and not issubclass(it, UnavailableError)]
    assert {it.exit_code for it in blamed} == {2}
    others = [it for it in KINDS.values() if not issubclass(it, (InputError, UnavailableError))]
    assert {it.exit_code for it in others} == {1}
