"""What a launcher does about parts that have ended, decided without any."""

from __future__ import annotations

import pytest

from foresee.engine.launcher.restarts import LOST_ANOTHER_CODE, Ended, Remedy, remedy

KILLED = -9


def ended(**codes: int) -> list[Ended]:
    """By names such as worker_1."""
    return [Ended(name=name.replace("_", " "), role=name.split("_")[0], code=code) for name, code in codes.items()]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({"planner": KILLED}, Remedy(planner=True)),
        ({"planner": 0}, Remedy(planner=True)),
        ({"worker_1": KILLED}, Remedy(trainers=True)),
        ({"worker_0": LOST_ANOTHER_CODE, "worker_1": KILLED}, Remedy(trainers=True)),
        ({"worker_0": LOST_ANOTHER_CODE}, Remedy(trainers=True)),
        ({"server_1": KILLED}, Remedy(servers=("server 1",), trainers=True)),
        ({"server_0": 0, "worker_0": LOST_ANOTHER_CODE}, Remedy(servers=("server 0",), trainers=True)),
        ({"server_0": KILLED, "planner": KILLED}, Remedy(planner=True, servers=("server 0",), trainers=True)),
        ({"worker_0": 1, "worker_1": KILLED}, Remedy(trainers=True)),
        ({"worker_0": 2, "server_0": KILLED}, Remedy(servers=("server 0",), trainers=True)),
        ({"worker_0": 1}, Remedy()),
        ({"worker_0": 2, "worker_1": LOST_ANOTHER_CODE}, Remedy()),
        ({"server_0": 2, "worker_1": LOST_ANOTHER_CODE}, Remedy()),
    ],
)
def test_only_what_has_to_be_is_started_again(codes: dict[str, int], expected: Remedy) -> None:
    found = remedy(ended(**codes), servers_on_disk=True)
    assert found == expected
    assert found.possible == (expected != Remedy())


def test_a_server_in_memory_is_gone_for_good() -> None:
    assert not remedy(ended(server_0=KILLED), servers_on_disk=False).possible
    assert remedy(ended(worker_0=KILLED), servers_on_disk=False).possible


def test_a_planner_that_hangs_is_started_again_in_the_end() -> None:
    lost = ended(worker_0=LOST_ANOTHER_CODE)
    assert not remedy(lost, servers_on_disk=True, lost_in_a_row=1).planner
    assert remedy(lost, servers_on_disk=True, lost_in_a_row=2).planner
