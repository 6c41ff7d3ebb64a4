"""What a launcher does about parts that have ended, decided without any."""

from __future__ import annotations

import pytest

from foresee.errors import UNAVAILABLE_CODE
from foresee.launch.decisions import Ended, RestartDecision, decide_restart

KILLED = -9


def ended(**codes: int) -> list[Ended]:
    """By names such as worker_1."""
    return [Ended(name=name.replace("_", " "), role=name.split("_")[0], code=code) for name, code in codes.items()]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({"planner": KILLED}, RestartDecision(planner=True)),
        ({"planner": 0}, RestartDecision(planner=True)),
        ({"worker_1": KILLED}, RestartDecision(trainers=True)),
        ({"worker_0": UNAVAILABLE_CODE, "worker_1": KILLED}, RestartDecision(trainers=True)),
        ({"worker_0": UNAVAILABLE_CODE}, RestartDecision(trainers=True)),
        ({"server_1": KILLED}, RestartDecision(servers=("server 1",), trainers=True)),
        ({"server_0": 0, "worker_0": UNAVAILABLE_CODE}, RestartDecision(servers=("server 0",), trainers=True)),
        ({"server_0": KILLED, "planner": KILLED}, RestartDecision(planner=True, servers=("server 0",), trainers=True)),
        ({"worker_0": 1, "worker_1": KILLED}, RestartDecision(trainers=True)),
        ({"worker_0": 2, "server_0": KILLED}, RestartDecision(servers=("server 0",), trainers=True)),
        ({"worker_0": 1}, RestartDecision()),
        ({"worker_0": 2, "worker_1": UNAVAILABLE_CODE}, RestartDecision()),
        ({"server_0": 2, "worker_1": UNAVAILABLE_CODE}, RestartDecision()),
    ],
)
def test_only_what_has_to_be_is_started_again(codes: dict[str, int], expected: RestartDecision) -> None:
    found = decide_restart(ended(**codes), servers_on_disk=True)
    assert found == expected
    assert found.possible == (expected != RestartDecision())


def test_a_server_in_memory_is_gone_for_good() -> None:
    assert not decide_restart(ended(server_0=KILLED), servers_on_disk=False).possible
    assert decide_restart(ended(worker_0=KILLED), servers_on_disk=False).possible


def test_a_planner_that_hangs_is_started_again_in_the_end() -> None:
    lost = ended(worker_0=UNAVAILABLE_CODE)
    assert not decide_restart(lost, servers_on_disk=True, lost_in_a_row=1).planner
    assert decide_restart(lost, servers_on_disk=True, lost_in_a_row=2).planner
